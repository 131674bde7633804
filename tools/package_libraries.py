"""Puts the libraries that a program needs beside it: package_libraries.py FOLDER, which has bin/lockstep.

They come into FOLDER/lib, each with what its licence says in FOLDER/share/doc/lockstep/licences. The C and C++ libraries stay
those of the system, as manylinux wants it: every Linux has them, and a newer one runs what an older one does.
"""
import pathlib
import re
import shutil
import subprocess
import sys

SYSTEM = re.compile(r"(ld-linux.*|lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s))\.so\..*")


def output_of(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def needed(binary):
    """{name: path} of the libraries that the loader finds for it, without those of the system."""
    found = re.findall(r"^\s*(\S+) => (/\S+)", output_of("ldd", str(binary)), re.M)
    return {name: pathlib.Path(path) for name, path in found if not SYSTEM.fullmatch(name)}


def package_of(library):
    """Debian's package that a library is of, which may know it by its path in /lib or in /usr/lib."""
    path = str(library.resolve())
    for path in (path, path.removeprefix("/usr")):
        done = subprocess.run(["dpkg-query", "-S", str(path)], capture_output=True, text=True)
        if done.returncode == 0:
            return done.stdout.split(":")[0]
    sys.exit(f"package_libraries: no package has {library}; whose licence would it be?")


def main():
    folder = pathlib.Path(sys.argv[1])
    program = folder / "bin/lockstep"
    libraries = folder / "lib"
    licences = folder / "share/doc/lockstep/licences"
    libraries.mkdir()
    licences.mkdir(parents=True)
    for name, path in needed(program).items():
        copy = libraries / name
        shutil.copy(path.resolve(), copy)
        copy.chmod(0o755)
        subprocess.run(["patchelf", "--set-rpath", "$ORIGIN", copy], check=True)
        package = package_of(path)
        shutil.copyfile(f"/usr/share/doc/{package}/copyright", licences / f"{package}.txt")
        print(f"{name} of {package}")
    subprocess.run(["patchelf", "--set-rpath", "$ORIGIN/../lib", program], check=True)
    # What the compiler linked in.
    shutil.copyfile("/usr/share/doc/libstdc++6/copyright", licences / "libstdc++6.txt")


main()
