"""What figures are drawn in, by matplotlib. An interval is a bar, a seed a small mark, as in the program's page."""
from typing import Any

from .errors import missing


def axes_of(ax: Any) -> Any:
    """These, or where there are none those of a new figure. Raises MissingPackageError without matplotlib."""
    if ax is not None:
        return ax
    try:
        import matplotlib.pyplot as pyplot
    except ImportError:
        raise missing("matplotlib", "A figure") from None
    return pyplot.subplots()[1]
