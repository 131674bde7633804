"""One training, by the files of its folder."""
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Union

import numpy as np

from ._arguments import PathLike, path_text
from ._json_files import check_schema, read_json, read_json_lines
from ._safetensors import read_safetensors
from ._toml import read_toml
from .errors import FormatError, expect_folder, missing
from .figures import axes_of
from .table import Table


class Run:
    """The folder of a run; `lockstep docs run_folder` says what each column means. A file is read when it is asked for.

    A run that was killed, or still goes on, can be read as far as it has come. After a resume the lines of steps that were
    trained again do not count.
    """

    def __init__(self, path: Path):
        self.path = path.absolute()  # files are read later, maybe from another folder

    def __fspath__(self) -> str:
        """A run stands for its folder wherever a path is taken."""
        return str(self.path)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, {self.mode}, seed {self.seed}, {self.status})"

    @cached_property
    def config(self) -> Dict[str, Any]:
        """The resolved configuration: config["bn"]["mode"]."""
        return read_toml(self.path / "config.toml")

    @cached_property
    def environment(self) -> Dict[str, Any]:
        """Versions, compiler, processor, devices, the choices of convolutions."""
        environment: Dict[str, Any] = read_json(self.path / "env.json")
        return environment

    @cached_property
    def events(self) -> List[Dict[str, Any]]:
        """The lines of events.jsonl that count, each with a `type`."""
        kept: List[Dict[str, Any]] = []
        for event in read_json_lines(self.path / "events.jsonl"):
            if "type" not in event:
                raise FormatError(f"{self.path / 'events.jsonl'}: expected lines with a type, got {event}; the file is damaged")
            if event.get("type") == "resume":
                kept = [earlier for earlier in kept if earlier.get("step", 0) <= event["step"] and earlier["type"] != "end"]
            kept.append(event)
        return kept

    def events_of(self, *types: str) -> List[Dict[str, Any]]:
        """The events of these types, without the key `type`."""
        return [{name: value for name, value in event.items() if name != "type"}
                for event in self.events if event["type"] in types]

    def _repr_html_(self) -> str:
        """What a notebook shows: what the run is, and its evaluations."""
        about = f"{self.path}: {self.mode}, seed {self.seed}, {self.status}"
        shown = Table({name: column for name, column in self.evaluations.items() if column.dtype != object and column.ndim == 1})
        return f"<p>{escape(about)}</p>{shown._repr_html_()}"

    @property
    def header(self) -> Dict[str, Any]:
        """The first event: schema, hash of the configuration, devices, mode, seed."""
        return self.events[0]

    @property
    def mode(self) -> str:
        """bn.mode."""
        return str(self.header["bn_mode"])

    @property
    def seed(self) -> int:
        """run.seed."""
        return int(self.header["seed"])

    @property
    def status(self) -> str:
        """"done", "interrupted" or "failed"; "no end" where the run goes on or was killed."""
        return str(self.events[-1]["status"]) if self.events[-1]["type"] == "end" else "no end"

    @property
    def summary(self) -> Optional[Dict[str, Any]]:
        """What the end of a run that is done sums up; None before."""
        summary: Optional[Dict[str, Any]] = self.events[-1].get("summary")
        return summary

    @cached_property
    def scalars(self) -> Table:
        """A row for each log line of the training: step, epoch, lr, grad_norm, loss (the mean since the last line)."""
        return self._logged("scalars.json")

    @cached_property
    def timing(self) -> Table:
        """A row for each log line: seconds per step (time, data_time, compute, bn_wait, exchange), memory in MB."""
        return self._logged("timing.jsonl")

    @cached_property
    def evaluations(self) -> Table:
        """A row for each evaluation and choice of running statistics (`eval_stats`): scores in percent, loss, and the
        `confusion` matrix [classes, classes], whose rows are labels. `averaged`: of the weights' average (ema.decay)."""
        records = [{**event, "averaged": averaged} for averaged, kind in ((False, "eval"), (True, "eval_ema"))
                   for event in self.events_of(kind)]
        return Table.from_records(sorted(records, key=lambda record: int(record["step"])))

    @cached_property
    def batch_norm(self) -> Table:
        """A row for each log line and layer: how the parts of a batch differ (`between`, `within`, `log_var_ratio`, ...)."""
        return Table.from_records(self.events_of("bn"))

    @cached_property
    def ranks(self) -> Table:
        """A row for each log line and device: its loss, times in seconds, memory in bytes."""
        return Table.from_records(self.events_of("rank"))

    def state_dict(self, which: str = "last", as_torch: bool = False) -> Dict[str, Any]:
        """The weights of a checkpoint under PyTorch's names, as NumPy arrays or with `as_torch` as tensors.

        `which`: "last", "best", "iter_N" or another name in ckpt/. Raises FormatError where it is not there.
        """
        file = self.path / "ckpt" / f"{which}.safetensors"
        if not file.is_file():
            there = sorted(found.stem for found in file.parent.glob("*.safetensors")
                           if not found.name.endswith(".state.safetensors"))
            raise FormatError(f"{self.path}: there is no checkpoint {which!r}; there are: {', '.join(there) or 'none'}")
        arrays, _ = read_safetensors(file)
        if not as_torch:
            return dict(arrays)
        try:
            import torch
        except ImportError:
            raise missing("torch", "state_dict(as_torch=True)") from None
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def plot(self, keys: Union[str, Sequence[str]] = "loss", ax: Any = None) -> Any:
        """Draws columns of `scalars` or `evaluations` ("mIoU") over the steps by matplotlib, and returns the axes.

        Raises MissingPackageError without matplotlib, KeyError for a column that is in neither.
        """
        axes = axes_of(ax)
        for key in [keys] if isinstance(keys, str) else keys:
            if key in self.scalars:
                axes.plot(self.scalars["step"], self.scalars[key], label=key)
                continue
            of_weights = self.evaluations
            if key not in of_weights:
                raise KeyError(f"{self.path} has no column {key!r}; there are {', '.join([*self.scalars, *of_weights])}")
            used = of_weights.where(averaged=False, eval_stats=of_weights["eval_stats"][0])
            if used[key].ndim == 3:
                return self._plot_matrix(key, used, axes)
            axes.plot(used["step"], used[key], marker="o", label=key)
        axes.set_xlabel("step")
        axes.set_title(f"{self.mode}, seed {self.seed}")
        axes.legend()
        return axes

    def _plot_matrix(self, key: str, evaluations: Any, axes: Any) -> Any:
        """The last of matrices [labels, classes], each row as shares of its label."""
        matrix = evaluations[key][-1].astype(float)
        image = axes.imshow(matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1), vmin=0, vmax=1, cmap="Blues")
        axes.figure.colorbar(image, ax=axes, label="share of the label")
        names = (self.summary or {}).get("classes")
        if names:
            axes.set_xticks(range(len(names)), names, rotation=90)
            axes.set_yticks(range(len(names)), names)
        axes.set_xlabel("predicted")
        axes.set_ylabel("label")
        axes.set_title(f"{self.mode}, seed {self.seed}, step {int(evaluations['step'][-1])}")
        return axes

    def to_tensorboard(self, folder: Union[str, Path]) -> None:
        """Writes `scalars` ("train/loss") and `evaluations` ("val/mIoU", and "val by own/mIoU") for TensorBoard.

        Raises MissingPackageError without PyTorch and tensorboard.
        """
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise missing("tensorboard", "to_tensorboard(), beside PyTorch,") from None
        with SummaryWriter(str(folder)) as writer:  # type: ignore[no-untyped-call, unused-ignore]
            evaluations = [] if len(self.evaluations) == 0 else self.evaluations.where(averaged=False).records()
            for record in [*self.scalars.records(), *evaluations]:
                stats = record.get("eval_stats")
                group = "train" if stats is None else "val" if stats == self.evaluations["eval_stats"][0] else f"val by {stats}"
                for name, value in record.items():
                    if name not in ("step", "averaged") and isinstance(value, (np.number, float)):
                        writer.add_scalar(f"{group}/{name}", value, int(record["step"]))  # type: ignore[no-untyped-call, unused-ignore]

    def _logged(self, name: str) -> Table:
        lines = read_json_lines(self.path / name)
        steps = {line["step"]: line for line in lines if line.get("mode") == "train"}  # the last one of a step counts
        return Table.from_records([steps[step] for step in sorted(steps)], leave_out=("mode", "iter"))


def read_run(folder: PathLike) -> Run:
    """Reads the folder of a run. Raises FormatError where it is none."""
    path = Path(path_text(folder))
    expect_folder(path, "the folder of a run", "events.jsonl")
    run = Run(path)
    if not run.events or run.events[0].get("type") != "header":
        raise FormatError(f"{path / 'events.jsonl'}: expected a header in the first line; the run has not begun, or the "
                          f"file is damaged")
    check_schema(run.header.get("schema"), path / "events.jsonl")
    return run
