"""What functions of this package are given: paths and whole numbers. Raises ConfigError for what is neither."""
import operator
import os
from typing import Any, Iterable, List, SupportsIndex, Union

from .errors import ConfigError

PathLike = Union[str, "os.PathLike[str]"]  # also a Run or a Comparison: its folder
Number = SupportsIndex  # also NumPy's and PyTorch's
Numbers = Union[Number, Iterable[Number]]


def refused(message: str) -> ConfigError:
    """The error for an argument. No program was run."""
    return ConfigError(message, 2, [])


def path_text(path: Any) -> str:
    """A path as a word."""
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    if isinstance(text, str) and text:
        return text
    raise refused(f"expected a path, such as \"runs/first\", got {path!r}")


def _are_several(values: Any) -> bool:
    return isinstance(values, Iterable) and getattr(values, "ndim", 1) > 0  # an array without dimensions is a number


def whole_numbers(values: Any, least: int, expected: str) -> List[int]:
    """One or several, each at least `least`. `expected`: in the message."""
    try:
        found = [operator.index(each) for each in (values if _are_several(values) else [values])]
    except TypeError:
        found = []
    if not found or min(found) < least:
        raise refused(f"expected {expected}, got {values!r}")
    return found


def whole_number(value: Any, least: int, expected: str) -> int:
    """One."""
    found = whole_numbers(value, least, expected)
    if len(found) > 1:
        raise refused(f"expected {expected}, got {value!r}")
    return found[0]


def image_counts(values: Any) -> List[int]:
    """Of images per device."""
    return whole_numbers(values, 1, "images_per_device=1 or [1, 2, 4], whole numbers of at least 1")


def seeds_of(seeds: Any) -> List[int]:
    """So many, from 0 on, or those that are named."""
    expected = "seeds=3 for three of them, or seeds=[3, 4] for these, which are not negative"
    if _are_several(seeds):
        return whole_numbers(seeds, 0, expected)
    return list(range(whole_number(seeds, 1, expected)))
