#!/usr/bin/env python3
"""Compares the built-in networks with torchvision's own, from the same random weights.

    torchvision_test.py RUN_MODEL [--all | CASE...]

For every case: our logits in evaluation; the gradients and running statistics of one training step that is
synchronized over four devices; the state after three (ResNet-18: after one; it has so few decisions that a single one
that turns over would show). Ours must be as close to PyTorch's float64 results as PyTorch's own float32 results are,
within FACTOR. Without --all some cases are only evaluated, for the sake of time. PSPNet, which torchvision has not, is
written here as its authors publish it.
"""
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "oracle"))

try:
    import numpy
    import torch
    import torchvision
    from torch import nn
    from torchvision.models import resnet, segmentation
except ImportError as error:
    print(f"SKIPPED: torchvision is not installed for {sys.executable} ({error}); tools/setup --dev installs it")
    sys.exit(0)

import safetensors_writer
from safetensors_reader import read

FACTOR = 3
FLOOR = 2.0 ** -22   # of a result's norm: what float32 can be asked for where PyTorch is closer by luck
TURNED = 5e-3        # of a gradient or a move: what a decision of a ReLU that turned over comes to
CLASSES = 21
LR = 1e-4


# --- networks ----------------------------------------------------------------------------------------------


class PyramidPooling(nn.Module):
    def __init__(self, channels, bins):
        super().__init__()
        self.features = nn.ModuleList(
            nn.Sequential(nn.AdaptiveAvgPool2d(b), nn.Conv2d(channels, channels // len(bins), 1, bias=False),
                          nn.BatchNorm2d(channels // len(bins)), nn.ReLU()) for b in bins)

    def forward(self, x):
        up = [nn.functional.interpolate(f(x), x.shape[2:], mode="bilinear", align_corners=True) for f in self.features]
        return torch.cat([x] + up, 1)


class PSPNet(nn.Module):
    """Names and structure of https://github.com/hszhao/semseg, model/pspnet.py."""

    def __init__(self, classes, aux):
        super().__init__()
        body = resnet.ResNet(resnet.Bottleneck, [3, 4, 6, 3])
        body.inplanes = 128
        self.layer0 = nn.Sequential(
            nn.Conv2d(3, 64, 3, 2, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
            nn.Conv2d(64, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
            nn.Conv2d(64, 128, 3, 1, 1, bias=False), nn.BatchNorm2d(128), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        self.layer1 = body._make_layer(resnet.Bottleneck, 64, 3)
        self.layer2 = body._make_layer(resnet.Bottleneck, 128, 4, 2)
        self.layer3 = body._make_layer(resnet.Bottleneck, 256, 6, 2)
        self.layer4 = body._make_layer(resnet.Bottleneck, 512, 3, 2)
        for layer, rate in ((self.layer3, 2), (self.layer4, 4)):
            for name, module in layer.named_modules():
                if "conv2" in name:
                    module.dilation, module.padding, module.stride = (rate, rate), (rate, rate), (1, 1)
                elif "downsample.0" in name:
                    module.stride = (1, 1)
        self.ppm = PyramidPooling(2048, (1, 2, 3, 6))
        self.cls = nn.Sequential(nn.Conv2d(4096, 512, 3, padding=1, bias=False), nn.BatchNorm2d(512), nn.ReLU(),
                                 nn.Dropout2d(0.1), nn.Conv2d(512, classes, 1))
        if aux:
            self.aux = nn.Sequential(nn.Conv2d(1024, 256, 3, padding=1, bias=False), nn.BatchNorm2d(256), nn.ReLU(),
                                     nn.Dropout2d(0.1), nn.Conv2d(256, classes, 1))

    def forward(self, x):
        def up(y):
            return nn.functional.interpolate(y, x.shape[2:], mode="bilinear", align_corners=True)
        middle = self.layer3(self.layer2(self.layer1(self.layer0(x))))
        result = {"out": up(self.cls(self.ppm(self.layer4(middle))))}
        if hasattr(self, "aux"):
            result["aux"] = up(self.aux(middle))
        return result


def make_network(arch, aux, output_stride):
    if arch.startswith("pspnet"):
        return PSPNet(CLASSES, aux)
    if "_resnet" not in arch:
        return getattr(torchvision.models, arch)(num_classes=CLASSES)
    if output_stride == 8:
        return getattr(segmentation, arch)(weights=None, weights_backbone=None, num_classes=CLASSES, aux_loss=aux)
    backbone = resnet.resnet50(replace_stride_with_dilation=[False, False, output_stride == 16])
    net = segmentation.deeplabv3._deeplabv3_resnet(backbone, CLASSES, aux)
    for i, rate in ((1, 96), (2, 192), (3, 288)):
        conv = net.classifier[0].convs[i][0]
        conv.padding = conv.dilation = (rate // output_stride,) * 2
    return net


# --- cases -------------------------------------------------------------------------------------------------

CASES = {  # arch, auxiliary head, output stride, [N, H, W], training steps, those of them without --all
    "fcn_resnet50 with an auxiliary head": ("fcn_resnet50", True, 8, (8, 33, 40), 3, 3),
    "deeplabv3_resnet50": ("deeplabv3_resnet50", False, 8, (8, 40, 40), 3, 0),
    "deeplabv3_resnet50, output stride 16, auxiliary head": ("deeplabv3_resnet50", True, 16, (8, 49, 48), 3, 0),
    "pspnet_resnet50 with an auxiliary head": ("pspnet_resnet50", True, 8, (8, 40, 40), 3, 0),
    "resnext50_32x4d": ("resnext50_32x4d", False, 8, (8, 64, 64), 3, 3),
    "resnet18": ("resnet18", False, 8, (8, 64, 64), 1, 1),
    "resnet34": ("resnet34", False, 8, (2, 64, 64), 0, 0),
    "resnet101": ("resnet101", False, 8, (2, 64, 64), 0, 0),
    "fcn_resnet101": ("fcn_resnet101", False, 8, (1, 40, 40), 0, 0),
    "deeplabv3_resnet101": ("deeplabv3_resnet101", False, 8, (1, 40, 40), 0, 0),
}


def randomize(net):
    """Gamma, beta and running statistics away from their initial values; no dropout."""
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.0)
            nn.init.normal_(module.bias, 0, 0.2)
            nn.init.normal_(module.running_mean, 0, 0.2)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
        elif isinstance(module, (nn.Dropout, nn.Dropout2d)):
            module.p = 0.0


def outputs(net, x):
    result = net(x)
    return dict(result) if isinstance(result, dict) else {"out": result}


def loss_of(results, labels):
    losses = {name: nn.functional.cross_entropy(logits, labels, ignore_index=255) for name, logits in results.items()}
    return losses["out"] + 0.5 * losses.get("aux", 0)


def state_of(net, prefix):
    return {prefix + name: tensor.detach().double().numpy().copy() for name, tensor in net.state_dict().items()
            if tensor.dim() > 0}


def expected(net, images, labels, train, dtype):
    """The results of PyTorch in this type."""
    net = net.to(dtype)
    net.eval()
    with torch.no_grad():
        result = {f"logits.{name}": (y.permute(0, 2, 3, 1) if y.dim() == 4 else y).double().numpy()
                  for name, y in outputs(net, images[0].to(dtype)).items()}
    if not train:
        return result
    net.train()
    optimizer = torch.optim.SGD(net.parameters(), lr=LR, momentum=0.9)
    for step, (x, target) in enumerate(zip(images, labels)):
        optimizer.zero_grad()
        loss_of(outputs(net, x.to(dtype)), target).backward()
        if step == 0:
            result |= {f"grad.{name}": p.grad.double().numpy().copy() for name, p in net.named_parameters()}
        optimizer.step()
        if step == 0:
            result |= state_of(net, "first.")
    return result | state_of(net, "final.")


def ours(run_model, folder, net, case, images, labels):
    arch, aux, output_stride, _, train = case
    batches, result = (folder / f"{name}.safetensors" for name in ("case", "result"))
    if train:  # as torch.save has it; the others as safetensors
        weights = folder / "weights.pth"
        torch.save(net.state_dict(), weights)
    else:
        weights = folder / "weights.safetensors"
        safetensors_writer.write(weights, {name: tensor.numpy() for name, tensor in net.state_dict().items()}, {})
    about = {"arch": arch, "aux": aux, "output_stride": output_stride, "classes": CLASSES, "lr": LR, "train": train > 0,
             "segmentation": "_resnet" in arch, "weights": str(weights), "devices": "cpu:4"}
    safetensors_writer.write(batches, {"images": images.permute(0, 1, 3, 4, 2).numpy(),
                                       "labels": labels.to(torch.uint8).numpy()}, {"case": about})
    done = subprocess.run([run_model, batches, result], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{arch}: run_model exits with {done.returncode}: {done.stderr}")
    return {name: array.astype(numpy.float64) for name, array in read(result).items()}


# --- judgement ---------------------------------------------------------------------------------------------


def kind_of(name):
    prefix, rest = name.split(".", 1)
    return prefix if prefix in ("logits", "grad") else f"{prefix}, {'statistics' if 'running' in rest else 'weights'}"


def errors_of(reference, initial, results):
    """{kind: distance}: of logits and gradients the root mean square of the tensors' relative distances; of what
    training has changed the distance of all of it together, relative to how far it has moved."""
    errors, scales = {}, {}
    for name, truth in reference.items():
        kind = kind_of(name)
        moved = kind.startswith("f")
        scale = numpy.sum((truth - initial[name.split(".", 1)[1]] if moved else truth) ** 2)
        error = numpy.sum((results[name].reshape(truth.shape) - truth) ** 2)
        errors[kind] = errors.get(kind, 0) + (error if moved else error / max(scale, 1e-30))
        scales[kind] = scales.get(kind, 0) + (scale if moved else 1)
    return {kind: float(numpy.sqrt(errors[kind] / scales[kind])) for kind in errors}


def check(name, case, run_model, folder):
    """Prints one line; returns whether all of it is right."""
    arch, aux, output_stride, (batch, height, width), train = case  # train: steps
    torch.manual_seed(7)
    net = make_network(arch, aux, output_stride)
    randomize(net)
    steps = max(train, 1)
    images = torch.randn(steps, batch, 3, height, width) + torch.randn(steps, batch, 3, 1, 1)
    labels = torch.randint(0, CLASSES, (steps, batch, height, width) if "_resnet" in arch else (steps, batch))
    if "_resnet" in arch:  # sample n ignores a share that grows with n, so that devices differ
        labels[torch.rand(labels.shape) < 0.8 * torch.arange(batch).view(1, -1, 1, 1) / batch] = 255
    initial = {key: value.double().numpy().copy() for key, value in net.state_dict().items()}
    results = ours(run_model, folder, net, case, images, labels)
    state = {key: value.clone() for key, value in net.state_dict().items()}
    torch32 = expected(net, images, labels, train, torch.float32)
    net.load_state_dict(state)
    torch64 = expected(net, images, labels, train, torch.float64)
    missing = set(torch64) ^ set(results)
    if missing:
        print(f"{name}: FAILED: only on one side: {sorted(missing)[:5]}")
        return False
    good = True
    words = []
    theirs = errors_of(torch64, initial, torch32)
    for kind, error in errors_of(torch64, initial, results).items():
        bound = max(FACTOR * theirs[kind] + FLOOR, TURNED if kind == "grad" or kind.endswith("weights") else 0)
        fits = error <= bound  # not for a NaN
        good &= fits
        words.append(f"{kind} {error:.1e} (PyTorch {theirs[kind]:.1e}){'' if fits else ' FAILED'}")
    print(f"{name}: " + "; ".join(words), flush=True)
    return good


def main():
    torch.set_num_threads(2)
    run_model = sys.argv[1]
    wanted = [word for word in sys.argv[2:] if word != "--all"]
    steps = -1 if len(sys.argv) == 2 else -2
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, case in CASES.items():
            if not wanted or name in wanted:
                failed += not check(name, (*case[:-2], case[steps]), run_model, pathlib.Path(folder))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
