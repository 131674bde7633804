"""A comparison of BatchNorm modes over seeds, by its comparison.json and the folders of its runs."""
import re
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import numpy as np

from ._arguments import PathLike, path_text
from ._json_files import check_schema, read_json
from .errors import FormatError, expect_folder
from .figures import axes_of
from .run import Run, read_run
from .table import Array, Table

Interval = Tuple[float, float]


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation over seeds; nan where it is not defined, as a deviation of one seed is not."""
    n: int
    mean: float
    sd: float


@dataclass(frozen=True)
class Cell:
    """All runs of one mode; on a curve of one mode and number of images per device, called "local(2)"."""
    name: str
    devices: str
    score: Spread  # in percent
    by_seed: Dict[int, float]
    runs: Dict[int, str]  # the run's folder by its seed, seen from the comparison's; none in a file of version 0.2.0
    sync_layers: List[str]  # that synchronize where others do not
    figures: Dict[str, Spread]  # val_loss, train_loss, ms_per_step, images_per_second, waiting_share
    batch_norm: Table  # a row per layer, in the last step: between_within_mean, between_within_max, log_var_ratio

    @property
    def mode(self) -> str:
        """Without the number of images: "local" of "local(2)"."""
        return re.sub(r"\(\d+\)$", "", self.name)

    @property
    def images(self) -> Optional[int]:
        """Images per device; None where the name has no number, because it makes no difference or there is no curve."""
        found = re.search(r"\((\d+)\)$", self.name)
        return int(found.group(1)) if found else None


@dataclass(frozen=True)
class Row:
    """The scores of a cell's weights, evaluated in one way.

    A row of a cell's name is evaluated as its runs' configuration says. "local(2) by own" has the same weights as
    "local(2)", and each image is normalised by its own statistics in the evaluation. Where the configuration says that
    (bn.eval_stats = "own"), the other row is "local(2) by running".
    """
    name: str
    mode: str  # the cell's name: "local(2)"
    eval_stats: Optional[str]  # of the evaluation: "device0", "own"; None in a file of an earlier version
    score: Spread  # in percent
    by_seed: Dict[int, float]


@dataclass(frozen=True)
class Best:
    """The row with the highest mean. "Settled": there are enough seeds to show anything."""
    row: str
    settled: bool
    better_than: List[str]  # rows that it is shown to be better than
    not_told_apart: List[str]
    claim: str  # "Highest: sync, mIoU 45.00; better than local (6 seeds, 1 difference tested together)"
    cost: str  # what it costs to use the mode and the evaluation


@dataclass(frozen=True)
class Difference:
    """The score of row `a` minus that of row `b`, seed by seed, in points (percent).

    Where `kind` is "too few seeds", no interval and no p-value says anything: look at the seeds.
    """
    a: str
    b: str
    seeds: List[int]
    by_seed: Array  # float64 [seeds]
    difference: float  # the mean
    interval: Optional[Interval]  # Student's 95 % interval of the mean; None below two seeds
    p: float  # of the exact sign-flip test
    p_adjusted: float  # for all differences that are tested: step-down, on a curve the largest of its sequence so far
    kind: str  # "better", "alike", "too few seeds", "undecided", "not comparable"
    verdict: str
    answer: str  # "sync - local = +13.10 mIoU [+11.00, +15.20], 6 seeds, p = 0.0312"
    more_seeds: int  # the fewest with which the test could settle it


@dataclass(frozen=True)
class CurvePoint:
    """One mode with so many images per device, evaluated in one way. `images` is None where they make no difference."""
    line: str  # "local", "local by own"
    images: Optional[int]
    cell: str  # the row: "local(2)", "local(2) by own"
    score: Spread
    interval: Optional[Interval]  # of the mean score; None where seeds are too few

    @property
    def mode(self) -> str:
        """Without what it is evaluated by: "local" of "local by own"."""
        return self.line.split(" ")[0]


@dataclass(frozen=True)
class Curve:
    """The score over the images that share statistics."""
    global_batch: int
    images_per_device: List[int]
    points: List[CurvePoint]

    @property
    def lines(self) -> List[str]:
        """A line for each mode, and for each other evaluation of it."""
        return list(dict.fromkeys(point.line for point in self.points))

    def to_table(self) -> Table:
        """A row per point: line, mode, images (nan: any number), cell, n, mean, sd, low, high."""
        return Table.from_records([
            {"line": point.line, "mode": point.mode, "images": point.images, "cell": point.cell, "n": point.score.n,
             "mean": point.score.mean, "sd": point.score.sd, "low": point.interval[0] if point.interval else None,
             "high": point.interval[1] if point.interval else None} for point in self.points])


class Comparison:
    """What `lockstep compare` has found. `lockstep docs compare` says how to read it."""

    def __init__(self, path: Path, found: Dict[str, Any]):
        self.path = path.absolute()  # files are read later, maybe from another folder
        self._found = found
        self.score_name: str = found["score"]  # "mIoU" or "top1"
        self.cells: Dict[str, Cell] = {mode["mode"]: _cell(mode, self.score_name) for mode in found["modes"]}
        self.rows: Dict[str, Row] = {row.name: row for row in _rows(found, self.score_name)}  # what is compared
        self.best: Optional[Best] = _best(found["best"]) if found.get("best") else None  # None of a curve
        self.differences: List[Difference] = [_difference(pair) for pair in found["pairs"]]
        self.curve: Optional[Curve] = _curve(found["curve"], self.score_name) if "curve" in found else None
        self.warnings: List[str] = list(found.get("warnings", []))
        self.failed: List[Dict[str, Any]] = list(found.get("failed", []))  # mode, seed and error of runs that cannot train

    def __fspath__(self) -> str:
        """A comparison stands for its folder wherever a path is taken."""
        return str(self.path)

    def __repr__(self) -> str:
        return f"Comparison({str(self.path)!r}, {', '.join(self.cells)}, {len(self.seeds)} seeds)"

    def __str__(self) -> str:
        first = [f"{self.best.claim}.", f"{self.best.cost}."] if self.best else []
        return "\n".join([*first, self.answers, *self.verdicts])

    def _repr_html_(self) -> str:
        """What a notebook shows: the answer, a row for each way to evaluate a mode, and the differences."""
        first = f"<p><b>{escape(self.best.claim)}.</b> {escape(self.best.cost)}.</p>" if self.best else ""
        rows = Table.from_records([{"row": row.name, f"{self.score_name}, mean": row.score.mean, "sd": row.score.sd, "seeds": row.score.n}
                                   for row in self.rows.values()])
        said = "".join(f"<li>{escape(verdict)}</li>" for verdict in self.verdicts)
        return f"{first}{rows._repr_html_()}<ul>{said}</ul>"

    @property
    def modes(self) -> List[str]:
        """The modes, without numbers of images and evaluations, in the order in which they were asked for."""
        if self.curve:
            return list(dict.fromkeys(point.mode for point in self.curve.points))
        return list(dict.fromkeys(cell.mode for cell in self.cells.values()))

    @property
    def seeds(self) -> List[int]:
        """All seeds that any mode has."""
        return sorted({seed for cell in self.cells.values() for seed in cell.by_seed})

    @property
    def answers(self) -> str:
        """The program's line for every difference."""
        return "\n".join(difference.answer for difference in self.differences)

    @property
    def verdicts(self) -> List[str]:
        """What each difference shows, in a sentence."""
        return [f"{difference.verdict}." for difference in self.differences]

    @cached_property
    def text(self) -> str:
        """comparison.md: the tables of the terminal, in Markdown."""
        return (self.path / "comparison.md").read_text(encoding="utf-8")

    def difference(self, a: str, b: str) -> Difference:
        """The score of row `a` minus that of `b`. Raises KeyError where these were not compared, or the other way round."""
        for difference in self.differences:
            if (difference.a, difference.b) == (a, b):
                return difference
        there = ", ".join(f"{each.a} - {each.b}" for each in self.differences)
        raise KeyError(f"there is no difference {a} - {b}; there are: {there or 'none'}")

    @property
    def scores(self) -> Table:
        """A row per run: mode (the cell's name), seed, score as the runs are evaluated; `rows` have the others."""
        return Table.from_records([{"mode": cell.name, "seed": seed, self.score_name: score}
                                   for cell in self.cells.values() for seed, score in cell.by_seed.items()])

    def difference_table(self) -> Table:
        """A row per difference: a, b, seeds, difference, low, high, p, p_adjusted, kind, verdict."""
        return Table.from_records([
            {"a": each.a, "b": each.b, "seeds": len(each.seeds), "difference": each.difference,
             "low": each.interval[0] if each.interval else None, "high": each.interval[1] if each.interval else None,
             "p": each.p, "p_adjusted": each.p_adjusted, "kind": each.kind, "verdict": each.verdict}
            for each in self.differences])

    def run(self, mode: str, seed: int = 0) -> Run:
        """The run of a mode (a cell's name, such as "local(2)") and a seed.

        The run of "local(2)" calls itself `ghost`: on a curve slices stand for devices. Raises KeyError where the comparison
        has no such run, FormatError where its folder is gone.
        """
        if mode not in self.cells:
            raise KeyError(f"there is no mode {mode}; there are: {', '.join(self.cells)}")
        runs = self.cells[mode].runs
        if runs and seed not in runs:
            raise KeyError(f"{mode} has no run of seed {seed}; its seeds are: {', '.join(map(str, runs))}")
        if runs:
            return read_run(self.path / runs[seed])
        # As `compare` names the folders, of which older versions do not tell: local(2) is local-n2, sync:top:3 is sync-top3.
        name = re.sub(r"\((\d+)\)$", r"-n\1", mode).replace(":top:", "-top")
        return read_run(self.path / f"{name}-s{seed}")

    def plot_curve(self, ax: Any = None) -> Any:
        """Draws the score over images per device with the intervals of the means, by matplotlib, and returns the axes.

        Raises FormatError where the comparison has no curve, MissingPackageError without matplotlib.
        """
        if self.curve is None:
            raise FormatError(f"{self.path}: expected a comparison over images per device, and this one has no curve; "
                              f"make one by compare(..., images_per_device=[1, 2, 4])")
        axes = axes_of(ax)
        for line in self.curve.lines:
            points = [point for point in self.curve.points if point.line == line]
            drawn = [(images, point) for point in points
                     for images in ([point.images] if point.images else self.curve.images_per_device)]
            images = [at for at, _ in drawn]
            means = np.array([point.score.mean for _, point in drawn])
            low = [point.score.mean - (point.interval[0] if point.interval else point.score.mean) for _, point in drawn]
            high = [(point.interval[1] if point.interval else point.score.mean) - point.score.mean for _, point in drawn]
            axes.errorbar(images, means, yerr=np.array([low, high]), marker="o", capsize=3, label=line,
                          linestyle="-" if points[0].mode == line else ":")
        axes.set_xscale("log", base=2)
        axes.set_xticks(self.curve.images_per_device, [str(images) for images in self.curve.images_per_device])
        axes.set_xlabel(f"images that share statistics, of {self.curve.global_batch} per step")
        axes.set_ylabel(f"{self.score_name}, %")
        axes.legend()
        return axes

    def plot_differences(self, ax: Any = None) -> Any:
        """Draws every difference with its interval and its seeds, by matplotlib, and returns the axes.

        Raises MissingPackageError without matplotlib.
        """
        axes = axes_of(ax)
        for row, difference in enumerate(self.differences):
            axes.plot(difference.by_seed, np.full(len(difference.by_seed), row), "|", color="gray")
            if difference.interval and difference.kind != "too few seeds":
                axes.plot(difference.interval, [row, row], color="black")
            axes.plot([difference.difference], [row], "o", color="black")
        axes.axvline(0, color="gray", linewidth=0.8)
        axes.set_yticks(range(len(self.differences)), [f"{each.a} - {each.b}" for each in self.differences])
        axes.invert_yaxis()
        axes.set_xlabel(f"difference in {self.score_name}, points")
        return axes


def read_comparison(folder: PathLike) -> Comparison:
    """Reads the folder of a comparison. Raises FormatError where it is none."""
    path = Path(path_text(folder))
    expect_folder(path, "the folder of a comparison", "comparison.json")
    return comparison_of(path, read_json(path / "comparison.json"))


def comparison_of(path: Path, found: Any) -> Comparison:
    """From what comparison.json holds. Raises FormatError where that is something else."""
    file = path / "comparison.json"
    if not isinstance(found, dict):
        raise FormatError(f"{file}: expected an object, got {type(found).__name__}; the file is damaged")
    check_schema(found.get("schema"), file)
    try:
        return Comparison(path, found)
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"{file}: {type(error).__name__} {error}: something is missing or is no number; the file is "
                          f"damaged. `lockstep compare {path} -o {path}` writes it again") from error


def _number(value: Optional[float]) -> float:
    return float("nan") if value is None else float(value)


def _spread(found: Dict[str, Any]) -> Spread:
    return Spread(int(found["n"]), _number(found["mean"]), _number(found["sd"]))


def _interval(found: Optional[List[float]]) -> Optional[Interval]:
    return (float(found[0]), float(found[1])) if found else None


def _cell(mode: Dict[str, Any], score: str) -> Cell:
    known = {score, f"{score}_by_seed", f"{score}_by_eval_stats"}
    return Cell(name=mode["mode"], devices=mode["devices"], score=_spread(mode[score]),
                by_seed={int(seed): float(reached) for seed, reached in mode[f"{score}_by_seed"].items()},
                runs={int(seed): run for seed, run in mode.get("runs", {}).items()},
                sync_layers=list(mode.get("sync_layers", [])),
                figures={name: _spread(value) for name, value in mode.items()
                         if name not in known and isinstance(value, dict) and "mean" in value},
                batch_norm=Table.from_records(mode.get("batch_norms", [])))


def _rows(found: Dict[str, Any], score: str) -> List[Row]:
    # Earlier versions compared modes.
    rows = found.get("rows", [{**mode, "row": mode["mode"]} for mode in found["modes"]])
    return [Row(name=row["row"], mode=row["mode"], eval_stats=row.get("eval_stats"), score=_spread(row[score]),
                by_seed={int(seed): float(reached) for seed, reached in row[f"{score}_by_seed"].items()}) for row in rows]


def _best(best: Dict[str, Any]) -> Best:
    return Best(row=best["row"], settled=bool(best["settled"]), better_than=list(best["better_than"]),
                not_told_apart=list(best["not_told_apart"]), claim=best["claim"], cost=best["cost"])


def _difference(pair: Dict[str, Any]) -> Difference:
    # Earlier versions adjusted by Holm.
    adjusted = next((pair[name] for name in ("p_step_down", "p_sequence", "p_holm") if name in pair), pair["p_value"])
    verdict = pair["verdict"]
    return Difference(a=pair["a"], b=pair["b"], seeds=[int(seed) for seed in pair["seeds"]],
                      by_seed=np.array(pair["differences"], dtype=np.float64), difference=_number(pair["mean"]),
                      interval=_interval(pair["interval"]), p=_number(pair["p_value"]), p_adjusted=_number(adjusted),
                      kind=verdict["kind"], verdict=verdict["text"], answer=pair["answer"],
                      more_seeds=int(verdict["more_seeds"]))


def _curve(found: Dict[str, Any], score: str) -> Curve:
    points = [CurvePoint(line=line["mode"], images=point["images"], cell=point["cell"], score=_spread(point[score]),
                         interval=_interval(point["interval"])) for line in found["lines"] for point in line["points"]]
    return Curve(global_batch=int(found["global_batch"]), images_per_device=list(found["images_per_device"]), points=points)
