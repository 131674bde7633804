#!/usr/bin/env python3
"""The programs of examples/ print what examples/README.md says.

    example_programs_test.py SOURCE PROGRAMS    PROGRAMS: the folder that the build puts them into
"""
import pathlib
import re
import subprocess
import sys
import tempfile


def expected_outputs(page):
    """{program: what it prints}: the ```text block under its title."""
    sections = re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", page, re.M | re.S)
    return {name: "".join(re.findall(r"^```text\n(.*?)^```", text, re.M | re.S)) for name, text in sections}


def check_programs(source, programs):
    """Ends the test where a program fails, prints something else, or is not on the page."""
    expected = expected_outputs((source / "examples/README.md").read_text())
    sources = {path.stem for path in (source / "examples").glob("*.cpp")}
    if set(expected) != sources:
        sys.exit(f"examples/README.md says what {sorted(expected)} print, examples/ holds {sorted(sources)}")
    for name, text in expected.items():
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([programs / name], cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode != 0 or done.stdout != text:
            sys.exit(f"{name} exits with {done.returncode} and prints\n{done.stdout}{done.stderr}\n"
                     f"but examples/README.md says\n{text}")
        print(f"{name}: ran, {len(text.splitlines())} lines, as the page says")


if __name__ == "__main__":
    check_programs(*(pathlib.Path(word).resolve() for word in sys.argv[1:3]))
