"""run.portable = true: the bytes that a small training ends at are the same for any devices and on any processor.

portable_test.py PROGRAM [--here]. GOLDEN has the bytes' hash, which every machine must come to. Under qemu-x86_64, where it is
installed, other processors are tried as well, unless --here is given: they have other caches and no AVX-512. A check that is
done in parts ($LOCKSTEP_CHECK_PART, K/N) tries one of them, and not the network of 11 million weights, whose training takes
five minutes there.
"""
import hashlib
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib

from small_run import CONFIG, SMALL, overrides

# What GCC of this version compiles. Another compiler may fuse other products and sums.
GOLDEN = {
    "12.2.0": {"unet": "28f7cf0609ea6d19", "narrow resnet18": "424961f5aaf969b0", "resnet18": "1b868da541444936",
               "exact unet": "9fcf1b87547c4854"},
}
# strides and a kernel of 7x7, which oneDNN computes
RESNET18 = ["model.arch=resnet18", "data.layout=shapes", "data.size=[64,64]", "bn.mode=sync", "run.max_iters=3",
            "data.train_images=16", "data.val_images=4", "data.augment.crop=[64,64]"]
UNET = SMALL + ["bn.mode=sync", "run.max_iters=6", "data.train_images=32", "data.val_images=4", "optim.lr=0.05"]
TRAININGS = {
    "unet": UNET,
    "exact unet": [*UNET, "run.tf32=false"],  # without tiles of 4x4
    "narrow resnet18": [*RESNET18, "model.resnet_width=16"],
    "resnet18": RESNET18,
}
PROCESSORS = ("Haswell", "EPYC-Rome")
# The program would start itself again to have it set, and leave the processor that qemu imitates.
ENVIRONMENT = {**os.environ, "GOMP_SPINCOUNT": "1000"}
PART, PARTS = map(int, os.environ.get("LOCKSTEP_CHECK_PART", "1/1").split("/"))


def processors(name):
    """Those that this training is tried on."""
    if "--here" in sys.argv:
        return ()
    if PARTS == 1:
        return PROCESSORS
    return () if name == "resnet18" else PROCESSORS[PART % 2:][:1]


def tensors_hash(checkpoint):
    """Of all that is behind the header of a safetensors file, which names versions."""
    data = checkpoint.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    return hashlib.sha256(data[8 + length:]).hexdigest()[:16]


def train(command, keys, devices, folder):
    done = subprocess.run([*command, "train", str(CONFIG), *overrides(keys + ["run.portable=true"]), "-d", devices,
                           "-o", str(folder)], capture_output=True, text=True,
                          env={**ENVIRONMENT, "OMP_NUM_THREADS": "2"}, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return tensors_hash(folder / "ckpt/last.safetensors")


def write_image(path, width=64, height=48):
    """A colourful PNG."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = b"".join(b"\0" + bytes(x * y % 251 for x in range(3 * width)) for y in range(height))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) +
                     chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def answers(program, run, kernels, folder):
    """To the last digit, what an evaluation and a prediction find where $LOCKSTEP_CPU is `kernels`."""
    environment = {**os.environ, "LOCKSTEP_CPU": kernels}

    def ask(*arguments):
        done = subprocess.run([program, *map(str, arguments), "-d", "cpu:1"], capture_output=True, text=True,
                              env=environment, check=False)
        if done.returncode != 0:
            sys.exit(f"{arguments[0]}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    loss = json.loads(ask("eval", run, "--flip", "--json"))["loss"]
    image, output = folder / "image.png", folder / f"predictions {kernels}"
    write_image(image)
    ask("predict", run, image, "-o", output, "--probabilities", "--no-overlay")
    (probabilities,) = output.glob("*.npy")
    return {"eval --flip": loss, "predict": hashlib.sha256(probabilities.read_bytes()).hexdigest()[:16]}


def main():
    program = sys.argv[1]
    problems = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        for name, keys in TRAININGS.items():
            found = train([program], keys, "cpu:1", folder / name)
            compiler = json.loads((folder / name / "env.json").read_text())["compiler"].split(" ")[0]
            if compiler not in GOLDEN:
                print(f"SKIPPED: no hash is known of what the compiler {compiler} makes; it made {name} {found}")
            elif found != GOLDEN[compiler][name]:
                problems.append(f"{name}: expected {GOLDEN[compiler][name]}, got {found}")
            others = {"three devices": ([program], "cpu:3")}
            if shutil.which("qemu-x86_64"):
                others |= {each: (["qemu-x86_64", "-cpu", each, program], "cpu:1") for each in processors(name)}
            elif processors(name):
                print("SKIPPED: qemu-x86_64 is not installed (Debian: qemu-user), so no other processors were tried")
            for other, (command, devices) in others.items():
                same = train(command, keys, devices, folder / f"{name} {other}".replace(" ", "_"))
                print(f"{name}, {other}: {same}")
                if same != found:
                    problems.append(f"{name}, {other}: expected {found} as on one device of this machine, got {same}")
        here, elsewhere = (answers(program, folder / "unet", kernels, folder) for kernels in ("", "portable"))
        if here != elsewhere:
            problems.append(f"a portable run: the fastest kernels of this machine find {here}, those of every machine {elsewhere}")
    if shutil.which("qemu-x86_64"):
        old = subprocess.run(["qemu-x86_64", "-cpu", "Nehalem", program, "--version"], capture_output=True, text=True,
                             env=ENVIRONMENT, check=False)
        if old.returncode != 1 or "needs a processor with AVX2" not in old.stderr:
            problems.append(f"an old processor: expected exit code 1 and a sentence, got {old.returncode}: {old.stderr}")
    if problems:
        sys.exit("\n".join(problems))


main()
