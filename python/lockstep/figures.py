"""The figures of runs and comparisons, by matplotlib. An interval is a bar, a seed a small mark, as in the program's page."""
from typing import TYPE_CHECKING, Any, List

import numpy as np

from .errors import FormatError, missing

if TYPE_CHECKING:
    from .comparison import Comparison
    from .run import Run


def plot_run(run: "Run", keys: List[str], ax: Any) -> Any:
    """Columns of `run.scalars`, else of `run.evaluations`, over the steps. Returns the axes."""
    axes = _axes(ax)
    for key in keys:
        if key in run.scalars:
            axes.plot(run.scalars["step"], run.scalars[key], label=key)
            continue
        of_weights = run.evaluations
        if key not in of_weights:
            raise KeyError(f"{run.path} has no column {key!r}; there are {', '.join([*run.scalars, *of_weights])}")
        used = of_weights.where(averaged=False, eval_stats=of_weights["eval_stats"][0])
        if used[key].ndim == 3:
            return _plot_matrix(run, key, used, axes)
        axes.plot(used["step"], used[key], marker="o", label=key)
    axes.set_xlabel("step")
    axes.set_title(f"{run.mode}, seed {run.seed}")
    axes.legend()
    return axes


def _plot_matrix(run: "Run", key: str, evaluations: Any, axes: Any) -> Any:
    """The last of matrices [labels, classes], each row as shares of its label."""
    matrix = evaluations[key][-1].astype(float)
    image = axes.imshow(matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1), vmin=0, vmax=1, cmap="Blues")
    axes.figure.colorbar(image, ax=axes, label="share of the label")
    names = (run.summary or {}).get("classes")
    if names:
        axes.set_xticks(range(len(names)), names, rotation=90)
        axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("predicted")
    axes.set_ylabel("label")
    axes.set_title(f"{run.mode}, seed {run.seed}, step {int(evaluations['step'][-1])}")
    return axes


def plot_curve(comparison: "Comparison", ax: Any) -> Any:
    """The score over images per device, a line per mode and evaluation, level where the number makes no difference.

    Returns the axes.
    """
    if comparison.curve is None:
        raise FormatError(f"{comparison.path}: expected a comparison over images per device, and this one has no curve; "
                          f"make one by compare(..., images_per_device=[1, 2, 4])")
    axes = _axes(ax)
    for line in comparison.curve.lines:
        points = [point for point in comparison.curve.points if point.line == line]
        drawn = [(images, point) for point in points
                 for images in ([point.images] if point.images else comparison.curve.images_per_device)]
        images = [at for at, _ in drawn]
        means = np.array([point.score.mean for _, point in drawn])
        low = [point.score.mean - (point.interval[0] if point.interval else point.score.mean) for _, point in drawn]
        high = [(point.interval[1] if point.interval else point.score.mean) - point.score.mean for _, point in drawn]
        axes.errorbar(images, means, yerr=np.array([low, high]), marker="o", capsize=3, label=line,
                      linestyle="-" if points[0].mode == line else ":")
    axes.set_xscale("log", base=2)
    axes.set_xticks(comparison.curve.images_per_device, [str(images) for images in comparison.curve.images_per_device])
    axes.set_xlabel(f"images that share statistics, of {comparison.curve.global_batch} per step")
    axes.set_ylabel(f"{comparison.score_name}, %")
    axes.legend()
    return axes


def plot_differences(comparison: "Comparison", ax: Any) -> Any:
    """Each difference as its mean, its seeds, and its interval where they are enough for one; the line is at no difference.

    Returns the axes.
    """
    axes = _axes(ax)
    for row, difference in enumerate(comparison.differences):
        axes.plot(difference.by_seed, np.full(len(difference.by_seed), row), "|", color="gray")
        if difference.interval and difference.kind != "too few seeds":
            axes.plot(difference.interval, [row, row], color="black")
        axes.plot([difference.difference], [row], "o", color="black")
    axes.axvline(0, color="gray", linewidth=0.8)
    axes.set_yticks(range(len(comparison.differences)), [f"{each.a} - {each.b}" for each in comparison.differences])
    axes.invert_yaxis()
    axes.set_xlabel(f"difference in {comparison.score_name}, points")
    return axes


def _axes(ax: Any) -> Any:
    if ax is not None:
        return ax
    try:
        import matplotlib.pyplot as pyplot
    except ImportError:
        raise missing("matplotlib", "A figure") from None
    return pyplot.subplots()[1]
