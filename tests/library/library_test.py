#!/usr/bin/env python3
"""Builds and runs the programs of docs/do/library.md and of examples/ against an installed copy, outside of the source tree.

    library_test.py SOURCE BUILD [--cpu-only PROGRAM]

--cpu-only: against a copy that is built for it, without CUDA. That takes as long as the build itself, so a check that is done
in parts ($LOCKSTEP_CHECK_PART), which has such a build already, tests what makes it the same: it compiles every source with
the command that it has beside CUDA, and PROGRAM, which is linked from BUILD's objects without the kernels, works.

Every C++ block of the page that begins with `// NAME.cpp` is a program; the first is also built by pkg-config
alone, and with the shared library. A program that fails, or that does not print what the page says it prints, fails
the test. A plugin that holds the archive is loaded by a program that knows nothing of it, and trains.
"""
import json
import os
import pathlib
import re
import shutil
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
if(PLUGIN)
  add_library(plugin MODULE plugin.cpp)
  target_link_libraries(plugin PRIVATE Lockstep::lockstep)
  target_link_options(plugin PRIVATE LINKER:--exclude-libs,ALL)
  add_executable(host host.cpp)
  target_link_libraries(host PRIVATE ${CMAKE_DL_LIBS})
endif()
"""

PLUGIN = """#include <lockstep/lockstep.h>
using namespace lockstep;
extern "C" double train_in_plugin(int devices) {
  const Model model = [](NetworkBuilder& net, Value* x, const NormLayer& norm) -> Outputs {
    return {{"out", net.linear(norm(net, x, "bn"), "head", 2)}};
  };
  DataParallel net({.devices = parse_devices("cpu:" + std::to_string(devices)), .model = model,
                    .norm = SyncBatchNorm(), .input = {4, 3}, .losses = {{"out", CrossEntropyLoss{}}}});
  Batch batch;
  batch.images = {1, 2, 3, 4, 5, 6, -1, 2, -3, 0, 1, 0};
  batch.labels = {0, 1, 1, 0};
  batch.samples = {0, 1, 2, 3};
  double loss = 0;
  for (int step = 0; step < 20; ++step) loss = net.train_step(batch, step, 0.1F).loss;
  return loss;
}
"""

HOST = """#include <dlfcn.h>
#include <cstdio>
int main(int, char** words) {
  void* plugin = dlopen(words[1], RTLD_NOW | RTLD_LOCAL);
  if (plugin == nullptr) return std::fprintf(stderr, "%s\\n", dlerror()), 1;
  const auto train = reinterpret_cast<double (*)(int)>(dlsym(plugin, "train_in_plugin"));
  const double one = train(1), three = train(3);
  std::printf("%.17g %.17g\\n", one, three);
  return one == three && one > 0 && one < 0.5 ? 0 : 2;
}
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


def check_headers(prefix, folder):
    """Every public header, by a compiler that warns of more than the one that builds the library."""
    if shutil.which("clang++") is None:
        return print("SKIPPED: the headers were not compiled by clang++, which is not installed")
    headers = sorted((prefix / "include/lockstep").rglob("*.h"))
    names = [str(header.relative_to(prefix / "include")) for header in headers]
    (folder / "headers.cpp").write_text("".join(f"#include <{name}>\n" for name in names))
    run("clang++", "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wsign-conversion",
        "-Werror", f"-I{prefix}/include", folder / "headers.cpp")
    print(f"{len(names)} headers compile with clang++ without a warning")


def cached(build, name):
    found = re.search(rf"^{name}:\w+=(.*)$", (build / "CMakeCache.txt").read_text(), re.M)
    return found.group(1) if found else ""


def check_shared(build, prefix, user, programs, folder):
    """The first program with liblockstep.so, which shows the library's own names and no others."""
    run("cmake", "--build", build, "--target", "lockstep_shared")
    library = build / "liblockstep.so"
    shown = [line.split(maxsplit=2)[2] for line in run("nm", "-D", "--defined-only", "-C", library).splitlines()]
    own = re.compile(r"(typeinfo (name )?for |vtable for |VTT for |guard variable for |(non-)?(virtual )?thunk to )?"
                     r"(non-virtual thunk to )?lockstep::")
    foreign = [name for name in shown if not own.match(name)]
    if foreign or len(shown) < 100:
        sys.exit(f"liblockstep.so shows {len(shown)} names, of which not its own: {foreign[:10]}")
    first = next(iter(programs))
    run("c++", "-std=c++20", f"-I{prefix}/include", user / f"{first}.cpp", "-o", folder / "with_shared", library,
        f"-Wl,-rpath,{build}")
    check_output(f"{first} with liblockstep.so", run(folder / "with_shared", cwd=user), programs[first][1])


def build_cpu_only(source, build):
    """Everything that is installed, built where no CUDA Toolkit is looked for."""
    # -O1: what is of interest is what is built and installed, and it is built once more for that.
    run("cmake", "-S", source, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
        "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG", "-DLOCKSTEP_CUDA=OFF", "-DLOCKSTEP_TESTS=OFF",
        "-DCMAKE_UNITY_BUILD=ON")
    run("cmake", "--build", build, "--parallel", os.cpu_count())


def compile_commands(source, build, *options):
    """{a source of src/: the command that compiles it, without the build's folder}."""
    run("cmake", "-S", source, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DLOCKSTEP_TESTS=OFF",
        "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", *options)
    entries = json.loads((build / "compile_commands.json").read_text())
    return {entry["file"]: entry["command"].replace(str(build), "BUILD") for entry in entries
            if pathlib.Path(entry["file"]).is_relative_to(source / "src")}


def check_same_without_cuda(source, build, program, folder):
    beside, without = (compile_commands(source, folder / name, f"-DLOCKSTEP_CUDA={cuda}")
                       for name, cuda in (("beside", "TOOLKIT"), ("without", "OFF")))
    other = sorted(file for file in beside.keys() | without.keys() if beside.get(file) != without.get(file))
    if other or len(without) < 100:
        sys.exit(f"of {len(without)} sources these are compiled otherwise without CUDA: {other[:10]}")
    print(f"{len(without)} sources are compiled without CUDA by the commands that they have beside it")
    run("cmake", "--build", build, "--target", "lockstep_standalone")
    if "this build is for the CPU only" not in run(program, "doctor"):
        sys.exit(f"{program} says nothing of a build for the CPU only")
    run(program, "selftest", "-d", "cpu:2")
    print(f"{program} is linked without kernels, and its self-test passes")


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
            if os.environ.get("LOCKSTEP_CHECK_PART"):
                return check_same_without_cuda(source, build, pathlib.Path(sys.argv[4]).resolve(), folder)
            build = folder / "cpu_only"
            build_cpu_only(source, build)
        run("cmake", "--install", build, "--prefix", prefix)
        for name, (text, _) in programs.items():
            (user / f"{name}.cpp").write_text(text)
        (user / "CMakeLists.txt").write_text(CMAKE % " ".join(programs))
        (user / "plugin.cpp").write_text(PLUGIN)
        (user / "host.cpp").write_text(HOST)
        independent = cached(build, "LOCKSTEP_PIC") == "ON"
        run("cmake", "-S", user, "-B", user / "build", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}",
            f"-DPLUGIN={'ON' if independent else 'OFF'}")
        run("cmake", "--build", user / "build")
        for name, (_, expected) in programs.items():
            check_output(name, run(user / "build" / name, cwd=user), expected)

        check_headers(prefix, folder)
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
        if not independent:
            return print("SKIPPED: no plugin and no shared library, the build has LOCKSTEP_PIC=OFF")
        print("plugin:", run(user / "build/host", user / "build/libplugin.so").strip())
        check_shared(build, prefix, user, programs, folder)


main()
