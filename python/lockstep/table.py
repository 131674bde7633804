"""Columns of numbers and words, as the files of a run hold them line by line."""
from html import escape
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence

import numpy as np
from numpy.typing import NDArray

from .errors import missing

Array = NDArray[Any]

_SHOWN = 20  # rows of a table that is printed


class Table(Mapping[str, Array]):
    """A mapping from the names of columns to arrays of one length, in the order in which the files name them.

    Numbers are int64 or float64; a value that is missing or undefined is nan. Words and lists are arrays of objects.
    """

    def __init__(self, columns: Mapping[str, Any]):
        self._columns: Dict[str, Array] = {name: np.asarray(column) for name, column in columns.items()}
        lengths = {len(column) for column in self._columns.values()}
        if len(lengths) > 1:
            raise ValueError(f"expected columns of one length, got {sorted(lengths)}")
        self.rows = lengths.pop() if lengths else 0

    @classmethod
    def from_records(cls, records: Sequence[Mapping[str, Any]], leave_out: Iterable[str] = ()) -> "Table":
        """A row for each record, a column for each key that any of them has."""
        left_out = set(leave_out)
        names = {name: None for record in records for name in record if name not in left_out}
        return cls({name: _column([record.get(name) for record in records]) for name in names})

    def __getitem__(self, name: str) -> Array:
        if name not in self._columns:
            raise KeyError(f"there is no column {name!r}; there are {', '.join(self._columns) or 'none'}")
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __repr__(self) -> str:
        return f"Table of {self.rows} rows: {', '.join(self._columns)}"

    def __str__(self) -> str:
        return "\n".join([repr(self), *self._lines(_SHOWN)])

    def _lines(self, most: int) -> List[str]:
        """A head and the first rows, as columns of text."""
        columns = [[name, *(_shown(value) for value in column[:most])] for name, column in self._columns.items()]
        widths = [max(map(len, column)) for column in columns]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in zip(*columns)]
        return [*lines, *([f"... {self.rows - most} more rows"] if self.rows > most else [])]

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        head = "".join(f"<th>{escape(name)}</th>" for name in self._columns)
        rows = "".join("<tr>" + "".join(f"<td>{escape(_shown(column[row]))}</td>" for column in self._columns.values()) + "</tr>"
                       for row in range(min(self.rows, _SHOWN)))
        more = f"<p>{self.rows - _SHOWN} more rows</p>" if self.rows > _SHOWN else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{more}"

    def where(self, **values: Any) -> "Table":
        """The rows in which each named column has the given value: `run.batch_norm.where(layer="encoder.0.0.bn")`."""
        keep = np.ones(self.rows, dtype=bool)
        for name, value in values.items():
            keep &= self[name] == value
        return Table({name: column[keep] for name, column in self._columns.items()})

    def records(self) -> List[Dict[str, Any]]:
        """A dictionary for each row."""
        return [{name: column[row] for name, column in self._columns.items()} for row in range(self.rows)]

    def to_pandas(self) -> Any:
        """A pandas.DataFrame. Columns of arrays (a confusion matrix for each row) become columns of objects.

        Raises MissingPackageError without pandas.
        """
        try:
            import pandas  # type: ignore[import-untyped, import-not-found, unused-ignore]
        except ImportError:
            raise missing("pandas", "Table.to_pandas()") from None
        return pandas.DataFrame({name: column if column.ndim == 1 else list(column)
                                 for name, column in self._columns.items()})


def _shown(value: Any) -> str:
    if isinstance(value, np.ndarray) and value.ndim > 0:
        return "×".join(map(str, value.shape))
    return f"{value:.6g}" if isinstance(value, (float, np.floating)) else str(value)


def _column(values: List[Any]) -> Array:
    present = [value for value in values if value is not None]
    if present and all(isinstance(value, bool) for value in present) and len(present) == len(values):
        return np.array(values, dtype=bool)
    if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in present):
        whole = len(present) == len(values) and all(isinstance(value, int) for value in present)
        return np.array([np.nan if value is None else value for value in values], dtype=np.int64 if whole else np.float64)
    if len(present) == len(values) and all(isinstance(value, list) for value in present):
        array = _numeric(values)
        if array is not None:
            return array
    objects = np.empty(len(values), dtype=object)
    objects[:] = values
    return objects


def _numeric(lists: List[Any]) -> Optional[Array]:
    """Lists of one shape as one array of numbers; None where they are not."""
    try:
        array: Array = np.array(lists)
    except ValueError:  # of several shapes
        return None
    return array if array.dtype.kind in "iuf" else None
