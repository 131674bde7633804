"""What NVIDIA's tools say of compiled kernels."""
import os
import pathlib
import re
import shutil
import subprocess
from dataclasses import dataclass, field

ROOT = pathlib.Path(__file__).resolve().parents[2]
NAMESPACES = re.compile(r"lockstep::gpu::|lockstep::|\(anonymous namespace\)::|_GLOBAL__N_\w+::")
INSTRUCTION = re.compile(r"\s+/\*[0-9a-f]{4,}\*/\s+(@!?\w+\s+)?([A-Z0-9_.]+)\b")


class Skipped(Exception):
    """Why nothing can be checked."""


@dataclass(frozen=True)
class Instruction:
    name: str  # with its modifiers: "LDG.E.128"
    predicated: bool  # done by some threads only


@dataclass
class Kernel:
    architecture: str  # "sm_90"
    name: str  # demangled, without the namespaces
    registers: int = 0
    stack: int = 0  # bytes of a thread: what was spilled, and arrays that are no registers
    code: list = field(default_factory=list)  # of Instruction


def run(*command, **more):
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **more)
    if "nvdisasm" in done.stdout and done.returncode != 0:
        raise Skipped("nvdisasm, which cuobjdump calls, is not here")
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}\nended with {done.returncode}:\n{done.stdout[-2000:]}")
    return done.stdout


def find_cuobjdump(given):
    """nvdisasm is then found by it."""
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


def instruction_of(line):
    match = INSTRUCTION.match(line)
    return Instruction(match.group(2), bool(match.group(1))) if match else None


def kernels_of(cuobjdump, file):
    """The kernels of an object or a cubin, with their code."""
    found = []
    architecture = ""
    for line in run(cuobjdump, "-sass", file).splitlines():
        if header := re.search(r"code for (sm_\w+)", line):
            architecture = header.group(1)
        elif header := re.search(r"Function : (\S+)", line):
            found.append(Kernel(architecture, header.group(1)))
        elif found and (instruction := instruction_of(line)):
            found[-1].code.append(instruction)
    return renamed(found)


def resources_of(cuobjdump, file):
    """The same with what they take, and without code."""
    found = []
    architecture = ""
    for line in run(cuobjdump, "--dump-resource-usage", file).splitlines():
        if header := re.match(r"arch = (sm_\w+)", line):
            architecture = header.group(1)
        elif header := re.match(r"\s*Function (\S+):", line):
            found.append(Kernel(architecture, header.group(1)))
        elif usage := re.match(r"\s*REG:(\d+) STACK:(\d+)", line):
            found[-1].registers, found[-1].stack = map(int, usage.groups())
    return renamed(found)


def renamed(kernels):
    for kernel, name in zip(kernels, demangled([kernel.name for kernel in kernels])):
        kernel.name = name
    return kernels


def compiled(nvcc, includes, source, architectures, target):
    """An object for these GPUs, as the build makes it for its own; ccache keeps it."""
    command = [nvcc, "-c", "-std=c++20", "-DNDEBUG", "--expt-relaxed-constexpr", *(f"-I{path}" for path in includes)]
    for architecture in architectures:
        command.append(f"-gencode=arch={architecture.replace('sm', 'compute')},code={architecture}")
    if shutil.which("ccache"):
        command.insert(0, "ccache")
    run(*command, "-o", target, source, env={**os.environ, "CCACHE_BASEDIR": str(ROOT), "CCACHE_NOHASHDIR": "true"})
    return target
