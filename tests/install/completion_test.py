#!/usr/bin/env python3
"""Presses Tab in bash and in zsh, each on a terminal of its own, with the scripts of tools/completion.

completion_test.py SOURCE BUILD LOCKSTEP. A shell that is not installed is SKIPPED.
"""
import os
import pty
import re
import select
import shutil
import sys
import tempfile
import time
from pathlib import Path

# What is typed before Tab, and what the line then is, a space at its end included.
CASES = [
    ("lockstep sel", "lockstep selftest "),
    ("true; NO_COLOR=1 lockstep sel", "true; NO_COLOR=1 lockstep selftest "),
    ("lockstep eval --config=mi", "lockstep eval --config=mine.toml "),
    ("lockstep train --resu", "lockstep train --resume "),
    ("lockstep train mi", "lockstep train mine.toml "),
    ("lockstep eval ru", "lockstep eval runs/"),
    ("lockstep config init city", "lockstep config init cityscapes "),
    ("lockstep train mine.toml -s optim.weight", "lockstep train mine.toml -s optim.weight_decay="),
    ("lockstep train mine.toml -s bn.mode=gh", "lockstep train mine.toml -s bn.mode=ghost "),
    ("lockstep train mine.toml -s data.layout=cityscapes -d cpu:8", "lockstep train mine.toml -s data.layout=cityscapes "
                                                                      "-d cpu:8 "),
    ("lockstep compare mine.toml --modes local,gho", "lockstep compare mine.toml --modes local,ghost "),
    ("lockstep bench batch", "lockstep bench batch_norm "),
    ("lockstep logs export runs --csv note", "lockstep logs export runs --csv notes.txt "),
    ("lockstep docs run_", "lockstep docs run_folder "),
]
LIMIT = 20  # seconds until a shell that says nothing is a failure
PROMPT = "ready> "


class Terminal:
    """A shell that reads keys."""

    def __init__(self, command, folder, environment):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execvpe(command[0], command, environment)
        self.text = ""

    def send(self, keys):
        os.write(self.fd, keys.encode())

    def wait_for(self, pattern):
        """What has been printed up to the first match, without terminal codes."""
        end = time.monotonic() + LIMIT
        while True:
            found = re.search(pattern, self.text)
            if found:
                seen, self.text = self.text[:found.end()], self.text[found.end():]
                return seen
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.fd], [], [], left)[0]:
                raise TimeoutError(f"expected {pattern!r}, got {self.text!r}")
            data = os.read(self.fd, 65536).decode(errors="replace")
            self.text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\r|\x07", "", self.text + data)

    def close(self):
        os.kill(self.pid, 9)
        os.waitpid(self.pid, 0)
        os.close(self.fd)


def check(shell, terminal, wrong):
    for typed, expected in CASES:
        terminal.send(typed + "\t")
        # Ctrl-A and Ctrl-E: the line becomes what `show` is called with.
        terminal.send("\x01show '\x05'\n")
        seen = terminal.wait_for(r"<<[^>]*>>")
        line = re.search(r"<<([^>]*)>>", seen).group(1)
        terminal.wait_for(PROMPT)
        if shell == "zsh":  # which takes the space or slash back when another key is pressed
            expected = expected.rstrip(" /")
        if line != expected:
            wrong.append(f"{shell}: {typed!r} becomes {line!r}, expected {expected!r}")


def start(shell, source, folder, environment):
    if shell == "bash":
        terminal = Terminal(["bash", "--norc", "--noprofile", "-i"], folder, environment)
        setup = f"source {source}/tools/completion/lockstep; bind 'set enable-bracketed-paste off'"
    else:
        terminal = Terminal(["zsh", "-f", "-i"], folder, environment)
        setup = f"fpath=({source}/tools/completion $fpath); autoload -U compinit; compinit -u -D"
    terminal.send(setup + "; show() { printf '<%s>>\\n' \"<$1\"; }; PS1='rea''dy> '\n")
    terminal.wait_for(PROMPT)
    return terminal


def main():
    source, program = Path(sys.argv[1]).resolve(), Path(sys.argv[3]).resolve()
    wrong = []
    for shell in ("bash", "zsh"):
        if shutil.which(shell) is None:
            print(f"completion: SKIPPED: {shell} is not installed")
            continue
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "runs").mkdir()
            for name in ("mine.toml", "mirror.png", "notes.txt"):
                (Path(folder) / name).touch()
            environment = {"PATH": f"{program.parent}:/usr/bin:/bin", "TERM": "dumb", "HOME": folder, "LC_ALL": "C.UTF-8",
                           "COLUMNS": "200", "LINES": "50"}
            terminal = start(shell, source, folder, environment)
            try:
                check(shell, terminal, wrong)
            except TimeoutError as error:
                wrong.append(f"{shell}: {error}")
            terminal.close()
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
