#!/usr/bin/env python3
"""docs/look_up/features.md names test cases, rows of the self-test and keys of the configuration: all of them exist.

features.py ROOT LOCKSTEP, the project's folder and the program. Prints what is missing, and exits with 1 if anything is.
"""
import fnmatch
import json
import re
import subprocess
import sys
from pathlib import Path

FEATURES = 61
SECTIONS = "run|data|batch|memory|model|bn|loss|optim|schedule|ema"


def test_cases(folder: Path) -> list[str]:
    sources = "".join(path.read_text() for path in sorted(folder.glob("*.cpp")))
    return re.findall(r'TEST_CASE(?:_\w+)?\(\s*"((?:[^"\\]|\\.)*)"', sources)


def missing_cases(page: str, root: Path) -> list[str]:
    missing = []
    for module, pattern in re.findall(r'`test_(\w+) -tc="([^"]*)"`', page):
        if "," in pattern:
            missing.append(f"doctest takes \"{pattern}\" for several patterns: write * in place of the comma")
        elif not fnmatch.filter(test_cases(root / "tests" / module), pattern):
            missing.append(f"no test case of tests/{module} is called \"{pattern}\"")
    return missing


def missing_rows(page: str, lockstep: str) -> list[str]:
    result = subprocess.run([lockstep, "selftest", "-d", "cpu:4", "--json"], capture_output=True, text=True, check=False)
    ok = {row["name"] for row in json.loads(result.stdout)["rows"] if row["ok"]}
    names = re.findall(r'`selftest "([^"]*)"`', page)
    return [f"no row of the self-test that is ok is called \"{name}\"" for name in names if name not in ok]


def known_keys(schema: dict, section: str = "") -> set[str]:
    keys = set()
    for name, entry in schema["properties"].items():
        entry = entry.get("anyOf", [entry])[0]  # of a section that may be a list of them
        keys |= known_keys(entry, f"{section}{name}.") if "properties" in entry else {section + name}
    return keys


def missing_keys(page: str, lockstep: str) -> list[str]:
    schema = subprocess.run([lockstep, "config", "schema"], capture_output=True, text=True, check=True)
    known = known_keys(json.loads(schema.stdout))
    spans = " ".join(re.findall(r"`([^`]*)`", page))
    keys = sorted(set(re.findall(rf"(?<![\w/])(?:{SECTIONS})(?:\.[a-z_0-9]+)+", spans)))
    return [f"the configuration has no key {key}" for key in keys if key not in known]


def wrong_rows(page: str) -> list[str]:
    rows = re.findall(r"^\| (\d+) \|.*\| ([^|]*) \|$", page, re.MULTILINE)
    numbers = sorted(int(number) for number, _ in rows)
    wrong = [f"feature {number}: nothing shows it" for number, shown in rows if "`" not in shown and "cpu:4" not in shown]
    if numbers != list(range(1, FEATURES + 1)):
        wrong.append(f"expected the features 1 to {FEATURES}, each once, got {numbers}")
    return wrong


def main() -> int:
    root, lockstep = Path(sys.argv[1]), sys.argv[2]
    page = (root / "docs/look_up/features.md").read_text()
    wrong = wrong_rows(page) + missing_cases(page, root) + missing_rows(page, lockstep) + missing_keys(page, lockstep)
    for line in wrong:
        print(f"docs/look_up/features.md: {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
