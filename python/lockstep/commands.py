"""The program's other commands from Python: each returns what the command says with --json (docs/look_up/commands.md)."""
import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional, Sequence, Union

from ._arguments import Numbers, PathLike, path_text, refused
from ._program import run_program
from ._progress import Progress
from .training import Config, Settings, common_arguments, config_file, numbers_of_images


class Answer(Dict[str, Any]):
    """What a command has found, by its names: answer["mIoU"], or answer.mIoU where the name is a word."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"there is no {name!r} among {', '.join(self)}") from None

    def _repr_html_(self) -> str:
        """A row for each single value."""
        from html import escape
        rows = "".join(f"<tr><th style=\"text-align:left\">{escape(name)}</th><td>{escape(str(value))}</td></tr>"
                       for name, value in self.items() if not isinstance(value, (list, dict)))
        return f"<table>{rows}</table>"


def evaluate(target: PathLike, *, config: Optional[Config] = None, split: Optional[str] = None, per_image: bool = False,
             devices: Optional[str] = None, settings: Optional[Settings] = None, progress: Progress = False) -> Answer:
    """`lockstep eval`: scores of a run's last checkpoint, of a checkpoint, or with `config` of any weights."""
    arguments: List[str] = ["--split", split] if split is not None else []
    return _ask(["eval", target, *arguments, *(["--per-image"] if per_image else [])], config, devices, settings, progress)


def predict(target: PathLike, images: Union[PathLike, Iterable[PathLike]], *, output: PathLike, config: Optional[Config] = None,
            probabilities: bool = False, overlay: bool = True, force: bool = False, devices: Optional[str] = None,
            settings: Optional[Settings] = None, progress: Progress = True) -> Answer:
    """`lockstep predict`: class maps of image files and folders of them, in the folder `output`."""
    switches = [*(["--probabilities"] if probabilities else []), *([] if overlay else ["--no-overlay"]), *(["--force"] if force else [])]
    return _ask(["predict", target, *_several(images, "images: files and folders of them"), "-o", output, *switches], config, devices, settings, progress)


def export(target: PathLike, output: PathLike, *, config: Optional[Config] = None, average: Optional[int] = None,
           settings: Optional[Settings] = None) -> Answer:
    """`lockstep export`: the network as ONNX or safetensors, by the ending of `output`.

    average: of a run's newest checkpoints so many. Raises ConfigError for another ending.
    """
    kind = Path(path_text(output)).suffix[1:]
    if kind not in ("onnx", "safetensors"):
        raise refused(f"expected a file that ends with .onnx or .safetensors, got {output}")
    arguments = ["--average", str(average)] if average is not None else []
    return _ask(["export", kind, target, "-o", output, *arguments], config, None, settings, False)


def diagnose(target: Config, *, config: Optional[Config] = None, images_per_device: Optional[Numbers] = None,
             devices: Optional[str] = None, settings: Optional[Settings] = None, progress: Progress = False) -> Answer:
    """`lockstep diagnose`: which norm a training needs, and how to evaluate it, from a configuration, a run or weights."""
    return _ask(["diagnose", target, *numbers_of_images(images_per_device)], config, devices, settings, progress)


def plan(config: Config, *, steps: Optional[int] = None, devices: Optional[str] = None, settings: Optional[Settings] = None,
         progress: Progress = False) -> Answer:
    """`lockstep plan`: steps, memory and time of a training, before it. steps: to time."""
    return _ask(["plan", config, *(["--steps", str(steps)] if steps is not None else [])], None, devices, settings, progress)


def check_data(config: Config, *, images: Optional[int] = None, settings: Optional[Settings] = None,
               progress: Progress = False) -> Answer:
    """`lockstep data check`: classes, sizes and mistakes of a data set. images: to look at in each split; default: all.

    Raises DataError where a training would refuse the data.
    """
    return _ask(["data", "check", config, *(["-n", str(images)] if images is not None else [])], None, None, settings, progress)


def report(folders: Union[PathLike, Iterable[PathLike]], *, output: Optional[PathLike] = None, images: bool = True) -> Path:
    """`lockstep report`: writes one page of HTML about runs or comparisons, and returns where it is."""
    arguments = ["report", *_several(folders, "folders of runs or comparisons"), *(["-o", output] if output is not None else []), *([] if images else ["--no-images"])]
    return Path(_ask(arguments, None, None, None, False).page)


def _several(paths: Any, expected: str) -> List[Any]:
    found = list(paths) if isinstance(paths, Iterable) and not isinstance(paths, str) else [paths]
    if not found:
        raise refused(f"expected {expected}, got none")
    return found


def _ask(arguments: Sequence[Any], config: Optional[Config], devices: Optional[str], settings: Optional[Settings],
         progress: Progress) -> Answer:
    """`arguments`: words and paths; a dictionary stands for the configuration's file."""
    with ExitStack() as stack:
        words = [config_file(each, stack) for each in arguments]
        words += ["-c", config_file(config, stack)] if config is not None else []
        words += common_arguments(devices, settings)
        return Answer(json.loads(run_program([*words, "--json"], progress, keep_stdout=True)))
