"""The program `lockstep`: where it is, and how it is run."""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections import deque
from pathlib import Path
from typing import IO, Callable, Deque, List, Match, Optional

from ._progress import Progress, teller
from .errors import ProgramNotFoundError, error_for

VARIABLE = "LOCKSTEP_PROGRAM"
_TAIL_LINES = 20
_ERROR = "lockstep: error: "
_INTERRUPTED = {130: "stopped; what was done is saved: the same call goes on with a comparison, resume=True with a training",
                -signal.SIGINT: "stopped, before there was anything to save"}
_WORDS = {"true": "True", "false": "False", **{word: f'float("{word}")' for word in ("nan", "inf", "-inf")}}  # TOML's


def bundled_program() -> Path:
    """Where a wheel with the program has it."""
    return Path(__file__).resolve().parent / "bin" / "lockstep"


def find_program() -> str:
    """The program's path: $LOCKSTEP_PROGRAM, else the one inside of this package, else the first `lockstep` on PATH.

    A console script of this package's own does not count. Raises ProgramNotFoundError.
    """
    named = os.environ.get(VARIABLE)
    if named:
        if _is_executable(Path(named)):
            return named
        raise ProgramNotFoundError(f"{VARIABLE} is {named}, which is no program; let it name the built program, such as "
                                   f"build/release/bin/lockstep")
    if _is_executable(bundled_program()):
        return str(bundled_program())
    for folder in os.get_exec_path():
        found = shutil.which("lockstep", path=folder)
        if found and not _is_script(Path(found)):
            return found
    raise ProgramNotFoundError(
        f"there is no program lockstep: {VARIABLE} is not set, {bundled_program()} is not there (this is the package "
        f"without the program), and PATH has none. Build it (tools/setup && tools/build release) and set "
        f"{VARIABLE}=build/release/bin/lockstep. Reading runs and lockstep.torch need no program")


def main() -> None:
    """The command `lockstep`: becomes the program, with this process's arguments."""
    try:
        program = find_program()
    except ProgramNotFoundError as error:
        print(f"{_ERROR}{error}", file=sys.stderr)
        sys.exit(1)
    os.execv(program, [sys.argv[0], *sys.argv[1:]])  # by this name it says how to go on


def run_program(arguments: List[str], progress: Progress, *, keep_stdout: bool) -> str:
    """Runs the program to its end. Its lines are what it says on stderr, and unless stdout is kept, there, too.

    `progress`: True passes the lines on to our stderr, a function gets each, False shows none. Returns stdout, if kept.
    An interrupt of this process (Ctrl-C) asks the program to stop. What saves does so, and then InterruptedRunError is raised,
    which is a KeyboardInterrupt.
    Raises ProgramNotFoundError and the ProgramError of the program's exit code.
    """
    command = [find_program(), *arguments]
    # A session of its own: a terminal's Ctrl-C goes to us alone, and the program gets it once.
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE if keep_stdout else subprocess.STDOUT,
                               text=True, encoding="utf-8", errors="replace", start_new_session=True)
    assert process.stdout is not None
    lines: IO[str] = process.stderr or process.stdout
    kept: List[str] = []
    reader = threading.Thread(target=lambda stream: kept.append(stream.read()), args=(process.stdout,), daemon=True)
    if keep_stdout:
        reader.start()
    said = _Said()
    interrupt: Optional[BaseException] = None
    try:
        said.follow(lines, teller(progress))
        process.wait()
    except BaseException as error:
        process.send_signal(signal.SIGINT)
        said.follow(lines, teller(False))
        process.wait()
        if not isinstance(error, KeyboardInterrupt):
            raise
        interrupt = error
    if keep_stdout:
        reader.join()
    stdout = "".join(kept)
    if process.returncode != 0:
        failure = error_for(process.returncode, _message(process.returncode, said), command)
        failure.output = stdout
        raise failure
    if interrupt is not None:  # the program was done when it came
        raise interrupt
    return stdout


def _is_executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _is_script(path: Path) -> bool:
    """Whether a file begins as a script does: then it is this package's console script, which would call itself."""
    with path.open("rb") as file:
        return file.read(2) == b"#!"


class _Said:
    """What is kept of the program's lines: the last ones, and errors with the indented lines that belong to them."""

    def __init__(self) -> None:
        self.tail: Deque[str] = deque(maxlen=_TAIL_LINES)
        self.errors: List[str] = []
        self._of_error = False

    def follow(self, stream: IO[str], tell: Callable[[str], None]) -> None:
        """Reads the stream to its end."""
        for line in stream:
            line = line.rstrip("\n")
            self.tail.append(line)
            self._of_error = line.startswith(_ERROR) or self._of_error and line.startswith(" ")
            if self._of_error:
                self.errors.append(line[len(_ERROR):] if line.startswith(_ERROR) else line)
            tell(line)


def _message(exit_code: int, said: _Said) -> str:
    """What the program said of its failure, in words of Python: its error, else its last lines."""
    if exit_code in _INTERRUPTED:
        return _INTERRUPTED[exit_code]
    text = _in_python("\n".join(said.errors or said.tail))
    if exit_code < 0:
        ended = f"the program was ended by signal {-exit_code} ({signal.Signals(-exit_code).name})"
        return f"{ended}; its last lines:\n{text}" if text else ended
    return text or f"the program ended with exit code {exit_code} and said nothing"


def _in_python(message: str) -> str:
    """Options of the command line as the arguments of train() and compare() that they stand for."""
    def setting(found: Match[str]) -> str:
        value = found.group(2)
        shown = _WORDS.get(value) or (value if re.fullmatch(r'[-+.\d]+(e[-+]?\d+)?|".*"|\[.*\]', value) else json.dumps(value))
        return f'settings={{"{found.group(1)}": {shown}}}'

    message = re.sub(r'(?<!\S)-s ([\w.]+)=("(?:[^"\\]|\\.)*"|\[.*?\](?=[:;.)\s]|$)|[^\s,;:)]*[^\s,;:).])', setting, message)
    message = message.replace("; is a variable of the shell not set?", "")
    message = re.sub(r"--resume( auto)?(?![-\w])", "resume=True", message)
    message = re.sub(r"--(modes|seeds|images-per-device|init|split|average|steps)(?![-\w])", lambda found: found.group(1).replace("-", "_"), message)
    message = re.sub(r"--count(?![-\w])", "images", message)
    return re.sub(r"(?<!\S)-([ods])(?![-\w])", lambda found: {"o": "output=", "d": "devices=", "s": "settings="}[found.group(1)],
                  message)
