"""Configurations: TOML is read by Python's own reader, or before Python 3.11 by tomli, and written here."""
import json
import math
from pathlib import Path
from typing import Any, Dict, List, Mapping, Tuple

from .errors import FormatError, missing


def read_toml(file: Path) -> Dict[str, Any]:
    """The tables of a TOML file. Raises FormatError where it is none."""
    try:
        import tomllib  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        try:
            import tomli as tomllib  # type: ignore[import-not-found, no-redef, unused-ignore]
        except ImportError:
            raise missing("tomli", "Reading TOML before Python 3.11") from None
    try:
        tables: Dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
        return tables
    except OSError as error:
        raise FormatError(f"{file}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise FormatError(f"{file}: expected TOML: {error}") from error


def to_toml(value: Any) -> str:
    """One value as TOML. Tuples and arrays of NumPy are arrays, paths are strings.

    Raises TypeError for what TOML has not, None among it.
    """
    if hasattr(value, "tolist"):  # NumPy's numbers and arrays
        value = value.tolist()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)
    if isinstance(value, (str, Path)):
        # What TOML calls a basic string has JSON's escapes, and wants DEL escaped, too.
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(to_toml(each) for each in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(name)} = {to_toml(each)}" for name, each in value.items()) + "}"
    raise TypeError(f"expected a value that a configuration can have (bool, int, float, str, list, dict), got "
                    f"{type(value).__name__}: {value!r}; leave a key out to have its default")


def write_toml(tables: Mapping[str, Any]) -> str:
    """A whole configuration, {"data": {"layout": "streets"}, ...}, as TOML."""
    lines: List[str] = []
    for name, value in tables.items():
        if not isinstance(value, Mapping):
            lines.append(f"{_key(name)} = {to_toml(value)}")
    for name, value in tables.items():
        if isinstance(value, Mapping):
            lines += _table(_key(name), value)
    return "\n".join(lines) + "\n"


def settings_of(settings: Mapping[str, Any]) -> List[Tuple[str, str]]:
    """Settings as (key, TOML value): {"run.max_iters": 6} and {"run": {"max_iters": 6}} are the same."""
    flat: List[Tuple[str, str]] = []
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat += [(f"{name}.{inner}", text) for inner, text in settings_of(value)]
        else:
            flat.append((name, to_toml(value)))
    return flat


def _table(name: str, table: Mapping[str, Any]) -> List[str]:
    lines = ["", f"[{name}]"]
    lines += [f"{_key(key)} = {to_toml(value)}" for key, value in table.items() if not isinstance(value, Mapping)]
    for key, value in table.items():
        if isinstance(value, Mapping):
            lines += _table(f"{name}.{_key(key)}", value)
    return lines


def _key(name: str) -> str:
    return name if name and name.replace("_", "").replace("-", "").isalnum() and name.isascii() else to_toml(name)
