"""The version, which CMakeLists.txt declares for the whole project."""
import re
from importlib import metadata
from pathlib import Path
from typing import Optional

DISTRIBUTION = "lockstep-trainer"


def source_version() -> Optional[str]:
    """The version of the source tree that this file lies in; None where it lies elsewhere."""
    project = Path(__file__).resolve().parents[2] / "CMakeLists.txt"
    if not project.is_file():
        return None
    found = re.search(r"project\(lockstep VERSION ([0-9.]+)", project.read_text(encoding="utf-8"))
    return found.group(1) if found else None


def version() -> str:
    """The version of this package: of the source tree, else of the installed distribution."""
    try:
        return source_version() or metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "unknown"
