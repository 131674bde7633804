"""Makes the wheel: package_wheel.py STANDALONE OUTPUT [MODULE]. Prints its path.

It is the package of python/, with the folder STANDALONE (the program and its libraries) inside of it and a command
`lockstep`. The tag names the oldest C library that all binaries can do with. With MODULE, the compiled lockstep_native, the
wheel is for the Pythons that can load that, which pip prefers to one for all.
"""
import base64
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
COMMAND = "[console_scripts]\nlockstep = lockstep._program:main\n"


def pure_wheel(folder):
    """{name: bytes} of the package without the program."""
    subprocess.run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", folder,
                    str(ROOT / "python")], check=True, stdout=sys.stderr)
    (path,) = pathlib.Path(folder).glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        return path.name, {name: wheel.read(name) for name in wheel.namelist()}


def oldest_glibc(binaries):
    """The smallest X of glibc 2.X that has all symbols."""
    versions = {0}
    for binary in binaries:
        symbols = subprocess.run(["objdump", "-T", str(binary)], capture_output=True, text=True, check=True).stdout
        versions |= {int(minor) for minor in re.findall(r"GLIBC_2\.(\d+)", symbols)}
    return max(versions)


def pythons_of(module):
    """What a wheel's tag says of the Pythons that can load a compiled module, by its name."""
    if module.name.endswith(".abi3.so"):
        return "cp312-abi3"  # where nanobind's stable ABI begins
    version = re.search(r"\.cpython-(\d+)-", module.name).group(1)
    return f"cp{version}-cp{version}"


def with_libraries(module, folder):
    """A copy that finds the program's libraries."""
    copy = pathlib.Path(shutil.copy(module, folder))
    subprocess.run(["patchelf", "--set-rpath", "$ORIGIN/lockstep/lib", copy], check=True)
    return copy


def record(files, path):
    def line(name, data):
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        return f"{name},sha256={digest},{len(data)}\n"
    return "".join(line(name, data) for name, data in sorted(files.items())) + f"{path},,\n"


def main():
    standalone, output, *modules = map(pathlib.Path, sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        name, files = pure_wheel(folder)
        files |= {module.name: with_libraries(module, folder).read_bytes() for module in modules}
    (info,) = {path.split("/")[0] for path in files if ".dist-info/" in path}
    programs = {f"lockstep/{path.relative_to(standalone)}": path for path in standalone.rglob("*") if path.is_file()}
    binaries = [*modules, *(path for path in programs.values() if path.read_bytes()[:4] == b"\x7fELF")]
    pythons = pythons_of(*modules) if modules else "py3-none"
    tag = f"{pythons}-manylinux_2_{oldest_glibc(binaries)}_x86_64"
    files |= {inside: path.read_bytes() for inside, path in programs.items()}
    files[f"{info}/entry_points.txt"] = COMMAND.encode()
    about = files[f"{info}/WHEEL"].decode()
    about = re.sub(r"^Tag: .*$", f"Tag: {tag}", about, flags=re.M)
    files[f"{info}/WHEEL"] = re.sub(r"^Root-Is-Purelib: .*$", "Root-Is-Purelib: false", about, flags=re.M).encode()
    files.pop(f"{info}/RECORD")
    files[f"{info}/RECORD"] = record(files, f"{info}/RECORD").encode()

    when = time.gmtime(max(int(os.environ.get("SOURCE_DATE_EPOCH", time.time())), 315619200))  # a ZIP begins in 1980
    path = output / f"{'-'.join(name.split('-')[:2])}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:
        for inside, data in sorted(files.items()):
            entry = zipfile.ZipInfo(inside, when[:6])
            runs = inside in programs and os.access(programs[inside], os.X_OK)
            entry.external_attr = (0o100755 if runs else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, data, compresslevel=9)
    print(path)


main()
