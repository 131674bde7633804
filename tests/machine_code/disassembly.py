"""What NVIDIA's tools say of compiled kernels."""
import os
import pathlib
import re
import shutil
import subprocess
from dataclasses import dataclass, field

ROOT = pathlib.Path(__file__).resolve().parents[2]
NAMESPACES = re.compile(r"lockstep::gpu::|lockstep::|\(anonymous namespace\)::|_GLOBAL__N_\w+::")
ARCHITECTURE = re.compile(r"(?:.*code for |arch = )(sm_\w+)")
FUNCTION = re.compile(r"\s*Function (?:: )?(\S+?):?$")
USAGE = re.compile(r"\s*REG:(\d+) STACK:(\d+)")
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


def read_kernels(text, take):
    """The kernels that cuobjdump lists; take(kernel, line) is called with every line about one."""
    found = []
    architecture = ""
    for line in text.splitlines():
        if header := ARCHITECTURE.match(line):
            architecture = header.group(1)
        elif header := FUNCTION.match(line):
            found.append(Kernel(architecture, header.group(1)))
        elif found:
            take(found[-1], line)
    return renamed(found)


def kernels_of(cuobjdump, file):
    """The kernels of an object or a cubin, with their code."""
    def take(kernel, line):
        if instruction := instruction_of(line):
            kernel.code.append(instruction)
    return read_kernels(run(cuobjdump, "-sass", file), take)


def resources_of(cuobjdump, file):
    """The same with what they take, and without code."""
    def take(kernel, line):
        if usage := USAGE.match(line):
            kernel.registers, kernel.stack = map(int, usage.groups())
    return read_kernels(run(cuobjdump, "--dump-resource-usage", file), take)


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
