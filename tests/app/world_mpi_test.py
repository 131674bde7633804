#!/usr/bin/env python3
"""Several processes under mpirun train, evaluate and compare to the bytes of one, go on from each other's checkpoints, stop together
when they are asked to, and name the one that dies.

    world_mpi_test.py LOCKSTEP

Says SKIPPED without mpirun or without liblockstep_mpi.so beside the program (apt-get install libopenmpi-dev openmpi-bin, then build again).
"""
import hashlib
import json
import os
import pathlib
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from small_run import CONFIG, SMALL, overrides

PROGRAM = pathlib.Path(sys.argv[1]).resolve()
KEYS = [*SMALL, "data.train_images=24", "data.val_images=5", "run.max_iters=6", "bn.mode=sync", "run.checkpoint_every=3", "run.val_every=3"]
ENVIRONMENT = dict(os.environ, OMP_NUM_THREADS="1", LOCKSTEP_AUTOTUNE="", OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                   OMPI_MCA_rmaps_base_oversubscribe="1", PRTE_MCA_rmaps_default_mapping_policy=":oversubscribe")  # Open MPI 4; 5
RANK = "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}"  # of a process, in a shell: Open MPI's name, or MPICH's

if shutil.which("mpirun") is None or not (PROGRAM.parent / "liblockstep_mpi.so").exists():
    print("SKIPPED: no mpirun, or no liblockstep_mpi.so beside", PROGRAM)
    sys.exit(0)


def launched(processes, *words, under=()):
    launcher = ["mpirun", "-np", processes, "--bind-to", "none", *under] if processes > 1 else []
    return list(map(str, [*launcher, PROGRAM, *words]))


def command(processes, devices, folder, *arguments, settings=(), under=()):
    return launched(processes, "train", CONFIG, "-d", devices, "-o", folder, *overrides([*KEYS, *settings]), *arguments, under=under)


def run(words, code=0, environment=ENVIRONMENT):
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=240)
    if done.returncode != code:
        sys.exit(f"{words}: exit code {done.returncode}, expected {code}\n{done.stdout}{done.stderr}")
    return done


def train(*words, code=0, environment=ENVIRONMENT, **options):
    done = run(command(*words, **options), code, environment)
    return done.stdout + done.stderr


def wait_for(path):
    end = time.time() + 120
    while time.time() < end and not path.exists():
        time.sleep(0.1)


def bytes_of(folder):
    return hashlib.sha256((folder / "ckpt/last.safetensors").read_bytes()).hexdigest()


def expect(text, *parts):
    for part in parts:
        if part not in text:
            sys.exit(f"expected '{part}' in:\n{text}")


with tempfile.TemporaryDirectory() as name:
    root = pathlib.Path(name)
    train(1, "cpu:8", root / "one")
    for processes, devices in ((2, "cpu:4"), (4, "cpu:2"), (2, "cpu:1")):
        folder = root / f"{processes}x{devices}"
        train(processes, devices, folder)
        if bytes_of(folder) != bytes_of(root / "one"):
            sys.exit(f"{processes} processes of {devices} end at other bytes than one of cpu:8")
        if (folder / "scalars.json").read_bytes() != (root / "one/scalars.json").read_bytes():
            sys.exit(f"{processes} processes of {devices} write another scalars.json")
        if not (folder / "processes/1/run.log").exists():
            sys.exit("process 1 has no log")
    print("2 x cpu:4, 4 x cpu:2 and 2 x cpu:1 end at the bytes of cpu:8")

    first = root / "2xcpu:4/ckpt/iter_3.safetensors"
    for target, processes, devices in ((root / "go_on", 3, "cpu:1"), (root / "alone", 1, "cpu:3")):
        train(processes, devices, target, "--resume", first)
        if bytes_of(target) != bytes_of(root / "one"):
            sys.exit(f"going on from 2 x cpu:4 on {processes} x {devices} ends at other bytes")
    print("a run goes on with other processes, or alone, to the same bytes")

    train(2, "cpu:1", root / "apart", settings=["bn.mode=local"])
    expect(train(1, "cpu:1", root / "not_alone", "--resume", root / "apart/ckpt/last.safetensors", settings=["bn.mode=local", "run.max_iters=8"], code=2),
           "statistics of its own; use -d cpu:1 in each of 2 processes")
    print("a run that has to go on as it was says how that is")

    for windows in ((), ("--window", "16,16")):
        reports = [json.loads(run(launched(processes, "eval", root / "one", "-d", devices, "--json", *windows)).stdout)
                   for processes, devices in ((1, "cpu:4"), (2, "cpu:2"))]
        for report in reports:
            del report["devices"], report["seconds"]
        if reports[0] != reports[1] or ("tile_mismatch" in reports[0]) != bool(windows):
            sys.exit(f"two processes evaluate to\n{reports[1]}\nand one to\n{reports[0]}")
    print("two processes evaluate as one does, in one piece and in windows")

    for processes, devices in ((1, "cpu:4"), (2, "cpu:2"), (2, "cpu:2")):  # the third finds all of it done
        text = run(launched(processes, "compare", CONFIG, "-d", devices, "--modes", "local,sync,ghost", "--seeds", 1, "-o", root / f"of{processes}",
                            "--no-images", *overrides(key for key in KEYS if not key.startswith("bn.")))).stdout
        if not (root / f"of{processes}/report.html").exists():
            sys.exit(f"compare of {processes} processes wrote no report\n{text}")
    expect(text, "local: cpu:2 in each of 2 processes", "| sync  | cpu:2 in each of 2 processes |", "[3/3] ghost seed 0: done before")
    for cell in ("local-s0", "sync-s0", "ghost-s0"):
        if bytes_of(root / "of1" / cell) != bytes_of(root / "of2" / cell):
            sys.exit(f"compare of two processes comes to another {cell}")
    print("two processes compare modes as one does")

    step = json.loads(run(launched(2, "bench", "step", CONFIG, "-d", "cpu:2", "--iters", 2, "--json", *overrides([*KEYS, "batch.global=8"]))).stdout)
    # Gradients and new weights are most of it: half of the parameters each way.
    if step["processes"] != 2 or step["devices"] != 4 or not 4 * step["parameters"] < step["bytes_given_per_step"] < 16 * step["parameters"]:
        sys.exit(f"bench step of two processes: {step}")
    exchange = json.loads(run(launched(2, "bench", "exchange", "-d", "cpu:2", "--iters", 1, "--json")).stdout)
    if {case["ranks"] for case in exchange["cases"]} != {4}:
        sys.exit(f"bench exchange of two processes: {exchange}")
    print("two processes are timed together")

    # Each process with a file of choices of its own; the second one's are all of the slowest kind.
    own = root / "own_choices.sh"
    own.write_text('#!/bin/sh\nexport LOCKSTEP_AUTOTUNE=$1/choices%s.json\nshift\nexec "$@"\n' % RANK)
    own.chmod(0o755)
    timed = dict(ENVIRONMENT, LOCKSTEP_AUTOTUNE=str(root / "choices0.json"))
    train(1, "cpu:2", root / "timed", environment=timed)
    choices = json.loads((root / "choices0.json").read_text())
    for problems in choices["choices"].values():
        for entry in problems.values():
            entry["choice"] = max(entry["milliseconds"], key=entry["milliseconds"].get)
    (root / "choices1.json").write_text(json.dumps(choices))
    train(2, "cpu:1", root / "follows", under=[own, root])
    if bytes_of(root / "follows") != bytes_of(root / "timed"):
        sys.exit("a process whose clock has chosen other convolutions does not compute as the first one")
    expect((root / "follows/processes/1/run.log").read_text(), "as process 0")
    print("all processes compute with the convolutions of the first")

    # mpirun hands SIGUSR1 on.
    asked = subprocess.Popen(command(2, "cpu:1", root / "asked", settings=["run.max_iters=100000", "run.val_every=0"]),
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ENVIRONMENT)
    wait_for(root / "asked/ckpt/last.safetensors")
    asked.send_signal(signal.SIGUSR1)
    output, _ = asked.communicate(timeout=120)
    expect(output, "go on, in each of 2 processes (mpirun -np 2), with:", "lockstep train", "--resume")
    if asked.returncode != 130:
        sys.exit(f"a run that was asked to stop ends with {asked.returncode}, expected 130\n{output}")
    print("processes that are asked to stop finish the step, save, and say how to go on")

    text = train(2, "cpu:1", root / "bad", settings=["model.width=4x"], code=2)
    expect(text, "model.width")
    script = root / "differing.sh"
    script.write_text('#!/bin/sh\nexec "$@" --seed %s\n' % RANK)
    script.chmod(0o755)
    expect(train(2, "cpu:1", root / "differing", under=[script], code=2), "another configuration")
    print("a wrong configuration, and two, are told from each other")

    if platform.machine() == "x86_64":
        script.write_text('#!/bin/sh\nif [ %s = 1 ]; then LOCKSTEP_CPU=portable; else LOCKSTEP_CPU=avx2; fi\n'
                          'export LOCKSTEP_CPU\nexec "$@"\n' % RANK)
        text = train(2, "cpu:1", root / "instructions", under=[script], code=2)
        expect(text, "computes with other instructions than", "LOCKSTEP_CPU")
        for processes, devices in ((2, "cpu:1"), (1, "cpu:2")):
            train(processes, devices, root / f"portable{processes}", settings=["run.portable=true"])
        if bytes_of(root / "portable2") != bytes_of(root / "portable1"):
            sys.exit("a portable training of two processes is not bitwise identical to that of one")
        print("processes of other instructions are told from each other, and a portable training has the bytes of one process")

    if os.cpu_count() > 1:
        core = min(os.sched_getaffinity(0))
        free = {name: value for name, value in ENVIRONMENT.items() if name != "OMP_NUM_THREADS"}
        text = train(2, "cpu:1", root / "bound", under=["taskset", "-c", core], environment=free)
        expect(text, f"this process may use 1 of the {os.cpu_count()} cores of its machine; give mpirun --bind-to none")
        print("processes that are bound to a core say so")

    running = subprocess.Popen(command(2, "cpu:2", root / "killed", settings=["run.max_iters=100000", "run.val_every=0"]),
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ENVIRONMENT)
    wait_for(root / "killed/ckpt/last.safetensors")
    pids = []
    for status in pathlib.Path("/proc").glob("[0-9]*/environ"):
        try:
            environ = status.read_bytes().split(b"\0")
            if {b"OMPI_COMM_WORLD_RANK=1", b"PMI_RANK=1"} & set(environ) and (status.parent / "exe").resolve() == PROGRAM and str(root).encode() in (
                    status.parent / "cmdline").read_bytes():
                pids.append(int(status.parent.name))
        except OSError:
            pass
    if len(pids) != 1:
        sys.exit(f"expected process 1 to run once, found {pids}")
    os.kill(pids[0], signal.SIGKILL)
    output, _ = running.communicate(timeout=60)
    expect(output, "process 1", "ended without a word")
    log = (root / "killed/run.log").read_text()
    for text, where in ((output, "the output"), (log, "run.log")):
        if text.count("ended without a word") != 1:
            sys.exit(f"expected {where} to say once what has ended, got\n{text[-2000:]}")
    if running.returncode == 0:
        sys.exit("mpirun says that all is well")
    expect((root / "killed/events.jsonl").read_text(), "ended without a word", "heard at replica", ", step ")
    print(f"a killed process is named, with where the other was; mpirun ends with {running.returncode}")
