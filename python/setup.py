"""The version comes from CMakeLists.txt, and in a source distribution, which has none, from its PKG-INFO."""
import re
import runpy
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).resolve().parent
version = runpy.run_path(str(HERE / "lockstep" / "_version.py"))["source_version"]()
if version is None:
    try:
        version = re.search(r"^Version: (.+)$", (HERE / "PKG-INFO").read_text(encoding="utf-8"), re.MULTILINE).group(1)
    except FileNotFoundError:  # older pip builds in a copy of this folder alone
        raise SystemExit(f"{HERE} lies beside no CMakeLists.txt of the project, which has the version: install it with pip 21.3 or "
                         f"later (python3 -m pip install --upgrade pip)") from None
setup(version=version)
