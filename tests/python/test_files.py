"""The one function by which the package writes files."""
import os
import re
import stat
import threading
from pathlib import Path

import pytest

import lockstep
from lockstep._files import write_text

PACKAGE = Path(lockstep.__file__).parent


def test_files_are_opened_in_one_place():
    writes = re.compile(r"""\.write_text\(|\.write_bytes\(|open\([^)]*["'][wax]b?\+?["']|os\.replace|os\.rename|shutil\.(copy|move)""")
    found = {str(source.relative_to(PACKAGE)) for source in PACKAGE.rglob("*.py") if writes.search(source.read_text("utf-8"))}
    assert found == {"_files.py", "training.py"}  # that one writes into a temporary folder of its own


def test_a_file_is_replaced_in_one_piece_and_keeps_its_permissions(tmp_path):
    path = tmp_path / "a"
    write_text(path, "old")
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~_mask()
    path.chmod(0o600)
    write_text(str(path), "new \u00e4")
    assert path.read_text("utf-8") == "new \u00e4"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud800")
    assert path.read_text("utf-8") == "new \u00e4"
    assert os.listdir(tmp_path) == ["a"]


def test_links_stay_and_what_they_lead_to_is_written(tmp_path):
    target, link, below = tmp_path / "target", tmp_path / "link", tmp_path / "below"
    below.mkdir()
    link.symlink_to("target")
    (below / "link").symlink_to("../link")
    for path in (link, below / "link"):  # to a file that is not there, then to one that is
        write_text(path, str(path))
        assert path.is_symlink() and not target.is_symlink()
        assert target.read_text() == str(path)
    assert sorted(os.listdir(tmp_path)) == ["below", "link", "target"]


def test_pipes_and_open_files_are_written_through(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    heard = []
    reader = threading.Thread(target=lambda: heard.append(pipe.read_text()))
    reader.start()
    write_text(pipe, "new")
    reader.join()
    assert heard == ["new"] and stat.S_ISFIFO(pipe.lstat().st_mode)
    with open(tmp_path / "a", "w") as file:
        file.write("before ")
        file.flush()
        write_text(f"/proc/self/fd/{file.fileno()}", "new ")
        write_text(f"/dev/fd/{file.fileno()}", "new ")
        file.write("after")
    assert (tmp_path / "a").read_text() == "before new new after"


def test_a_link_to_itself_is_refused(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError):
        write_text(tmp_path / "loop", "new")
    assert (tmp_path / "loop").is_symlink()


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(IsADirectoryError):
        write_text(tmp_path, "new")
    assert not os.listdir(tmp_path)


def _mask():
    mask = os.umask(0)
    os.umask(mask)
    return mask
