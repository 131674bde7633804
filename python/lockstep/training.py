"""Trainings and comparisons, by the program."""
import json
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, List, Mapping, Optional, Sequence, Union

from ._arguments import Numbers, PathLike, image_counts, path_text, refused, seeds_of
from ._program import run_program
from ._progress import Progress
from ._toml import settings_of, write_toml
from .comparison import Comparison, comparison_of
from .errors import ProgramError
from .run import Run, read_run

Config = Union[PathLike, Mapping[str, Any]]
Settings = Mapping[str, Any]


def train(config: Config, *, output: PathLike, devices: Optional[str] = None, settings: Optional[Settings] = None,
          init: Optional[PathLike] = None, resume: bool = False, exist_ok: bool = False, progress: Progress = True) -> Run:
    """Trains by `lockstep train` and reads the run.

    config: a TOML file, or its tables as a dictionary. output: the folder of the run. devices: "cpu:4", "cuda:all", ...;
    default: all GPUs, else one CPU device. settings: keys that override the configuration's, {"run.max_iters": 6} or
    {"run": {"max_iters": 6}}. init: weights to start from. resume: go on with the run in the folder. exist_ok: the same
    where there is one, else begin; so the same call gives the same run.
    progress: True shows the program's lines on stderr, a function gets each, False shows none.

    Raises ProgramNotFoundError, and the ProgramError of the program's exit code with its message (lockstep.errors).
    """
    with ExitStack() as stack:
        arguments = ["train", config_file(config, stack), "-o", path_text(output)]
        arguments += common_arguments(devices, settings)
        arguments += ["--init", path_text(init)] if init is not None else []
        arguments += ["--resume"] if resume or exist_ok and (Path(output) / "events.jsonl").is_file() else []
        run_program(arguments, progress, keep_stdout=False)
    return read_run(output)


def compare(config: Config, *, output: PathLike, modes: Union[str, Sequence[str]] = ("local", "sync"), seeds: Numbers = 3,
            devices: Optional[str] = None, images_per_device: Optional[Numbers] = None, settings: Optional[Settings] = None, images: bool = True,
            progress: Progress = True) -> Comparison:
    """Trains every mode with each seed by `lockstep compare` and reads the comparison.

    The same call again goes on where one was interrupted; with more seeds it trains the missing ones.
    modes: a list, or a word with commas ("local,sync"). seeds: how many, from 0 on, or some that follow one another, [3, 4].
    images_per_device: numbers of images that share statistics, for a curve. images: example images in report.html. The other
    arguments are those of train().

    Raises as train() does. Where a mode cannot train, the others are trained all the same: the ProgramFailure then has
    them as its `comparison`.
    """
    with ExitStack() as stack:
        arguments = ["compare", config_file(config, stack), "-o", path_text(output), "--json",
                     "--modes", modes if isinstance(modes, str) else ",".join(modes), *_seeds(seeds)]
        arguments += numbers_of_images(images_per_device)
        arguments += [] if images else ["--no-images"]
        arguments += common_arguments(devices, settings)
        try:
            found = json.loads(run_program(arguments, progress, keep_stdout=True))
        except ProgramError as error:
            if not error.output.strip():
                raise
            error.comparison = comparison_of(Path(output), json.loads(error.output))
            # The program has a result, and so no line of its own that says what failed.
            error.message = "\n".join(f"{run['mode']}, seed {run['seed']}, cannot train: {run['error']}"
                                      for run in error.comparison.failed)
            error.args = (error.message,)
            raise
    return comparison_of(Path(output), found)


def config_file(config: Config, stack: ExitStack) -> str:
    """The configuration's file; of a dictionary a temporary one, which goes when the stack does."""
    if not isinstance(config, Mapping):
        return path_text(config)
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="lockstep-"))
    file = Path(folder) / "config.toml"
    file.write_text(write_toml(config), encoding="utf-8")
    return str(file)


def numbers_of_images(numbers: Optional[Numbers]) -> List[str]:
    """--images-per-device, where there are any."""
    if numbers is None:
        return []
    return ["--images-per-device", ",".join(map(str, image_counts(numbers)))]


def _seeds(seeds: Numbers) -> List[str]:
    """Raises ConfigError for a list with a gap."""
    listed = seeds_of(seeds)
    if listed != list(range(listed[0], listed[0] + len(listed))):
        raise refused(f"expected seeds that follow one another, such as [3, 4], got {listed}")
    return ["--seeds", str(len(listed)), "--first-seed", str(listed[0])]


def common_arguments(devices: Optional[str], settings: Optional[Settings]) -> List[str]:
    """Those that all commands have. Raises ConfigError for devices that are no word."""
    if devices is not None and not isinstance(devices, str):
        raise refused(f"expected devices as a word, such as \"cpu:2\" for two on the processor, or \"cuda:0,1\", got {devices!r}")
    arguments = ["-d", devices] if devices is not None else []
    for key, value in settings_of(settings or {}):
        arguments += ["-s", f"{key}={value}"]
    return arguments
