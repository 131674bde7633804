#!/usr/bin/env python3
"""The loop by which `lockstep bench layers` measures a core's peak has all of its multiply-adds: compilers have taken sums that
begin equal for one, and the peak was half as high again.

    peak_code_test.py OBJDUMP OBJECT...    (those of src/backend/cpu/kernel_set.cpp, one for each instruction set)
"""
import re
import subprocess
import sys

SUMS = 12  # kSums


def main():
    objdump, *objects = sys.argv[1:]
    objects = [path for path in objects if path.endswith("kernel_set.cpp.o")]
    if not objects:
        sys.exit("no object of kernel_set.cpp was given")
    for path in objects:
        code = subprocess.run([objdump, "-d", "--no-show-raw-insn", path], capture_output=True, text=True, check=True).stdout
        body = re.search(r"^[0-9a-f]+ <\S*multiply_add\S*>:\n(.*?)(?:\n\n|\Z)", code, re.M | re.S)
        if body is None:
            sys.exit(f"{path}: there is no function multiply_add")
        found = len(re.findall(r"\bvfmadd\w+ps\b", body.group(1)))
        if found < SUMS:
            sys.exit(f"{path}: expected at least {SUMS} multiply-adds in multiply_add, found {found}: the compiler has merged sums")
        print(f"{path}: {found} multiply-adds")


main()
