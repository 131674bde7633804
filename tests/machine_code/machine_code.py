#!/usr/bin/env python3
"""Reads the kernels' machine code, as the build compiled it, and demands what rules.py says: accesses of 128 bits where
tensors are moved, and no division of 64-bit integers.

    machine_code.py --nvcc NVCC [--cuobjdump CUOBJDUMP] OBJECT...

A rule that no kernel matches fails, and so does a check that passes a kernel made to break it (compiled here). Needs
cuobjdump and nvdisasm, of the CUDA Toolkit or of the Python packages nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm
(tools/setup --dev); without them it says SKIPPED.
"""
import argparse
import collections
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from rules import DIVISION, RULES, WITHOUT_DIVISION

ROOT = pathlib.Path(__file__).resolve().parents[2]
NAMESPACES = re.compile(r"lockstep::gpu::|lockstep::|\(anonymous namespace\)::|_GLOBAL__N_\w+::")
FAULTY = """
struct alignas(16) Pack { float values[4]; };
__global__ void divides(long long* a) { a[threadIdx.x] /= a[32]; }
__global__ void stores_narrow(const Pack* from, float* to) {
  const Pack pack = from[threadIdx.x];
  for (int i = 0; i < 4; ++i) to[5 * threadIdx.x + i] = pack.values[i];
}
"""


class Skipped(Exception):
    """Why nothing can be checked."""


def run(*command):
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if "nvdisasm" in done.stdout and done.returncode != 0:
        raise Skipped("nvdisasm, which cuobjdump calls, is not here")
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}\nended with {done.returncode}:\n{done.stdout[-2000:]}")
    return done.stdout


def find_tools(given):
    """cuobjdump; nvdisasm is then found by it."""
    places = [pathlib.Path(given).parent] if given else []
    places += [ROOT / ".cuda_tools/nvidia" / cu / "bin" for cu in ("cu13", "cu12")]
    os.environ["PATH"] = os.pathsep.join([*map(str, places), os.environ["PATH"]])
    found = shutil.which("cuobjdump")
    if not found:
        raise Skipped("no cuobjdump beside nvcc, in PATH or in .cuda_tools; tools/setup --dev brings it")
    return found


def demangled(names):
    done = subprocess.run(["c++filt"], input="\n".join(names), text=True, stdout=subprocess.PIPE, check=True)
    return [NAMESPACES.sub("", name) for name in done.stdout.splitlines()]


def kernels_of(cuobjdump, file):
    """[(architecture, name, instructions)] of an object's kernels."""
    found, architecture = [], ""
    for line in run(cuobjdump, "-sass", file).splitlines():
        if header := re.search(r"code for (sm_\w+)", line):
            architecture = header.group(1)
        elif header := re.search(r"Function : (\S+)", line):
            found.append((architecture, header.group(1), []))
        elif found and (instruction := re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+\s+)?(\S+)", line)):
            found[-1][2].append(instruction.group(1).rstrip(";"))
    names = demangled([name for _, name, _ in found])
    return [(arch, name, code) for (arch, _, code), name in zip(found, names)]


def problems_of(code, loads, stores, only):
    """What a kernel's instructions lack of the accesses that it must have."""
    counts = collections.Counter()
    for instruction in code:
        if access := re.match(r"(LDG|STG)\b(?:\.E)?(.*)", instruction):
            counts[access.group(1), ".128" in access.group(2)] += 1
    problems = []
    if loads and not counts["LDG", True]:
        problems.append(f"none of its {counts['LDG', False]} loads has 128 bits")
    if stores and not counts["STG", True]:
        problems.append(f"none of its {counts['STG', False]} stores has 128 bits")
    if stores and only and counts["STG", False]:
        problems.append(f"{counts['STG', False]} of its stores are narrower than 128 bits")
    return problems


def divisions_in(cuobjdump, file):
    return len(DIVISION.findall(run(cuobjdump, "-symbols", file)))


def check_itself(cuobjdump, nvcc):
    """The checks see a division and narrow stores."""
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = pathlib.Path(folder) / "faulty.cu", pathlib.Path(folder) / "faulty.cubin"
        source.write_text(FAULTY)
        run(nvcc, "-arch=sm_90", "-cubin", "-o", cubin, source)
        code = {name.split("(")[0]: code for _, name, code in kernels_of(cuobjdump, cubin)}
        seen = problems_of(code["stores_narrow"], True, True, True)
        failures = [] if divisions_in(cuobjdump, cubin) else ["a 64-bit division is not seen"]
        if len(seen) != 2 or any("loads" in problem for problem in seen):
            failures.append(f"narrow stores are not seen, but: {seen}")
        return failures


def check(cuobjdump, files):
    """(what is wrong, how many kernels were looked at)"""
    failures, looked_at, kernels = [], 0, {}
    for name in {rule.object for rule in RULES} & files.keys():
        kernels[name] = kernels_of(cuobjdump, files[name])
    for rule in RULES:
        matches = 0
        for arch, name, code in kernels.get(rule.object, []):
            match = re.search(rule.kernel, name)
            if not match or not any(wide := rule.wide(match)):
                continue
            matches += 1
            failures += [f"{rule.object}, {arch}: {match.group(0)}: {problem}"
                         for problem in problems_of(code, *wide, rule.only)]
        looked_at += matches
        if not matches:
            failures.append(f"{rule.object}: no kernel matches {rule.kernel}; change rules.py")
    for name in WITHOUT_DIVISION:
        count = divisions_in(cuobjdump, files[name]) if name in files else -1
        if count:
            failures.append(f"{name}: {count} kernels divide 64-bit integers" if count > 0 else f"{name} is not built")
    return failures, looked_at


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nvcc", required=True)
    parser.add_argument("--cuobjdump", default="")
    parser.add_argument("objects", nargs="+", metavar="OBJECT")
    args = parser.parse_args()
    files = {pathlib.Path(file).name.removesuffix(".cu.o"): file for file in args.objects if file.endswith(".cu.o")}
    try:
        cuobjdump = find_tools(args.cuobjdump)
        failures = check_itself(cuobjdump, args.nvcc)
        more, looked_at = check(cuobjdump, files)
    except Skipped as reason:
        print(f"SKIPPED: {reason}")
        return 0
    failures += more
    for failure in failures:
        print(f"FAILED: {failure}")
    print(f"{looked_at} kernels move 16 bytes at a time, {len(WITHOUT_DIVISION)} objects divide no 64-bit integers"
          if not failures else f"{len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
