"""Files that this package writes: all are opened here."""
import errno
import os
import stat
import tempfile
from pathlib import Path
from typing import IO, Union

_MOST_LINKS = 40  # as Linux has it


def write_text(path: Union[str, Path], text: str) -> None:
    """Writes the file in one piece: until all is there, the old one is. Raises OSError.

    Links are followed. What is no plain file, as a device, a pipe or an open file of this process (/dev/stdout), is written
    through and never replaced.
    """
    target = _without_links(os.fspath(path))
    folder, name = os.path.split(target)
    if folder == _descriptors():
        with os.fdopen(os.dup(int(name)), "w", encoding="utf-8") as file:
            file.write(text)
    elif os.path.exists(target) and not stat.S_ISREG(os.stat(target).st_mode):
        with open(target, "w", encoding="utf-8") as file:
            file.write(text)
    else:
        _replace(target, text)


def open_lines(path: Union[str, Path]) -> IO[str]:
    """A file of a folder of the package's own, for lines that come after those that it has."""
    return open(path, "a", encoding="utf-8")


def _descriptors() -> str:
    return os.path.realpath("/proc/self/fd")


def _without_links(path: str) -> str:
    """Where links lead, also to a file that is not there yet. Those to open files of a process are no names, and stay."""
    path = os.path.join(os.getcwd(), path)
    for _ in range(_MOST_LINKS):
        folder = os.path.realpath(os.path.dirname(path))
        path = os.path.join(folder, os.path.basename(path))
        if folder == _descriptors() or not os.path.islink(path):
            return path
        path = os.path.join(folder, os.readlink(path))
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)


def _replace(target: str, text: str) -> None:
    mode = stat.S_IMODE(os.stat(target).st_mode) if os.path.exists(target) else _new_mode()
    descriptor, temporary = tempfile.mkstemp(dir=os.path.dirname(target), suffix=".tmp")
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(temporary, mode)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def _new_mode() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
