#!/usr/bin/env python3
"""Reads the kernels' machine code and demands what rules.py says: accesses of 128 bits where tensors are moved, no division
of 64-bit integers, no stack and few registers, and the order of instructions that dependent launches need.

    machine_code.py --nvcc NVCC [--cuobjdump CUOBJDUMP] [--include FOLDER]... OBJECT...

It reads what the build compiled, and compiles for other GPUs what may differ there. A rule that no kernel matches fails,
and so does a check that passes a kernel made to break it (faulty.cu). Needs cuobjdump and nvdisasm, of the CUDA Toolkit or
of the Python packages nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm (tools/setup --dev); without them it says SKIPPED.
"""
import argparse
import collections
import concurrent.futures
import os
import pathlib
import re
import sys
import tempfile

from disassembly import ROOT, Skipped, compiled, find_cuobjdump, kernels_of, resources_of, run
from rules import BOUNDED, DIVISION, EARLY, MOST_REGISTERS, OTHER_GPUS, RULES, STACKS, WITHOUT_DIVISION

HERE = pathlib.Path(__file__).resolve().parent
SOURCES = ROOT / "kernels/operations"
GLOBAL_ACCESS = re.compile(r"(LD|ST|LDG|STG|ATOM|ATOMG|RED|REDG|LDGSTS|UBLK\w*|UTMA\w*)(\.|$)")
COUNT = re.compile(r"ATOM|RED")
LEAVES_THE_LINE = re.compile(r"(BRA|BRX|BRXU|JMP|JMX|CALL|RET|EXIT|KILL|WARPSYNC)(\.|$)")


# --- accesses and divisions

def narrow_accesses(code, loads, stores, only):
    """What a kernel's instructions lack of the accesses that it must have."""
    counts = collections.Counter()
    for instruction in code:
        if access := re.match(r"(LDG|STG)\b(?:\.E)?(.*)", instruction.name):
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


# --- dependent launches

def disorder(code):
    """What a kernel that may start before the one in front of it has ended does too early, or must not do."""
    names = [instruction.name.split(".")[0] for instruction in code]
    waits = names.index("ACQBULK") if "ACQBULK" in names else len(names)
    problems = []
    if waits == len(names):
        problems.append("never waits for the kernel before it")
    elif code[waits].predicated:
        problems.append("some threads do not wait for the kernel before them")
    for instruction in code[:waits]:
        if GLOBAL_ACCESS.match(instruction.name):
            problems.append(f"{instruction.name} in front of the wait")
        elif LEAVES_THE_LINE.match(instruction.name):
            problems.append(f"{instruction.name} in front of the wait: threads may come past it")
    # Of the read-only cache nobody says that it is clean before the wait.
    problems += [f"{i.name} of data that the kernel before may have written" for i in code if ".CONSTANT" in i.name]
    return problems + early_permission(code, names, waits)


def early_permission(code, names, waits):
    """The next kernel may come when the count of the blocks alone is left: before, it would only take room."""
    allows = [i for i, name in enumerate(names) if name == "PREEXIT"]
    problems = []
    for place in allows:
        after = [i.name for i in code[place:] if GLOBAL_ACCESS.match(i.name)]
        if place < waits:
            problems.append("lets the next kernel start and has not waited itself")
        if any(COUNT.match(name) for name in names[:place]):
            problems.append("lets the next kernel start behind the count of the blocks")
        if not after or not COUNT.match(after[0]):
            problems.append(f"lets the next kernel start, and then comes {after[0] if after else 'no count'}")
    return problems


def check_early(objects):
    """`objects`: {name: kernels}. EARLY names all kernels that are started early, and each keeps the order."""
    failures = []
    for source in sorted(SOURCES.glob("*.cu")):
        if "launch_dependent(" in source.read_text() and source.stem not in {name for name, _ in EARLY}:
            failures.append(f"{source.name} starts kernels early; name them in EARLY of rules.py")
    for name, pattern in EARLY:
        if not any(re.search(pattern, kernel.name) for kernel in objects.get(name, [])):
            failures.append(f"{name}: no kernel matches {pattern}; change EARLY of rules.py")
    looked_at = 0
    for name, kernels in objects.items():
        for kernel in kernels:
            has = {i.name.split(".")[0] for i in kernel.code} & {"ACQBULK", "PREEXIT"}
            early = any(name == of and re.search(pattern, kernel.name) for of, pattern in EARLY)
            if int(kernel.architecture[3:].rstrip("af")) >= 90 and (early or has):
                looked_at += 1
                failures += [f"{name}, {kernel.architecture}: {kernel.name}: {p}" for p in disorder(kernel.code)]
    return failures, looked_at


# --- registers and stack

def excess(kernel, allowed):
    """What a kernel takes that it should not; `allowed`: bytes of stack."""
    problems = []
    if kernel.stack > allowed:
        problems.append(f"{kernel.stack} bytes of stack per thread, {allowed} allowed")
    if kernel.registers > MOST_REGISTERS:
        problems.append(f"{kernel.registers} registers, more than {MOST_REGISTERS}")
    return problems


def check_resources(objects):
    """`objects`: [(name, kernels)]. Every entry of STACKS is needed."""
    failures, needed, looked_at = [], set(), 0
    for name, kernels in objects:
        for kernel in kernels:
            looked_at += 1
            entries = [s for s in STACKS if s.object == name and re.search(s.kernel, kernel.name)
                       and s.architecture in ("", kernel.architecture)]
            needed |= {entry for entry in entries if kernel.stack}
            allowed = max((entry.bytes for entry in entries), default=0)
            failures += [f"{name}, {kernel.architecture}: {kernel.name}: {p}" for p in excess(kernel, allowed)]
    failures += [f"{entry.object}: no kernel of {entry.kernel} has a stack: delete it from STACKS of rules.py"
                 for entry in STACKS if entry not in needed]
    return failures, looked_at


def bounded_sources():
    return [source for source in sorted(SOURCES.glob("*.cu")) if BOUNDED.search(source.read_text())]


# --- all of it

def check_itself(cuobjdump, nvcc):
    """Every check sees the kernels of faulty.cu that are made for it, and takes the one that is right."""
    with tempfile.TemporaryDirectory() as folder:
        cubin = f"{folder}/faulty.cubin"
        run(nvcc, "-arch=sm_90", "-cubin", "-o", cubin, HERE / "faulty.cu")
        kernels = {kernel.name.split("(")[0]: kernel for kernel in kernels_of(cuobjdump, cubin)}
        resources = {kernel.name.split("(")[0]: kernel for kernel in resources_of(cuobjdump, cubin)}
        failures = [] if divisions_in(cuobjdump, cubin) else ["a 64-bit division is not seen"]
    seen = narrow_accesses(kernels["stores_narrow"].code, True, True, True)
    if len(seen) != 2 or any("loads" in problem for problem in seen):
        failures.append(f"narrow stores are not seen, but: {seen}")
    expected = {"keeps_order": None, "never_waits": "never waits", "waits_sometimes": "in front of the wait",
                "reads_first": "LDG.* in front", "writes_first": "STG.* in front", "leaves_first": "EXIT in front",
                "reads_constant": "CONSTANT", "allows_before_waiting": "has not waited",
                "allows_before_reading": "then comes LDG", "allows_after_the_count": "behind the count"}
    for name, problem in expected.items():
        seen = disorder(kernels[name].code)
        if bool(seen) != bool(problem) or (problem and not any(re.search(problem, text) for text in seen)):
            failures.append(f"{name}: expected {problem}, got {seen}")
    for name, problem in (("keeps_stack", "bytes of stack"), ("takes_registers", "registers"), ("keeps_order", None)):
        seen = excess(resources[name], 0)
        if bool(seen) != bool(problem) or (problem and problem not in seen[0]):
            failures.append(f"{name}: expected {problem}, got {seen}")
    return failures


def check_accesses(cuobjdump, files, kernels):
    """(what is wrong, how many kernels were looked at)"""
    failures, looked_at = [], 0
    for rule in RULES:
        matches = 0
        for kernel in kernels.get(rule.object, []):
            match = re.search(rule.kernel, kernel.name)
            if not match or not any(wide := rule.wide(match)):
                continue
            matches += 1
            failures += [f"{rule.object}, {kernel.architecture}: {match.group(0)}: {problem}"
                         for problem in narrow_accesses(kernel.code, *wide, rule.only)]
        looked_at += matches
        if not matches:
            failures.append(f"{rule.object}: no kernel matches {rule.kernel}; change rules.py")
    for name in WITHOUT_DIVISION:
        count = divisions_in(cuobjdump, files[name]) if name in files else -1
        if count:
            failures.append(f"{name}: {count} kernels divide 64-bit integers" if count > 0 else f"{name} is not built")
    return failures, looked_at


def check(args, cuobjdump):
    """(what is wrong, what was looked at)"""
    files = {pathlib.Path(file).name.removesuffix(".cu.o"): file for file in args.objects if file.endswith(".cu.o")}
    early_objects = {name for name, _ in EARLY}
    with tempfile.TemporaryDirectory() as folder, \
            concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        others = {source.stem: pool.submit(compiled, args.nvcc, args.include, source, OTHER_GPUS,
                                           f"{folder}/{source.stem}.o") for source in bounded_sources()}
        kernels = {name: kernels_of(cuobjdump, files[name])
                   for name in {rule.object for rule in RULES} | early_objects if name in files}
        failures, moving = check_accesses(cuobjdump, files, kernels)
        usage = [(name, resources_of(cuobjdump, file)) for name, file in files.items()]
        for name, future in others.items():
            usage.append((name, resources_of(cuobjdump, future.result())))
            if name in early_objects & kernels.keys():
                kernels[name] += kernels_of(cuobjdump, future.result())
    more, early = check_early(kernels)
    failures += more
    more, sized = check_resources(usage)
    architectures = sorted({kernel.architecture for _, found in usage for kernel in found})
    return failures + more, (f"{moving} kernels move 16 bytes at a time, {len(WITHOUT_DIVISION)} objects divide no 64-bit "
                             f"integers, {early} kernels that start early keep the order, the registers and the stack of "
                             f"{sized} fit ({', '.join(architectures)})")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nvcc", required=True)
    parser.add_argument("--cuobjdump", default="")
    parser.add_argument("--include", action="append", default=[], help="folder of headers, to compile for other GPUs")
    parser.add_argument("objects", nargs="+", metavar="OBJECT")
    args = parser.parse_args()
    try:
        cuobjdump = find_cuobjdump(args.cuobjdump)
        failures = check_itself(cuobjdump, args.nvcc)
        more, looked_at = check(args, cuobjdump)
    except Skipped as reason:
        print(f"SKIPPED: {reason}")
        return 0
    failures += more
    for failure in failures:
        print(f"FAILED: {failure}")
    print(f"{len(failures)} failures" if failures else looked_at)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
