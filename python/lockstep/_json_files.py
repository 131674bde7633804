"""The JSON files of a run folder. Readers ignore keys that they do not know."""
import json
from pathlib import Path
from typing import Any, Dict, List

from .errors import FormatError

SCHEMA = 1


def read_json(file: Path) -> Any:
    """What a JSON file holds. Raises FormatError where it is no JSON."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise FormatError(f"{file}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise FormatError(f"{file}: expected JSON: {error}; the file is damaged") from error


def read_json_lines(file: Path) -> List[Dict[str, Any]]:
    """The objects of a file of JSON lines; none where the file is missing.

    The last line may be cut off, anywhere, by a kill or because it is being written: it is then left out. Raises FormatError for any other line that is no JSON.
    """
    if not file.is_file():
        return []
    lines = file.read_bytes().split(b"\n")
    records = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            if not isinstance(record, dict):
                raise ValueError(f"got {line[:40]!r}")
            records.append(record)
        except ValueError as error:  # no JSON, or no UTF-8
            if number == len(lines):
                break
            raise FormatError(f"{file}, line {number}: expected a JSON object: {error}; the file is damaged") from error
    return records


def check_schema(found: Any, file: Path) -> None:
    """Raises FormatError where `file` is of a later schema than this package knows."""
    if isinstance(found, int) and found <= SCHEMA:
        return
    raise FormatError(f"{file}: expected schema {SCHEMA} or earlier, got {found}; a later version of lockstep wrote it: "
                      f"pip install --upgrade lockstep-trainer")
