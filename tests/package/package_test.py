"""The packages as a stranger has them: package_test.py SOURCE_DIR BUILD_DIR.

The wheel is installed into a fresh virtual environment beside numpy, and the tarball is unpacked into a folder that has the C
and C++ libraries, which becomes the root of all files: no compiler, no development package, no other library. There a
comparison is trained. A check that is done in parts ($LOCKSTEP_CHECK_PART) packs what BUILD_DIR has compiled;
else the packages have a build of their own, as who calls tools/package has.
"""
import ctypes.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

MOST_BYTES = 25_000_000
COMPARE = ["compare", "data/configs/quickstart.toml", "--modes", "local,sync", "--seeds", "1", "-d", "cpu:2",
           "-s", "run.epochs=1", "-o", "/tmp/compare"]


def run(*command, **options):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


def check_wheel(wheel, source, folder):
    """What pip, uv and pipx do; returns the program inside."""
    size = wheel.stat().st_size
    tag = re.search(r"py3-none-manylinux_2_(\d+)_x86_64\.whl$", wheel.name)
    if size > MOST_BYTES or not tag:
        sys.exit(f"expected a manylinux wheel of at most {MOST_BYTES} bytes, got {wheel.name} of {size}")
    run(sys.executable, "-m", "venv", "--system-site-packages", folder / "venv")
    run(folder / "venv/bin/python", "-m", "pip", "install", "--no-deps", "--no-index", wheel)
    place = {"cwd": folder, "env": {"PATH": "/usr/bin:/bin", "HOME": str(folder), "LOCKSTEP_AUTOTUNE": ""}}
    (folder / "empty").mkdir()
    arguments = [word.replace("/tmp/compare", str(folder / "compare")) for word in COMPARE]
    run(folder / "venv/bin/lockstep", *arguments, **{**place, "cwd": folder / "empty"})
    if not (folder / "compare/report.html").exists():
        sys.exit("the wheel's comparison wrote no report.html")
    (program,) = (folder / "venv").glob("lib/python*/site-packages/lockstep/bin/lockstep")
    print(f"wheel: {wheel.name}, {size / 1e6:.1f} MB")
    # The same bits as the build's own program, which is tried on other processors, too.
    print(run(sys.executable, "-B", source / "tests/app/portable_test.py", program, "--here"), end="")


def check_native(wheel, source, folder):
    """The wheel with lockstep.native, installed as pip chooses it, trains."""
    run(sys.executable, "-m", "venv", "--system-site-packages", folder / "native")
    python = folder / "native/bin/python"
    run(python, "-m", "pip", "install", "--no-deps", "--no-index", "--find-links", wheel.parent, "lockstep-trainer")
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "LOCKSTEP_AUTOTUNE": ""}
    said = run(python, source / "python/examples/own_loop.py", cwd=folder / "empty", env=environment)
    if "of the pixels of new images are right" not in said:
        sys.exit(f"the wheel's lockstep.native said {said}")
    print(f"wheel: {wheel.name}, {wheel.stat().st_size / 1e6:.1f} MB, with lockstep.native")


def check_tarball(tarball, folder):
    if os.geteuid() != 0:
        print("SKIPPED: only root may change the root of all files, so the tarball was not tried in a bare one")
        return
    root = folder / "root"
    for needed in ("lib64", "tmp", "proc", "lib/x86_64-linux-gnu"):
        (root / needed).mkdir(parents=True)
    shutil.copy("/lib64/ld-linux-x86-64.so.2", root / "lib64")
    for library in ("c", "m", "dl", "rt", "pthread", "stdc++", "gcc_s"):
        name = ctypes.util.find_library(library)
        shutil.copy(f"/lib/x86_64-linux-gnu/{name}", root / "lib/x86_64-linux-gnu")
    run("tar", "xf", tarball, "-C", root)
    (unpacked,) = root.glob("lockstep-*")
    # A program finds the libraries beside it by /proc/self/exe.
    if subprocess.run(["mount", "-t", "proc", "proc", root / "proc"], check=False).returncode != 0:
        print("SKIPPED: /proc cannot be mounted here, so the tarball was not tried in a bare root")
        return
    try:
        run("/usr/sbin/chroot", root, f"/{unpacked.name}/bin/lockstep", *COMPARE, env={"HOME": "/tmp", "LOCKSTEP_AUTOTUNE": ""})
    finally:
        run("umount", root / "proc")
    if not (root / "tmp/compare/report.html").exists():
        sys.exit("the tarball's comparison wrote no report.html")
    print(f"tarball: {tarball.name}, {tarball.stat().st_size / 1e6:.1f} MB; ran with the C and C++ libraries alone")


def main():
    source = pathlib.Path(sys.argv[1]).resolve()
    part = os.environ.get("LOCKSTEP_CHECK_PART")
    of = ["--of", sys.argv[2]] if part else []
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        nanobind = {**os.environ, "PYTHONPATH": str(source / ".python_tools")}
        has_nanobind = subprocess.run(["/usr/bin/python3", "-c", "import nanobind"], env=nanobind, capture_output=True).returncode == 0
        native = ["native"] if has_nanobind else []
        print(run(source / "tools/package", "wheel", "tarball", *native, "-o", folder, *of), end="")
        (wheel,) = folder.glob("*-py3-none-*.whl")
        (tarball,) = folder.glob("*.tar.xz")
        check_wheel(wheel, source, folder)
        for wheel in folder.glob("*-cp*.whl"):
            check_native(wheel, source, folder)
        if not has_nanobind:
            print("SKIPPED: there is no nanobind, so the wheel with lockstep.native was not made")
        check_tarball(tarball, folder)


main()
