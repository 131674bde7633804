"""What goes wrong, by who has to act: one exception for each exit code of the program, and those of the readers."""
import signal
from pathlib import Path
from typing import Any, Dict, List, Tuple, Type


class LockstepError(Exception):
    """Base of all errors of this package. The text says what was expected, what came and what to do."""


class FormatError(LockstepError):
    """A folder or file is not what it should be: not a run, damaged, or of a later schema."""


class MissingPackageError(LockstepError, ImportError):
    """A package that only some functions need (pandas, matplotlib, PyTorch) is not installed."""


class ProgramNotFoundError(LockstepError):
    """There is no program to run."""


class ProgramError(LockstepError):
    """The program failed.

    `exit_code` is negative where a signal ended it, `message` is what the program said, `command` its command line (empty
    where an argument was refused before it ran), and `output` what it had written to stdout.
    `comparison`: where `compare` has trained some modes and could not train others, what it has.
    """

    def __init__(self, message: str, exit_code: int, command: List[str]):
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code
        self.command = command
        self.output = ""
        self.comparison: Any = None  # a Comparison, which is built on this module

    def __reduce__(self) -> Tuple[Any, ...]:
        return type(self), (self.message, self.exit_code, self.command), self.__dict__


class ProgramFailure(ProgramError):
    """Exit code 1: any other failure, also a mode that cannot train; or a signal."""


class ConfigError(ProgramError, ValueError):
    """Exit code 2: usage or configuration; also an argument of a function of this package."""


class DataError(ProgramError):
    """Exit code 3: data."""


class NonFiniteError(ProgramError):
    """Exit code 4: a loss or gradient is not finite."""


class ReplicaError(ProgramError):
    """Exit code 5: a replica stalled or failed."""


class InterruptedRunError(ProgramError, KeyboardInterrupt):
    """Exit code 130: a signal asked the program to stop. It has saved; the same call goes on with a comparison,
    `resume=True` with a training. -2: the signal ended a program that had nothing to save."""


BY_EXIT_CODE: Dict[int, Type[ProgramError]] = {
    1: ProgramFailure, 2: ConfigError, 3: DataError, 4: NonFiniteError, 5: ReplicaError, 130: InterruptedRunError,
    -signal.SIGINT: InterruptedRunError}


def error_for(exit_code: int, message: str, command: List[str]) -> ProgramError:
    """The exception for an exit code that is not 0."""
    return BY_EXIT_CODE.get(exit_code, ProgramFailure)(message, exit_code, command)


def missing(package: str, purpose: str) -> MissingPackageError:
    """The error that says which package is wanted, and for what."""
    return MissingPackageError(f"{purpose} needs the package {package}, which is not installed: pip install {package}")


def expect_folder(folder: Path, what: str, file: str) -> None:
    """Raises FormatError unless `folder` is one that has `file`."""
    if not folder.is_dir():
        raise FormatError(f"{folder}: expected {what}, a folder; there is none of this name")
    if not (folder / file).is_file():
        raise FormatError(f"{folder}: expected {what}, but there is no {file} in it{_instead(folder)}")


def _instead(folder: Path) -> str:
    if (folder / "comparison.json").is_file():
        return "; it is a comparison, for read_comparison()"
    if (folder / "events.jsonl").is_file():
        return "; it is a run, for read_run()"
    return ""
