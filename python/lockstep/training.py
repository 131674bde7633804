"""Trainings and comparisons, by the program."""
import json
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, List, Mapping, Optional, Sequence, Union

from ._program import Progress, run_program
from ._toml import settings_of, write_toml
from .comparison import Comparison, comparison_of
from .errors import ProgramError
from .run import Run, read_run

PathLike = Union[str, Path]
Config = Union[str, Path, Mapping[str, Any]]
Settings = Mapping[str, Any]


def train(config: Config, *, output: PathLike, devices: Optional[str] = None, settings: Optional[Settings] = None,
          init: Optional[PathLike] = None, resume: bool = False, progress: Progress = True) -> Run:
    """Trains by `lockstep train` and reads the run.

    config: a TOML file, or its tables as a dictionary. output: the folder of the run. devices: "cpu:4", "cuda:all", ...;
    default: all GPUs, else one CPU device. settings: keys that override the configuration's, {"run.max_iters": 6} or
    {"run": {"max_iters": 6}}. init: weights to start from. resume: go on with the run in the folder.
    progress: True shows the program's lines on stderr, a function gets each, False shows none.

    Raises ProgramNotFoundError, and the ProgramError of the program's exit code with its message (lockstep.errors).
    """
    with ExitStack() as stack:
        arguments = ["train", config_file(config, stack), "-o", str(output)]
        arguments += common_arguments(devices, settings)
        arguments += ["--init", str(init)] if init is not None else []
        arguments += ["--resume"] if resume else []
        run_program(arguments, progress, keep_stdout=False)
    return read_run(output)


def compare(config: Config, *, output: PathLike, modes: Union[str, Sequence[str]] = ("local", "sync"), seeds: int = 3,
            devices: Optional[str] = None, images_per_device: Optional[Sequence[int]] = None,
            settings: Optional[Settings] = None, images: bool = True, progress: Progress = True) -> Comparison:
    """Trains every mode with seeds 0 .. seeds - 1 by `lockstep compare` and reads the comparison.

    The same call again goes on where one was interrupted; with more seeds it trains the missing ones.
    modes: a list, or a word with commas ("local,sync"). images_per_device: numbers of images that share statistics, for a curve. images: example images in report.html.
    The other arguments are those of train().

    Raises as train() does. Where a mode cannot train, the others are trained all the same: the ProgramFailure then has
    them as its `comparison`.
    """
    with ExitStack() as stack:
        arguments = ["compare", config_file(config, stack), "-o", str(output), "--json", "--modes", modes if isinstance(modes, str) else ",".join(modes),
                     "--seeds", str(seeds)]
        if images_per_device is not None:
            arguments += ["--images-per-device", ",".join(str(number) for number in images_per_device)]
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
        return str(config)
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="lockstep-"))
    file = Path(folder) / "config.toml"
    file.write_text(write_toml(config), encoding="utf-8")
    return str(file)


def common_arguments(devices: Optional[str], settings: Optional[Settings]) -> List[str]:
    """Those that all commands have. Raises ValueError for devices that are no word."""
    if devices is not None and not isinstance(devices, str):
        raise ValueError(f"expected devices as a word, such as \"cpu:2\" or \"cuda:0,1\", got {devices!r}; write "
                         f"devices=\"cpu:{devices}\" for as many devices on the processor")
    arguments = ["-d", devices] if devices is not None else []
    for key, value in settings_of(settings or {}):
        arguments += ["-s", f"{key}={value}"]
    return arguments
