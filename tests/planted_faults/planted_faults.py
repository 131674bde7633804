#!/usr/bin/env python3
"""Plants the faults of faults.py in copies of the sources, one at a time, and demands that the tests see each.

    planted_faults.py --build FOLDER [--ninja NINJA] [--only WORDS] [--part K/N] TEST...    (TEST: test_kernels, ...)

For every fault: a copy of its file, an object compiled from it with the build's own command (in a unity build: from a
copy of its batch, with it), the executable linked with this object in place of the right one (of a library the linker
takes only what it does not have yet), and the test cases that must fail then, by an assertion of doctest or the report
of a sanitizer; for TEST lockstep the rows of its self-test. A compiler's error, a timeout or a crash without a report
is not seeing; neither is a failure of the right executable, or an expression that is no longer in its function exactly
once: the list follows the code. What only some processors show is SKIPPED on the others. Universal Ctags says where
functions lie.
"""
import argparse
import collections
import concurrent.futures
import fnmatch
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import time

from faults import FAULTS

ROOT = pathlib.Path(__file__).resolve().parents[2]
AT_ONCE = max(2, min(8, os.cpu_count() or 1))
WHOLE_IN_PART = {"test_kernels": 1, "test_fuzz_corpus": 1, "test_gpu_host": 2}  # which other parts of tools/check do not build
HANGS_AFTER = 600  # seconds: far beyond the slowest machine's, so that only a hang ends there


class Problem(Exception):
    """Why a fault could not be planted, or was not seen."""


class NotSeen(Problem):
    """The tests pass although it is planted."""

# A fault is planted in the kernels that are compiled with the rest of the program, not in those for wider vectors.
FAULTED = {**os.environ, "LOCKSTEP_CPU": "avx2"} if platform.machine() == "x86_64" else None


def shell(command, folder):
    done = subprocess.run(command, shell=True, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        raise Problem(f"{command}\nended with {done.returncode}:\n{done.stdout[-4000:]}")
    return done.stdout.strip()


def run_cases(executable, cases):
    """(exit status, doctest's counts as {'passed', 'failed', 'failed assertions'}, output) of the test cases."""
    selftest = executable.name == "lockstep"
    arguments = ["selftest", "-d", "cpu:4", "--json"] if selftest else [f"-tc={cases}", "--abort-after=1"]
    try:
        done = subprocess.run([executable, *arguments], cwd=ROOT, text=True, errors="replace", env=FAULTED,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=HANGS_AFTER)
    except subprocess.TimeoutExpired:
        raise Problem(f"{executable.name} still ran after {HANGS_AFTER} s") from None
    if selftest:
        return done.returncode, count_rows(done.stdout, cases), done.stdout
    counts = {}
    for key, line in (("", "test cases"), (" assertions", "assertions")):
        found = re.search(rf"\[doctest\] {line}: *\d+ *\| *(\d+) passed *\| *(\d+) failed", done.stdout)
        counts["passed" + key], counts["failed" + key] = map(int, found.groups()) if found else (0, 0)
    return done.returncode, counts, done.stdout


def count_rows(output, cases):
    """As doctest's counts: the rows of a self-test with such a name."""
    try:
        ok = [row["ok"] for row in json.loads(output)["rows"] if fnmatch.fnmatchcase(row["name"], cases)]
    except (ValueError, KeyError):
        ok = []
    return {"passed": ok.count(True), "failed": ok.count(False), "failed assertions": ok.count(False)}


def check_right(executable, cases):
    """The executable as it was built passes these test cases, and there are some."""
    status, counts, output = run_cases(executable, cases)
    if status != 0 or counts["failed"] > 0:
        raise Problem(f"{executable.name} fails without a fault:\n{output[-4000:]}")
    if counts["passed"] == 0:
        raise Problem(f"no test case of {executable.name} is called '{cases}'")


class Sources:
    """The product's source files, and the functions in them."""

    def __init__(self):
        files = [str(file.relative_to(ROOT)) for folder in ("include", "src", "kernels", "mpi")
                 for file in sorted((ROOT / folder).rglob("*")) if file.suffix in (".h", ".cpp", ".cu")]
        self.texts = {file: (ROOT / file).read_text() for file in files}
        self.functions = collections.defaultdict(set)  # name: (file, first line, last line), ...
        tags = subprocess.run(["ctags", "--output-format=json", "--fields=+ne", "--languages=C++", "--langmap=C++:+.cu.h",
                               "--kinds-C++=f", "-f", "-", *files], cwd=ROOT, text=True, stdout=subprocess.PIPE, check=True)
        for tag in map(json.loads, tags.stdout.splitlines()):
            if "end" in tag:
                name = tag["name"].replace("operator ", "operator")
                self.functions[name].add((tag["path"], tag["line"], tag["end"]))

    def find(self, function, expression):
        """(file, begin, end): where this expression stands in a function of this name. It must stand there once."""
        words = re.findall(r'"(?:\\.|[^"\\])*"|\w+|\S', expression)
        pattern = re.compile(r"\s*".join(map(re.escape, words)))
        found = {(file, *match.span()) for file, first, last in self.functions[function]
                 for match in pattern.finditer(self.texts[file], *self.offsets(file, first, last))}
        if len(found) != 1:
            raise Problem(f"the {len(self.functions[function])} functions of the name {function} have this {len(found)} times, "
                          f"expected once; change faults.py:\n{expression}")
        return found.pop()

    def offsets(self, file, first, last):
        lines = self.texts[file].splitlines(keepends=True)
        begin = sum(map(len, lines[:first - 1]))
        return begin, begin + sum(map(len, lines[first - 1:last]))

    def path_of(self, name):
        """Of the file of the product or the tests whose path ends so."""
        tests = (str(file.relative_to(ROOT)) for file in (ROOT / "tests").rglob("*.cpp"))
        found = [file for file in (*self.texts, *tests) if f"/{file}".endswith(f"/{name}")]
        if len(found) != 1:
            raise Problem(f"there are {len(found)} files {name}, expected one; change faults.py")
        return found[0]


def plant(fault, sources, folder):
    """Writes the copy with the fault; the file of the project that it is a copy of, and the copy."""
    file, begin, end = sources.find(fault.function, fault.mutation.old)
    text = sources.texts[file]
    copy = folder / file
    copy.parent.mkdir(parents=True)
    copy.write_text(text[:begin] + fault.mutation.new + text[end:])
    return file, copy


def includes(batch, source):
    """Whether this file is a batch of a unity build with this source in it."""
    return "/Unity/" in batch and f'#include "{source}"' in pathlib.Path(batch).read_text()


def compilation_of(source, test, args):
    """The command that compiles this source for the test, its own or that of a library it links; what it compiles, the
    source or a batch; and its object."""
    for command in shell(f"{args.ninja} -t commands bin/{test}", args.build).splitlines():
        words = command.split()
        if "-c" not in words or "-o" not in words:
            continue
        compiled = words[words.index("-c") + 1]
        if "CMakeFiles/lockstep_cpu_" in words[words.index("-o") + 1]:
            continue  # the same source for wider vectors, which not every processor has
        if compiled == str(ROOT / source) or includes(compiled, ROOT / source):
            return command, compiled, words[words.index("-o") + 1]
    raise Problem(f"{test} does not link {source}")


def build_faulty(fault, sources, folder, args):
    """The test's executable with the fault in it."""
    file, copy = plant(fault, sources, folder)
    source = sources.path_of(fault.source) if fault.source else file
    compilation, compiled, right = compilation_of(source, fault.test, args)
    link = shell(f"{args.ninja} -t commands -s bin/{fault.test}", args.build)
    faulty, executable = folder / "faulty.o", folder / fault.test
    compilation = compilation.replace(right, str(faulty))
    if compiled != str(ROOT / source):
        batch = folder / "batch.cxx"
        batch.write_text(pathlib.Path(compiled).read_text().replace(str(ROOT / file), str(copy)))
        compilation = compilation.replace(compiled, str(batch))
    elif source == file:
        compilation = compilation.replace(str(ROOT / source), str(copy))
    compilation = compilation.replace(" -I", f" -I{folder} -I{folder}/include -I{folder}/src -I", 1)
    shell(f"{compilation} -O0 -w", args.build)  # a fault needs no speed, and may look odd to a compiler
    # In front of all objects: of an inline function that several have, the first one's copy is taken.
    objects = [word for word in link.split() if word.endswith(".o")]
    link = link.replace(f" {objects[0]} ", f" {faulty} {objects[0]} ").replace(f" {right} ", " ")
    shell(link.replace(f" -o bin/{fault.test} ", f" -o {executable} "), args.build)
    return executable


def check_seen(executable, cases):
    """What the test cases said about the fault."""
    status, counts, output = run_cases(executable, cases)
    report = re.search(r"(ERROR: AddressSanitizer: [\w-]+|runtime error: .*)", output)
    if status != 0 and report:
        return report.group(1)
    if status != 0 and counts["failed"] > 0 and counts["failed assertions"] > 0:
        return "an assertion failed"
    raise NotSeen(f"not seen by '{cases}': exit status {status}, {counts}\n{output[-2000:]}")


def check_fault(number, fault, sources, args):
    folder = args.build / "planted_faults" / str(number)
    start = time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    try:
        executable = build_faulty(fault, sources, folder, args)
        result, built = "seen", time.monotonic()
        message = check_seen(executable, fault.cases)
        message += f" ({built - start:.0f} s to build, {time.monotonic() - built:.0f} s to see)"
        shutil.rmtree(folder)
    except Problem as problem:
        result, message = "FAILED", "\n    | ".join(str(problem).splitlines())
        if isinstance(problem, NotSeen) and not fault.everywhere:
            result, message = "SKIPPED", "this processor does not show it"
    print(f"{result}: {fault.what}: {message}", flush=True)
    return result


def find_all(sources):
    """Whether the code still has what every fault changes: a check that is done in parts says so in each of them."""
    found = True
    for fault in FAULTS:
        try:
            sources.find(fault.function, fault.mutation.old)
        except Problem as problem:
            print(f"FAILED: {fault.what}: {problem}", flush=True)
            found = False
    return found


def check_right_one(test, cases, args):
    try:
        check_right(args.build / "bin" / test, cases)
        return True
    except Problem as problem:
        print("FAILED:", "\n    | ".join(str(problem).splitlines()), flush=True)
        return False


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True, help="a folder that tools/build has built")
    parser.add_argument("--ninja", default="ninja")
    parser.add_argument("--only", default="", help="only faults whose description has these words")
    parser.add_argument("--part", default=os.environ.get("LOCKSTEP_CHECK_PART") or "1/1", metavar="K/N",
                        help="only a share of them; default: $LOCKSTEP_CHECK_PART, else all")
    parser.add_argument("tests", nargs="+", metavar="TEST", help="the executables that this build has")
    args = parser.parse_args()
    args.build = args.build.resolve()
    part, parts = map(int, args.part.split("/"))
    built = {test for test in args.tests if (args.build / "bin" / test).exists()}
    faults = [fault for fault in FAULTS if fault.test in built and args.only in fault.what]
    if parts > 1:
        shared = [fault for fault in faults if fault.test not in WHOLE_IN_PART]
        faults = shared[part - 1::parts] + [fault for fault in faults if WHOLE_IN_PART.get(fault.test) == part]
    for test in sorted({fault.test for fault in FAULTS} - built):
        print(f"SKIPPED: the faults of {test}, which this build does not have")
    sources = Sources()
    found = find_all(sources)
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        faulty = [pool.submit(check_fault, number, fault, sources, args) for number, fault in enumerate(faults)]
        right = [pool.submit(check_right_one, *pair, args)
                 for pair in sorted({(fault.test, fault.cases) for fault in faults})]
        results = [each.result() for each in faulty]
        found = all([each.result() for each in right]) and found
    print(f"{results.count('seen')} of {len(faults)} planted faults are seen (part {args.part} of all)")
    sys.exit(0 if faults and found and "FAILED" not in results else 1)


if __name__ == "__main__":
    main()
