#!/usr/bin/env python3
"""Builds and runs the programs of docs/do/library.md and of examples/ against an installed copy, outside of the source tree.

    library_test.py SOURCE BUILD [--cpu-only]

--cpu-only: against a copy that is built for it, without CUDA; BUILD is then not looked at.

Every C++ block of the page that begins with `// NAME.cpp` is a program; the first is also built by pkg-config
alone. A program that fails, or that does not print what the page says it prints, fails the test.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from example_programs_test import check_programs

CMAKE = """cmake_minimum_required(VERSION 3.24)
project(user LANGUAGES CXX)
add_compile_options(-Wall -Wextra -Werror)
find_package(Lockstep REQUIRED)
foreach(program %s)
  add_executable(${program} ${program}.cpp)
  target_link_libraries(${program} PRIVATE Lockstep::lockstep)
endforeach()
"""


def run(*command, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} exits with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def programs_of(page):
    """{name: (source, expected output or None)}; the output is the ```text block that follows the program."""
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", page, re.M | re.S)
    programs = {}
    name = None
    for language, text in blocks:
        begin = re.match(r"// (\w+)\.cpp\n", text)
        if language == "cpp" and begin:
            name = begin.group(1)
            programs[name] = (text, None)
        elif language == "text" and name:
            programs[name] = (programs[name][0], text)
            name = None
        else:
            name = None
    return programs


def check_output(name, printed, expected):
    if expected is not None and printed.split() != expected.split():
        sys.exit(f"{name} prints\n{printed}\nbut docs/do/library.md says\n{expected}")
    print(f"{name}: ran, {len(printed.splitlines())} lines" + ("" if expected is None else ", as the page says"))


def build_cpu_only(source, build):
    """Everything that is installed, built where no CUDA Toolkit is looked for."""
    # -O1: what is of interest is what is built and installed, and it is built once more for that.
    run("cmake", "-S", source, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
        "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG", "-DLOCKSTEP_CUDA=OFF", "-DLOCKSTEP_TESTS=OFF",
        "-DCMAKE_UNITY_BUILD=ON")
    run("cmake", "--build", build, "--parallel", os.cpu_count())


def main():
    source, build = (pathlib.Path(word).resolve() for word in sys.argv[1:3])
    programs = programs_of((source / "docs/do/library.md").read_text())
    if not programs:
        sys.exit("docs/do/library.md holds no program")
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        prefix, user = folder / "prefix", folder / "user"
        user.mkdir()
        if "--cpu-only" in sys.argv:
            build = folder / "cpu_only"
            build_cpu_only(source, build)
        run("cmake", "--install", build, "--prefix", prefix)
        for name, (text, _) in programs.items():
            (user / f"{name}.cpp").write_text(text)
        (user / "CMakeLists.txt").write_text(CMAKE % " ".join(programs))
        run("cmake", "-S", user, "-B", user / "build", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}")
        run("cmake", "--build", user / "build")
        for name, (_, expected) in programs.items():
            check_output(name, run(user / "build" / name, cwd=user), expected)

        first = next(iter(programs))
        flags = run("pkg-config", "--cflags", "--libs", "lockstep",
                    env={"PKG_CONFIG_PATH": str(prefix / "lib/pkgconfig"), "PATH": "/usr/bin:/bin"}).split()
        run("c++", "-std=c++20", user / f"{first}.cpp", "-o", folder / first, *flags)
        check_output(f"{first} by pkg-config", run(folder / first, cwd=user), programs[first][1])

        installed = prefix / "share/lockstep/examples"
        run("cmake", "-S", installed, "-B", folder / "examples", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}",
            "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror")
        run("cmake", "--build", folder / "examples")
        check_programs(source, folder / "examples")


main()
