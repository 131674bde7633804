#!/usr/bin/env python3
"""The pages are written for strangers: short sentences, short cells, one word per thing, links and commands that work.

    style_test.py ROOT [LOCKSTEP]    the project's folder; the program, whose help names subcommands and options

Prints every violation, and exits with 1 if there is any. docs/notes is the laboratory's: there only links and keys are looked at.
"""
import re
import subprocess
import sys
from pathlib import Path

WORDS_IN_README = 30
WORDS = 35
CELL = 200
README_WORDS = 1000
README_LINES = 120
# What the glossary has another word for.
AVOIDED = {
    r"\bfleets?\b": "World, or processes",
    r"\brosters?\b": "rank layout",
    r"\b[Vv]irtual BatchNorm\b": "Ghost BatchNorm",
    r"\bto the (byte|bit)\b": "bitwise identical",
    r"\bbitwise equal\b": "bitwise identical",
    r"\bthe same bytes\b": "bitwise identical",
    r"\blifeline\b": "failure detector",
}
DEFINES_WORDS = {"docs/look_up/glossary.md", "docs/understand/guarantees.md"}
# `bn.eps = ...` in a sentence, -s bn.eps=... in a command.
SETTING = re.compile(r"`((?:[a-z]+\.)+[a-z_0-9]+) = |-s '?((?:[a-z]+\.)+[a-z_0-9]+)=")


def blocks(text):
    """(whether it is code, its first line's number, its text) of a page's fenced and other blocks."""
    code, begin, lines = False, 1, []
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            yield code, begin, "\n".join(lines)
            code, begin, lines = not code, number + 1, []
        else:
            lines.append(line)
    yield code, begin, "\n".join(lines)


def sentences(prose):
    text = "\n".join(line for line in prose.splitlines() if not line.lstrip().startswith(("|", "#", "<")))
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`]*`", "x", text)
    for block in re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.)\s", text):
        yield from re.split(r"(?<=[.!?:])\s+", block)


def long_sentences(name, text):
    most = WORDS_IN_README if name == "README.md" else WORDS
    for code, _, block in blocks(text):
        for sentence in sentences("" if code else block):
            words = len(sentence.split())
            if words > most:
                yield f"{words} words in one sentence, at most {most}: {' '.join(sentence.split())[:90]}..."


def long_cells(text):
    for code, begin, block in blocks(text):
        for number, line in enumerate(() if code else block.splitlines(), begin):
            for cell in re.split(r"(?<!\\)\|", line) if line.startswith("|") else ():
                shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", cell.strip())
                if len(shown) > CELL:
                    yield f"line {number}: a cell of {len(shown)} characters, at most {CELL}: {shown[:60]}..."


def avoided_words(name, text):
    for code, _, block in () if name in DEFINES_WORDS else blocks(text):
        prose = "" if code else re.sub(r"`[^`]*`|\]\([^)]*\)", "", block)
        for word, better in AVOIDED.items():
            for match in re.finditer(word, prose):
                yield f"'{match.group()}': say {better} (docs/look_up/glossary.md)"


def title_anchor(title):
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


def anchors(page):
    return {title_anchor(title) for title in re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)}


def broken_links(page, text):
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        file = (page.parent / path) if path else page
        if not file.exists():
            yield f"a link to {target}, which is not there"
        elif anchor and file.suffix == ".md" and anchor not in anchors(file):
            yield f"a link to {target}: the page has no such title"


def first_lines(text):
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines or not lines[0].startswith("# "):
        yield "does not begin with a title"
    elif len(lines) < 2 or not re.match(r"[A-Z`*]", lines[1]):
        yield "does not say in a first sentence what it is for"
    if not re.search(r"```|`(lockstep|tools/|cmake)", "\n".join(lines[:12])):
        yield "has no command in its first lines"


def configuration_keys(root):
    section, keys = "", set()
    for title, key in re.findall(r"^## \[(.*)\]$|^\| `(\w+)` \|", (root / "docs/look_up/configuration.md").read_text(), re.MULTILINE):
        section = title or section
        keys.add(f"{section}.{key}")
    return keys


def unknown_keys(text, keys):
    sections = {key.split(".")[0] for key in keys}
    for in_sentence, in_command in SETTING.findall(text):
        key = in_command or in_sentence
        if key not in keys and (in_command or key.split(".")[0] in sections):
            yield f"no key of a configuration is called {key}"


def unlisted_tests(root):
    page = (root / "docs/understand/testing.md").read_text()
    for file in sorted((root / "tests").rglob("CMakeLists.txt")):
        for test in re.findall(r"^\s*(?:add_test\(NAME|lockstep_test\()\s*(\w+)\s", file.read_text(), re.MULTILINE):
            if f"`{test}`" not in page:
                yield f"docs/understand/testing.md: does not list the test {test}"


class Commands:
    """Subcommands and options of the program, by its help."""

    def __init__(self, root, program):
        self.root, self.program, self.help = root, program, {}

    def help_of(self, subcommand):
        if subcommand not in self.help:
            done = subprocess.run([self.program, subcommand, "--help"], capture_output=True, text=True, check=False)
            self.help[subcommand] = done.stdout if done.returncode == 0 else None
        return self.help[subcommand]

    def wrong(self, text):
        for code, begin, block in blocks(text):
            joined = re.sub(r"\\\n", " ", block) if code else ""
            for line in joined.splitlines():
                yield from self.wrong_line(line.split(" #")[0].strip())

    def wrong_line(self, line):
        script = re.match(r"(?:python3 )?(tools/[\w./]+)", line)
        if script and not (self.root / script.group(1)).exists():
            yield f"{script.group(1)} is not there"
        call = re.search(r"(?:^|&& |-- |\d |[A-Z_]+=\S* )(?:build/release/bin/)?lockstep ([a-z]+)( .*)?$", line)
        if not call or not self.program:
            return
        help_text = self.help_of(call.group(1))
        if help_text is None:
            yield f"`{line}`: there is no subcommand {call.group(1)}"
            return
        for option in re.findall(r"(?<=\s)(--[a-z][a-z-]*)", call.group(2) or ""):
            if not re.search(rf"{option}(?![\w-])", help_text):
                yield f"`{line}`: {call.group(1)} has no option {option}"


def unknown_script_options(root):
    """Options that pages and scripts give to scripts of tools/, and these do not know. The changelog names those that are gone."""
    files = [file for folder in ("tools", "tests", "docs") for file in sorted((root / folder).rglob("*")) if file.is_file()]
    for file in [*files, root / "README.md", root / "CONTRIBUTING.md"]:
        for name, options in re.findall(r"tools/([\w/.]+)\"?((?: +(?:--[a-z-]+|\w+))+)", file.read_text(errors="ignore")):
            script = root / "tools" / name
            known = script.read_text() if script.is_file() else ""
            for option in re.findall(r"--[a-z][a-z-]*", options if known else ""):
                if not re.search(rf"{option}(?![\w-])", known):
                    yield f"{file.relative_to(root)}: tools/{name} has no option {option}"


def violations(root, program):
    commands, keys = Commands(root, program), configuration_keys(root)
    pages = [root / "README.md", *sorted((root / "docs").rglob("*.md")), root / "data/README.md",
             root / "examples/README.md", root / "CONTRIBUTING.md",
             root / "SECURITY.md", root / "CHANGELOG.md"]
    for page in pages:
        name, text = str(page.relative_to(root)), page.read_text()
        found = [*broken_links(page, text), *unknown_keys(text, keys)]
        if not name.startswith("docs/notes/"):
            found += [*long_sentences(name, text), *long_cells(text), *avoided_words(name, text), *commands.wrong(text)]
        if name.startswith("docs/") and not name.startswith("docs/notes/"):
            found += first_lines(text)
        yield from (f"{name}: {each}" for each in found)
    readme = (root / "README.md").read_text()
    if len(readme.split()) > README_WORDS or readme.count("\n") > README_LINES:
        yield f"README.md: {len(readme.split())} words, {readme.count(chr(10))} lines; at most {README_WORDS} and {README_LINES}"


def other_versions(root):
    """Places that name the version, and another one than CMakeLists.txt; the wheel takes its own from there."""
    (version,) = re.findall(r"^project\(lockstep VERSION (\S+)", (root / "CMakeLists.txt").read_text(), re.M)
    named = {"CITATION.cff": r"^version: (\S+)", "CHANGELOG.md": r"^## (\d\S+)", "docs/do/install.md": r"lockstep[-_](\d+\.\d+\.\d+)",
             "docs/learn/example_report.html": r">lockstep</th><td>([^<]+)<"}
    for file, pattern in named.items():
        found = re.findall(pattern, (root / file).read_text(), re.M)
        found = found[:1] if file == "CHANGELOG.md" else found  # the newest
        if not found or set(found) != {version}:
            yield f"{file}: version {', '.join(found) or 'missing'}; CMakeLists.txt has {version}"


def main():
    found = list(violations(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None))
    for check in (unlisted_tests, other_versions, unknown_script_options):
        found += check(Path(sys.argv[1]))
    for line in found:
        print(line)
    print(f"{len(found)} violations")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
