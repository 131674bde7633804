#!/usr/bin/env python3
"""Runs ONNX files of the built-in networks in ONNX Runtime and compares with our own logits in evaluation.

    onnx_test.py RUN_MODEL [CASE...]

For every case: the files with BatchNorm folded into convolutions, with BatchNorm as nodes, and for one size of images;
onnx.checker with full_check, which infers all shapes; logits of images of two sizes. Needs onnx and onnxruntime of PyPI
in the Python that runs it, or in a virtual environment .onnx in the project's root (docs/do/export.md).
"""
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/oracle"))

try:
    import numpy
    import onnx
    import onnxruntime
except ImportError as error:
    own = ROOT / ".onnx/bin/python"
    if own.exists() and pathlib.Path(sys.prefix).resolve() != (ROOT / ".onnx").resolve():
        sys.stdout.flush()
        os.execv(own, [str(own), "-B", *sys.argv])
    print(f"SKIPPED: {sys.executable} has no ONNX Runtime ({error}); docs/do/export.md says how to get it")
    sys.exit(0)

import safetensors_writer
from safetensors_reader import read

# Of the largest distance, over how far logits vary from position to position. Sums of convolutions are in another order; a
# wrong padding, corner, epsilon or scale changes logits by 1e-2 and more. fp32 allows no less for norms of one image: the U-Net's
# logits are 4.4e-5 off those of float64 here and 4.5e-5 in ONNX Runtime.
BOUND = 1e-4

CASES = {  # options of run_model's case, and two sizes of images
    "layers of all kinds": ({"arch": "layers", "eps": 0.05}, (40, 57), (33, 64)),
    "unet": ({"arch": "unet", "width": 6, "eps": 0.05}, (40, 56), (72, 48)),
    "unet, groups": ({"arch": "unet", "width": 6, "mode": "group", "groups": 3, "eps": 0.05}, (40, 56), (72, 48)),
    "unet, one group": ({"arch": "unet", "width": 6, "mode": "layer"}, (40, 56), (72, 48)),
    "unet, instances": ({"arch": "unet", "width": 6, "mode": "instance", "eps": 0.05}, (48, 64), (80, 48)),
    "unet, by own statistics": ({"arch": "unet", "width": 6, "own": True, "eps": 0.05}, (48, 64), (80, 48)),
    "unet, renorm": ({"arch": "unet", "width": 6, "mode": "renorm", "eps": 0.05}, (40, 56), (72, 48)),
    "unet, eps clamps": ({"arch": "unet", "width": 6, "eps": 0.9, "clamp": True}, (40, 56), (72, 48)),
    "fcn_resnet50 with an auxiliary head": ({"arch": "fcn_resnet50", "aux": True}, (33, 40), (64, 57)),
    "deeplabv3_resnet50": ({"arch": "deeplabv3_resnet50"}, (40, 49), (65, 48)),
    "pspnet_resnet50 with an auxiliary head": ({"arch": "pspnet_resnet50", "aux": True}, (40, 57), (89, 64)),
    "resnet18": ({"arch": "resnet18"}, (64, 50), (97, 64)),
    "resnext50_32x4d": ({"arch": "resnext50_32x4d"}, (64, 50), (97, 64)),
}


def run_ours(run_model, folder, about, images):
    """Logits [N, classes, ...] by our network; with about["onnx"] also the files."""
    case, result = folder / "case.safetensors", folder / "result.safetensors"
    labels = numpy.zeros((1, *images.shape[:1]), numpy.uint8)
    safetensors_writer.write(case, {"images": images.transpose(0, 2, 3, 1)[None], "labels": labels}, {"case": about})
    done = subprocess.run([run_model, case, result], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{about['arch']}: run_model exits with {done.returncode}: {done.stderr}")
    logits = read(result)["logits.out"]
    return logits.transpose(0, 3, 1, 2) if logits.ndim == 4 else logits


def distance_of(result, logits):
    """Infinite where shapes differ."""
    if result.shape != logits.shape:
        return numpy.inf
    varying = logits - logits.mean(axis=tuple(axis for axis in range(logits.ndim) if axis != 1), keepdims=True)
    return numpy.abs(result - logits).max() / numpy.sqrt(numpy.mean(varying ** 2))


def check_structure(name, model, mode):
    """What a reader of the file sees; the complaints. `mode`: of the norms."""
    operators = [node.op_type for node in model.graph.node]
    convolved = {node.output[0] for node in model.graph.node if node.op_type == "Conv"}
    sizes = [d.dim_value or d.dim_param for d in model.graph.input[0].type.tensor_type.shape.dim]
    complaints = []
    folded = not any(n.op_type == "BatchNormalization" and n.input[0] in convolved for n in model.graph.node)
    of_one_image = mode in ("group", "layer", "instance")
    if folded != (name == "folded" or of_one_image):
        complaints.append(f"{operators.count('BatchNormalization')} BatchNormalization nodes")
    if ("InstanceNormalization" in operators) != of_one_image:
        complaints.append(f"{operators.count('InstanceNormalization')} InstanceNormalization nodes")
    if (sizes[2:] == ["H", "W"]) != (name != "fixed") or sizes[:2] != ["N", 3]:
        complaints.append(f"input {sizes}")
    if name == "fixed" and "Range" in operators:
        complaints.append("sizes are computed in a file for one size")
    return complaints


def check(case, run_model, folder):
    """Prints one line; returns whether all of it is right."""
    options, *sizes = CASES[case]
    about = {"aux": False, "output_stride": 8, "classes": 21, "train": False,
             "segmentation": "_resnet" in options["arch"], **options}
    rng = numpy.random.default_rng(3)
    words, good = [], True
    for batch, size in zip((3, 2), sizes):
        images = rng.standard_normal((batch, 3, *size)) + 2 * rng.standard_normal((batch, 3, 1, 1))
        images = images.astype(numpy.float32)
        first = size == sizes[0]
        logits = run_ours(run_model, folder, about | ({"onnx": str(folder)} if first else {}), images)
        for name in ("folded", "plain", "fixed") if first else ("folded", "plain"):
            path = str(folder / f"{name}.onnx")
            if first:
                model = onnx.load(path)
                onnx.checker.check_model(model, full_check=True)
                complaints = check_structure(name, model, "instance" if "own" in options else options.get("mode", "sync"))
                good &= not complaints
                words += [f"{name}: FAILED: {text}" for text in complaints]
            session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
            result, = session.run(["out"], {"image": images})
            distance = distance_of(result, logits)
            fits = distance <= BOUND  # not for a NaN
            good &= bool(fits)
            words.append(f"{name} {size[0]}x{size[1]} {distance:.1e}{'' if fits else ' FAILED'}")
    print(f"{case}: " + ", ".join(words), flush=True)
    return good


def main():
    failed = 0
    for case in sys.argv[2:] or CASES:
        with tempfile.TemporaryDirectory() as folder:
            failed += not check(case, sys.argv[1], pathlib.Path(folder))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
