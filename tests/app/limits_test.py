#!/usr/bin/env python3
"""The machine's ends: a full disk behind stdout and stderr, limits of files and memory, outputs that are no plain files.

    limits_test.py LOCKSTEP
"""
import json
import os
import pathlib
import re
import resource
import stat
import struct
import subprocess
import sys
import tempfile
import zlib

from small_run import CONFIG, SMALL, overrides

TINY = [*SMALL, "data.train_images=8", "data.val_images=2"]
KEYS = overrides([*TINY, "run.max_iters=2"])

failures = []


def check(holds, what):
    if not holds:
        failures.append(what)
        print(f"FAILED: {what}")


def run(arguments, **options):
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    environment = {**os.environ, "LOCKSTEP_AUTOTUNE": "", "OMP_NUM_THREADS": "2"}
    return subprocess.run([sys.argv[1], *map(str, arguments)], text=True, errors="replace", env=environment, **options)


def limited(what, value):
    return lambda: resource.setrlimit(what, (value, value))


def png(path, height, width):
    """A black picture."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = zlib.compress(bytes(height * (1 + 3 * width)), 1)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
                     + chunk(b"IDAT", rows) + chunk(b"IEND", b""))


def end_of(folder):
    return json.loads((folder / "events.jsonl").read_text().splitlines()[-1])


def full_output(place):
    if not os.path.exists("/dev/full"):
        print("SKIPPED: there is no /dev/full")
        return
    run_folder = place / "run"
    with open("/dev/full", "w") as full:
        for name, arguments in {
                "train": ["train", CONFIG, "-d", "cpu:1", "-o", place / "full", *KEYS],
                "compare": ["compare", CONFIG, "-d", "cpu:2", "--modes", "local,sync", "--seeds", "1", "--no-images", "-o",
                            place / "comparison", *KEYS],
                "eval": ["eval", run_folder], "predict": ["predict", run_folder, place / "small", "-o", place / "full_maps"],
                "export": ["export", "safetensors", run_folder, "-o", place / "a"], "report": ["report", run_folder, "--no-images"],
                "logs": ["logs", "show", run_folder], "data": ["data", "check", CONFIG, *overrides(TINY)],
                "plan": ["plan", CONFIG, "-d", "cpu:1", *KEYS], "config": ["config", "show", CONFIG],
                "doctor": ["doctor"], "docs": ["docs"], "inspect": ["inspect", run_folder / "ckpt/last.safetensors"],
                "bench": ["bench", "step", CONFIG, "-d", "cpu:1", "--iters", "1", *KEYS], "help": ["--help"],
                "version": ["--version"], "eval --help": ["eval", "--help"]}.items():
            done = run(arguments, stdout=full, stderr=full)
            check(done.returncode == 1, f"{name} on a full disk: exit code {done.returncode}, expected 1")
            done = run(arguments + (["--force"] if name == "predict" else []), stdout=full) if name not in ("train", "compare") else None
            check(done is None or "standard output cannot be written: No space left on device" in done.stderr,
                  f"{name} does not say that its output is lost: {done and done.stderr}")
        done = run(["eval", place / "none"], stdout=full, stderr=full)
        check(done.returncode in (2, 3), f"an error is hidden by a full disk: exit code {done.returncode}")
    check(end_of(place / "full")["status"] == "done", "a run with a full disk behind its output is not complete")
    check((place / "comparison/comparison.json").exists(), "a comparison with a full disk behind its output is not complete")
    check((place / "full_maps").exists() and (place / "a").exists(), "what a command makes is not there")


def closed_streams(place):
    """A file that is opened takes the number of a stream that is closed."""
    def close(*streams):
        return lambda: [os.close(stream) for stream in streams]
    for name, streams in {"open": (), "stdout": (1,), "all": (0, 1, 2)}.items():
        done = run(["train", CONFIG, "-d", "cpu:1", "-o", place / f"closed_{name}", *KEYS], preexec_fn=close(*streams))
        check(done.returncode == 0, f"closed streams, {name}: exit code {done.returncode}\n{done.stderr}")
    lines = {name: len((place / f"closed_{name}/run.log").read_text().splitlines()) for name in ("open", "stdout", "all")}
    check(len(set(lines.values())) == 1, f"what is printed is written to a file that took a closed stream's number: lines {lines}")


def file_size(place):
    done = run(["train", CONFIG, "-d", "cpu:1", "-o", place / "short", *KEYS, "-s", "model.width=8"],
               preexec_fn=limited(resource.RLIMIT_FSIZE, 20000))
    check(done.returncode == 1, f"a limit of file sizes: exit code {done.returncode}, expected 1\n{done.stderr}")
    check("File too large" in done.stderr and "ulimit -f" in done.stderr, f"a limit of file sizes is not told: {done.stderr}")
    check(end_of(place / "short")["status"] == "failed", f"the run does not say that it failed: {end_of(place / 'short')}")


def memory(place):
    images = place / "images"
    images.mkdir()
    for name, size in {"a": 32, "b": 4096, "c": 40}.items():
        png(images / f"{name}.png", size, size)
    one_piece = ["--window", "4096,4096"]
    done = run(["predict", place / "run", images, "-o", place / "maps", *one_piece], preexec_fn=limited(resource.RLIMIT_AS, 700 << 20))
    check(done.returncode == 1, f"predict without memory: exit code {done.returncode}, expected 1\n{done.stderr}")
    check("1 of 3 images failed" in done.stderr and str(images / "b.png") in done.stderr, f"the image is not named: {done.stderr}")
    check(" memory for " in done.stderr and "use smaller images" in done.stderr, f"no way out is told: {done.stderr}")
    for name in "ac":
        check((place / "maps" / f"{name}.png").exists(), f"{name}.png is not predicted, because another image failed")
    done = run(["predict", place / "run", images, "-o", place / "windows"], preexec_fn=limited(resource.RLIMIT_AS, 700 << 20))
    check(done.returncode == 0 and "in windows of 512x512" in done.stderr, f"predict in windows: {done.returncode}\n{done.stderr}")
    keys = overrides([*TINY, "data.size=[2048,2048]", "run.max_iters=1"])
    for arguments in (["train", CONFIG, "-o", place / "large"], ["plan", CONFIG], ["bench", "step", CONFIG]):
        done = run([*arguments, "-d", "cpu:1", *keys], preexec_fn=limited(resource.RLIMIT_AS, 500 << 20))
        check(done.returncode in (1, 5), f"{arguments[0]} without memory: exit code {done.returncode}\n{done.stderr}")
        check("memory for " in done.stderr and "use smaller images" in done.stderr, f"{arguments[0]}: no way out: {done.stderr}")


def open_files(place):
    done = run(["train", CONFIG, "-d", "cpu:1", "-o", place / "few", *KEYS], preexec_fn=limited(resource.RLIMIT_NOFILE, 6))
    check(done.returncode == 1, f"a limit of open files: exit code {done.returncode}, expected 1")
    check("Too many open files; allow more" in done.stderr, f"a limit of open files is not told: {done.stderr}")


def outputs(place):
    """Everything that takes the name of a file to write."""
    run_folder, null, link, target = place / "run", place / "null", place / "link", place / "target"
    device = True
    try:
        os.mknod(null, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        null.open("w").close()
    except OSError as error:
        print(f"SKIPPED: no device can be made here ({error})")
        device = False
    for arguments in (["export", "safetensors", run_folder, "-o"], ["export", "onnx", run_folder, "-o"],
                      ["report", run_folder, "--no-images", "-o"], ["logs", "export", run_folder, "--csv"],
                      ["logs", "plot", run_folder, "--svg"]):
        name = " ".join(map(str, arguments[:2] + arguments[-1:]))
        if device:
            done = run([*arguments, null])
            check(done.returncode == 0, f"{name} a device: exit code {done.returncode}\n{done.stderr}")
            check(stat.S_ISCHR(null.lstat().st_mode), f"{name} replaces a device")
        target.write_text("old")
        link.unlink(missing_ok=True)
        link.symlink_to("target")
        done = run([*arguments, link])
        check(done.returncode == 0, f"{name} a link: exit code {done.returncode}\n{done.stderr}")
        check(link.is_symlink() and target.read_bytes() not in (b"", b"old"), f"{name} does not write what a link leads to")
        done = run([*arguments, "/dev/stdout"], stdout=subprocess.PIPE)
        check(done.returncode == 0 and done.stdout, f"{name} /dev/stdout: exit code {done.returncode}\n{done.stderr}")
    for folder, file in (("maps", "a.png"), ("run", "report.html")):
        path = place / folder / file
        path.unlink(missing_ok=True)
        path.symlink_to(target)
        target.write_text("old")
        done = run(["report", run_folder, "--no-images"] if folder == "run" else
                   ["predict", run_folder, place / "images/a.png", "-o", place / folder, "--force"])
        check(done.returncode == 0, f"{path}: exit code {done.returncode}\n{done.stderr}")
        check(path.is_symlink() and target.read_bytes() != b"old", f"{path}: a link is replaced")


def spin_counts(**variables):
    """What OpenMP has read of its environment, each time the program was executed."""
    environment = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    done = subprocess.run([sys.argv[1], "--version"], capture_output=True, text=True,
                          env={**environment, **variables, "OMP_DISPLAY_ENV": "verbose"})
    check(done.returncode == 0 and done.stdout.startswith("lockstep "), f"--version, {variables}: {done.stderr}")
    return re.findall(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr)


def waiting(place):
    counts = spin_counts()
    if not counts:
        print("SKIPPED: this program's OpenMP is not GCC's")
        return
    check(counts[-1] == "1000", f"threads that wait look {counts[-1]} times, expected 1000")
    check(spin_counts(GOMP_SPINCOUNT="77") == ["77"], "a user's own GOMP_SPINCOUNT does not win")
    check(len(spin_counts(OMP_WAIT_POLICY="active")) == 1, "a user's own OMP_WAIT_POLICY does not win")


def main():
    with tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place).resolve()
        done = run(["train", CONFIG, "-d", "cpu:1", "-o", place / "run", *KEYS])
        if done.returncode != 0:
            sys.exit(done.stderr)
        (place / "small").mkdir()
        png(place / "small/a.png", 32, 32)
        for part in (full_output, closed_streams, file_size, memory, open_files, outputs, waiting):
            part(place)
            print(f"{part.__name__}: done")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
