#!/usr/bin/env python3
"""Loads exported weights into PyTorch's own networks with load_state_dict(strict=True), after training in every mode.

    export_test.py RUN_MODEL LOCKSTEP

resnet18: a step on two devices, saved with save_safetensors; torchvision's network has our logits then. fcn_resnet50 and
the U-Net: `lockstep train`, `lockstep export safetensors` and `lockstep export onnx`; the weights are those of the checkpoint.
"""
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/oracle"), str(ROOT / "tools/measure")]

try:
    import numpy
    import torch
    import torchvision
except ImportError as error:
    print(f"SKIPPED: torchvision is not installed for {sys.executable} ({error}); tools/setup --dev installs it")
    sys.exit(0)

import safetensors_writer
from safetensors_reader import read
from torch_unet import UNet

MODES = ("local", "sync", "virtual")
CLASSES = 11
BOUND = 1e-5  # of the distance of logits, over the largest


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} exits with {done.returncode}\n{done.stdout}{done.stderr}")


def load(net, path):
    """The network with all tensors of the file, and no other, in evaluation."""
    net.load_state_dict({name: torch.tensor(array) for name, array in read(path).items()}, strict=True)
    return net.eval()


def check_resnet(run_model, folder, mode):
    """Whether torchvision's resnet18 computes our logits with what a training leaves."""
    case, result, saved = folder / "case.safetensors", folder / "result.safetensors", folder / "resnet18.safetensors"
    rng = numpy.random.default_rng(1)
    images = rng.standard_normal((1, 8, 48, 40, 3)).astype(numpy.float32)
    labels = rng.integers(0, CLASSES, (1, 8)).astype(numpy.uint8)
    about = {"arch": "resnet18", "aux": False, "output_stride": 8, "classes": CLASSES, "segmentation": False,
             "devices": "cpu:2", "lr": 1e-3, "mode": mode}
    safetensors_writer.write(case, {"images": images, "labels": labels},
                             {"case": about | {"train": True, "save": str(saved)}})
    run(run_model, case, result)
    safetensors_writer.write(case, {"images": images, "labels": labels},
                             {"case": about | {"train": False, "weights": str(saved)}})
    run(run_model, case, result)
    net = load(torchvision.models.resnet18(num_classes=CLASSES), saved)
    with torch.no_grad():
        expected = net(torch.tensor(images[0]).permute(0, 3, 1, 2)).numpy()
    distance = float(numpy.abs(read(result)["logits.out"] - expected).max() / numpy.abs(expected).max())
    tracked = int(net.bn1.num_batches_tracked)
    print(f"resnet18, {mode}: logits {distance:.1e} of PyTorch's", flush=True)
    return distance <= BOUND and tracked == 1  # not for a NaN


def check_program(lockstep, folder, mode, arch, net):
    """Whether PyTorch's network takes what the program exports, and it is the checkpoint."""
    config, run_folder, out = folder / "tiny.toml", folder / arch, folder / f"{arch}.safetensors"
    config.write_text("[run]\nmax_iters = 1\n[data]\nlayout = 'streets'\nsize = [32, 32]\ntrain_images = 4\n"
                      "val_images = 1\n[batch]\nglobal = 4\n[bn]\nvirtual_devices = 2\n")
    options = ["-s", "model.aux_head=true"] if arch != "unet" else ["-s", "model.width=4", "-s", "model.depth=2"]
    run(lockstep, "train", config, "-d", "cpu:2", "-s", f"bn.mode={mode}", "-s", f"model.arch={arch}", *options,
        "-o", run_folder)
    run(lockstep, "export", "safetensors", run_folder, "-o", out)
    run(lockstep, "export", "onnx", run_folder, "-o", folder / f"{arch}.onnx")
    state = load(net, out).state_dict()
    checkpoint = read(run_folder / "ckpt/last.safetensors")
    equal = all(numpy.array_equal(state[name].numpy(), array) for name, array in checkpoint.items())
    print(f"{arch}, {mode}: {len(state)} tensors, {'equal to' if equal else 'FAILED: other than'} the checkpoint's", flush=True)
    return equal and set(state) == set(checkpoint)


def main():
    torch.set_num_threads(2)
    run_model, lockstep = sys.argv[1:]
    good = True
    for mode in MODES:
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            good &= check_resnet(run_model, folder, mode)
            good &= check_program(lockstep, folder, mode, "unet", UNet(width=4, depth=2, num_classes=CLASSES))
            good &= check_program(lockstep, folder, mode, "fcn_resnet50", torchvision.models.segmentation.fcn_resnet50(
                weights=None, weights_backbone=None, num_classes=CLASSES, aux_loss=True))
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
