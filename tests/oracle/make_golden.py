#!/usr/bin/env python3
"""Writes inputs and PyTorch's results, in float64 and in float32, for the oracle tests.

    make_golden.py FOLDER [SEED]

Activations are written channels-last, parameters in PyTorch's order. Of every result `name` the files hold
`name.f64`, the reference, and `name.f32`, whose distance to it says what float32 can be asked for; of trainings of
U-Nets also `name.bf16`, by autocast.
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools/measure"))

try:
    import torch
    import torch.nn.functional as F
except ImportError as error:
    print(f"SKIPPED: PyTorch is not installed for {sys.executable} ({error}); tools/setup --dev installs it")
    sys.exit(0)

import make_pth
import safetensors_writer
from torch_unet import UNet, make_sgd, train_step


class Golden:
    """Collects the tensors and the metadata of one file."""

    def __init__(self, folder, name):
        self.path = folder / f"{name}.safetensors"
        self.tensors = {}
        self.metadata = {"torch": torch.__version__}

    def put(self, name, tensor, activation=False):
        tensor = tensor.detach()
        if activation and tensor.dim() == 4:
            tensor = tensor.permute(0, 2, 3, 1)
        self.tensors[name] = tensor.contiguous().numpy().copy()

    def put_result(self, name, run, activation=True):
        """run(dtype) -> {name: tensor} of results; activations unless the name says weight or bias."""
        for dtype, suffix in ((torch.float64, "f64"), (torch.float32, "f32")):
            for key, value in run(dtype).items():
                is_activation = activation and "weight" not in key and "bias" not in key
                self.put(f"{name}.{key}.{suffix}", value.to(dtype), is_activation)

    def save(self):
        safetensors_writer.write(self.path, self.tensors, self.metadata)


def leaf(tensor, dtype):
    return tensor.to(dtype).clone().requires_grad_(True)


# --- layers -----------------------------------------------------------------------------------------------

CONVOLUTIONS = {  # in, out, kernel, stride, padding, dilation, groups, bias, [h, w]
    "conv_3x3": (5, 7, (3, 3), (1, 1), (1, 1), (1, 1), 1, False, (9, 11)),
    "conv_1x1_bias": (6, 3, (1, 1), (1, 1), (0, 0), (1, 1), 1, True, (7, 5)),
    "conv_stride": (3, 8, (3, 3), (2, 2), (1, 1), (1, 1), 1, True, (10, 13)),
    "conv_dilated": (4, 6, (3, 3), (1, 1), (2, 2), (2, 2), 1, False, (9, 8)),
    "conv_groups": (6, 4, (3, 3), (1, 1), (1, 1), (1, 1), 2, True, (8, 9)),
    "conv_depthwise": (5, 5, (3, 3), (1, 1), (1, 1), (1, 1), 5, False, (6, 7)),
    "conv_5x3": (3, 4, (5, 3), (2, 1), (2, 0), (1, 1), 1, False, (12, 9)),
    "conv_7x7": (3, 16, (7, 7), (2, 2), (3, 3), (1, 1), 1, False, (17, 15)),
    "conv_one_channel": (1, 1, (3, 3), (1, 1), (1, 1), (1, 1), 1, True, (5, 5)),
}


def add_convolution(golden, name, case):
    in_c, out_c, kernel, stride, padding, dilation, groups, bias, size = case
    x = torch.randn(3, in_c, *size)
    weight = torch.randn(out_c, in_c // groups, *kernel) / (in_c * kernel[0] * kernel[1]) ** 0.5
    b = torch.randn(out_c) if bias else None
    y = F.conv2d(x, weight, b, stride, padding, dilation, groups)
    grad_y = torch.randn_like(y)

    def run(dtype):
        xs, ws = leaf(x, dtype), leaf(weight, dtype)
        bs = leaf(b, dtype) if bias else None
        out = F.conv2d(xs, ws, bs, stride, padding, dilation, groups)
        out.backward(grad_y.to(dtype))
        results = {"y": out, "grad_x": xs.grad, "grad_weight": ws.grad}
        if bias:
            results["grad_bias"] = bs.grad
        return results

    golden.put(f"{name}.x", x, True)
    golden.put(f"{name}.grad_y", grad_y, True)
    golden.put(f"{name}.weight", weight)
    if bias:
        golden.put(f"{name}.bias", b)
    golden.metadata[name] = {"op": "conv", "kernel": kernel, "stride": stride, "padding": padding,
                             "dilation": dilation, "groups": groups, "bias": bias}
    golden.put_result(name, run)


def add_weighted(golden, name, shape, weights, function, metadata):
    """function(x, weights) of a layer with weights."""
    x = torch.randn(*shape)
    grad_y = torch.randn_like(function(x, weights))

    def run(dtype):
        xs, ws = leaf(x, dtype), {key: leaf(weight, dtype) for key, weight in weights.items()}
        out = function(xs, ws)
        out.backward(grad_y.to(dtype))
        return {"y": out, "grad_x": xs.grad} | {f"grad_{key}": weight.grad for key, weight in ws.items()}

    golden.put(f"{name}.x", x, True)
    golden.put(f"{name}.grad_y", grad_y, True)
    for key, weight in weights.items():
        golden.put(f"{name}.{key}", weight)
    golden.metadata[name] = metadata
    golden.put_result(name, run)


def add_function(golden, name, shape, function, metadata, scale=1):
    """`scale`: of the numbers that are drawn for x."""
    x = scale * torch.randn(*shape)
    grad_y = torch.randn_like(function(x))

    def run(dtype):
        xs = leaf(x, dtype)
        out = function(xs)
        out.backward(grad_y.to(dtype))
        return {"y": out, "grad_x": xs.grad}

    golden.put(f"{name}.x", x, True)
    golden.put(f"{name}.grad_y", grad_y, True)
    golden.metadata[name] = metadata
    golden.put_result(name, run)


def add_image_norm(golden, name, make, channels, metadata):
    """A norm of single images. make() -> module; the state dict is gamma and beta alone."""
    x = torch.randn(3, channels, 7, 6) * 2 + torch.randn(3, channels, 1, 1)
    grad_y, weight, bias = torch.randn_like(x), torch.rand(channels) + 0.5, torch.randn(channels)

    def run(dtype):
        layer = make().to(dtype)
        layer.load_state_dict({"weight": weight, "bias": bias})
        xs = leaf(x, dtype)
        out = layer(xs)
        out.backward(grad_y.to(dtype))
        return {"y": out, "grad_x": xs.grad, "grad_weight": layer.weight.grad, "grad_bias": layer.bias.grad}

    golden.put(f"{name}.x", x, True)
    golden.put(f"{name}.grad_y", grad_y, True)
    golden.put(f"{name}.weight", weight)
    golden.put(f"{name}.bias", bias)
    golden.metadata[name] = {"op": "image_norm", **metadata}
    golden.put_result(name, run)


ACTIVATIONS = {
    "relu": F.relu, "relu6": F.relu6, "leaky_relu": lambda x: F.leaky_relu(x, 0.125), "sigmoid": torch.sigmoid,
    "hardsigmoid": F.hardsigmoid, "tanh": torch.tanh, "silu": F.silu, "hardswish": F.hardswish, "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh")}


def add_element_functions(golden):
    for name, function in ACTIVATIONS.items():
        add_function(golden, name, (2, 5, 9, 11), function, {"op": name, "slope": 0.125}, scale=3)
    add_function(golden, "softmax", (2, 11, 4, 5), lambda x: F.softmax(x, dim=1), {"op": "softmax"}, scale=3)
    add_function(golden, "gate", (3, 5, 6, 7), lambda x: x * torch.sigmoid(F.adaptive_avg_pool2d(x, 1)), {"op": "gate"})
    add_function(golden, "slices", (2, 5, 4, 3), lambda x: x[:, :3] - x[:, 2:], {"op": "slices"})
    for name, slopes in (("prelu", 5), ("prelu_one", 1)):
        weight = torch.rand(slopes) - 0.25
        add_weighted(golden, name, (3, 5, 8, 9), {"weight": weight}, lambda x, w: F.prelu(x, w["weight"]),
                     {"op": "prelu", "per_channel": slopes > 1})


TRANSPOSED_CONVOLUTIONS = {  # in, out, kernel, stride, padding, output_padding, dilation, groups
    "transposed_2x2": (5, 7, 2, 2, 0, 0, 1, 1),
    "transposed_3x3": (4, 6, 3, 2, 1, 1, 1, 1),
    "transposed_groups": (6, 4, 3, 3, 2, 2, 2, 2),
}


def add_transposed_convolution(golden, name, case):
    in_c, out_c, kernel, stride, padding, output_padding, dilation, groups = case
    weights = {"weight": torch.randn(in_c, out_c // groups, kernel, kernel) / (in_c * kernel ** 2) ** 0.5,
               "bias": torch.randn(out_c)}
    add_weighted(golden, name, (3, in_c, 6, 7), weights,
                 lambda x, w: F.conv_transpose2d(x, w["weight"], w["bias"], stride, padding, output_padding, groups,
                                                 dilation),
                 {"op": "conv_transpose", "out": out_c, "kernel": kernel, "stride": stride, "padding": padding,
                  "output_padding": output_padding, "dilation": dilation, "groups": groups})


def make_layers(folder):
    golden = Golden(folder, "layers")
    for name, case in CONVOLUTIONS.items():
        add_convolution(golden, name, case)
    for align in (False, True):
        for tag, size, out in (("up", (5, 7), (10, 14)), ("odd", (4, 6), (9, 17)), ("down", (9, 8), (4, 3)),
                               ("one", (1, 1), (4, 5))):
            add_function(golden, f"bilinear_{tag}_{int(align)}", (2, 3, *size),
                         lambda x: F.interpolate(x, size=out, mode="bilinear", align_corners=align),
                         {"op": "bilinear", "size": out, "align_corners": align})
    for tag, kernel, stride, padding in (("2x2", 2, 2, 0), ("3x3", 3, 2, 1), ("3x2", (3, 2), (1, 2), (1, 0))):
        pair = lambda v: list(v) if isinstance(v, tuple) else [v, v]
        window = {"kernel": pair(kernel), "stride": pair(stride), "padding": pair(padding)}
        add_function(golden, f"max_pool_{tag}", (2, 3, 8, 11),
                     lambda x: F.max_pool2d(x, kernel, stride, padding), {"op": "max_pool", **window})
        add_function(golden, f"avg_pool_{tag}", (2, 3, 8, 11),
                     lambda x: F.avg_pool2d(x, kernel, stride, padding), {"op": "avg_pool", **window})
    add_function(golden, "global_pool", (3, 5, 6, 7), lambda x: F.adaptive_avg_pool2d(x, 1),
                 {"op": "adaptive_pool", "size": [1, 1]})
    with torch.random.fork_rng(devices=[]):  # the cases after them keep their values
        for tag, size, out in (("even", (8, 6), (4, 3)), ("odd", (11, 13), (4, 5)), ("pyramid", (17, 20), (6, 6)),
                               ("more", (3, 4), (5, 7)), ("same", (5, 6), (5, 6))):
            add_function(golden, f"adaptive_pool_{tag}", (2, 3, *size), lambda x: F.adaptive_avg_pool2d(x, out),
                         {"op": "adaptive_pool", "size": out})
        for groups in (1, 2, 4, 12):
            add_image_norm(golden, f"group_norm_{groups}", lambda: torch.nn.GroupNorm(groups, 12, eps=1e-3), 12,
                           {"mode": "group", "groups": groups, "eps": 1e-3})
        add_image_norm(golden, "layer_norm", lambda: torch.nn.GroupNorm(1, 10), 10, {"mode": "layer", "eps": 1e-5})
        add_image_norm(golden, "instance_norm", lambda: torch.nn.InstanceNorm2d(9, affine=True), 9,
                       {"mode": "instance", "eps": 1e-5})
    with torch.random.fork_rng(devices=[]):
        add_element_functions(golden)
        for name, case in TRANSPOSED_CONVOLUTIONS.items():
            add_transposed_convolution(golden, name, case)
    golden.save()


def make_losses(folder):
    golden = Golden(folder, "losses")
    for name, classes, weighted, ignored in (("plain", 11, False, 0.0), ("ignore", 11, False, 0.4),
                                             ("weighted", 5, True, 0.3), ("two", 2, True, 0.0),
                                             ("large", 4, False, 0.1)):
        logits = torch.randn(3, classes, 7, 9) * (40 if name == "large" else 2)
        labels = torch.randint(0, classes, (3, 7, 9))
        labels[torch.rand(labels.shape) < ignored] = 255
        weight = torch.rand(classes) + 0.2 if weighted else None

        def run(dtype):
            x = leaf(logits, dtype)
            loss = F.cross_entropy(x, labels, weight.to(dtype) if weighted else None, ignore_index=255)
            loss.backward()
            return {"loss": loss.reshape(1), "grad_logits": x.grad}

        golden.put(f"{name}.logits", logits, True)
        golden.put(f"{name}.labels", labels.to(torch.uint8))
        golden.put(f"{name}.class_weight", weight if weighted else torch.ones(classes))
        golden.metadata[name] = {"weighted": weighted}
        golden.put_result(name, run)
    golden.save()


def dice(x, labels, smooth, dims):
    """1 - the mean coefficient, from sums over `dims`: MONAI's DiceLoss, without its squares."""
    classes = x.shape[1]
    valid = (labels != 255).unsqueeze(1)
    one_hot = F.one_hot(torch.where(labels == 255, 0, labels), classes).permute(0, 3, 1, 2).to(x.dtype) * valid
    p = x.softmax(1) * valid
    overlap, total = (p * one_hot).sum(dims), (p + one_hot).sum(dims)
    return (1 - (2 * overlap + smooth) / (total + smooth)).mean(-1)


def ohem(x, labels, thresh, min_kept, weight):
    """The mean over the pixels that mmsegmentation's OHEMPixelSampler chooses."""
    valid = labels != 255
    own = x.softmax(1).gather(1, torch.where(valid, labels, 0).unsqueeze(1)).squeeze(1)
    ordered = own[valid].sort()[0]
    threshold = max(ordered[min(min_kept * len(labels), len(ordered) - 1)].item(), thresh)
    hard = valid & (own < threshold)
    return F.cross_entropy(x, torch.where(hard, labels, 255), weight, ignore_index=255)


def focal(x, labels, gamma, alpha):
    nll = F.cross_entropy(x, labels, reduction="none", ignore_index=255)
    valid = labels != 255
    share = alpha[torch.where(valid, labels, 0)] * (1 - torch.exp(-nll)) ** gamma
    return (share * nll)[valid].sum() / valid.sum()


LABEL_LOSSES = {  # options of the loss, and what it is
    "label_smoothing": ({"label_smoothing": 0.2}, lambda x, l, w, s: (
        F.cross_entropy(x, l, ignore_index=255, label_smoothing=0.2))),
    "label_smoothing_weighted": ({"label_smoothing": 0.1, "weighted": True}, lambda x, l, w, s: (
        F.cross_entropy(x, l, w, ignore_index=255, label_smoothing=0.1))),
    "focal": ({"gamma": 2}, lambda x, l, w, s: focal(x, l, 2, torch.ones_like(w))),
    "focal_weighted": ({"gamma": 0.5, "weighted": True}, lambda x, l, w, s: focal(x, l, 0.5, w)),
    "dice": ({"smooth": 1}, lambda x, l, w, s: dice(x, l, 1, (0, 2, 3))),
    "dice_by_image": ({"smooth": 0.01, "per_image": True}, lambda x, l, w, s: dice(x, l, 0.01, (2, 3)).mean()),
    "dice_by_image_samples": ({"smooth": 1, "per_image": True, "samples": True}, lambda x, l, w, s: (
        (dice(x, l, 1, (2, 3)) * s).sum() / s.sum())),
    "ohem_thresh": ({"thresh": 0.6, "min_kept": 1}, lambda x, l, w, s: ohem(x, l, 0.6, 1, None)),
    "ohem_kept": ({"thresh": 0, "min_kept": 11, "weighted": True}, lambda x, l, w, s: ohem(x, l, 0, 11, w)),
    "cross_entropy_samples": ({"weighted": True, "samples": True}, lambda x, l, w, s: (
        (F.cross_entropy(x, l, w, ignore_index=255, reduction="none") * s.view(-1, 1, 1)).sum()
        / (w[torch.where(l == 255, 0, l)] * (l != 255) * s.view(-1, 1, 1)).sum())),
}
VALUE_LOSSES = {
    "l1": ({}, lambda y, t, w, s: F.l1_loss(y, t)),
    "huber": ({"delta": 0.7}, lambda y, t, w, s: F.huber_loss(y, t, delta=0.7)),
    "bce": ({}, lambda y, t, w, s: F.binary_cross_entropy_with_logits(y, t)),
    "bce_weighted": ({"weighted": True}, lambda y, t, w, s: (
        F.binary_cross_entropy_with_logits(y, t, pos_weight=w.view(-1, 1, 1)))),
    "l1_samples": ({"samples": True}, lambda y, t, w, s: (
        ((y - t).abs().mean((1, 2, 3)) * s).sum() / s.sum())),
    "squared_error_samples": ({"samples": True}, lambda y, t, w, s: (
        ((y - t).square().mean((1, 2, 3)) * s).sum() / s.sum())),
}


def make_more_losses(folder):
    golden = Golden(folder, "more_losses")
    for name, (options, function) in (LABEL_LOSSES | VALUE_LOSSES).items():
        classes = 5
        output = 2 * torch.randn(3, classes, 7, 9)
        labels = torch.randint(0, classes, (3, 7, 9))
        labels[torch.rand(labels.shape) < 0.2] = 255
        values = torch.rand(output.shape)
        weight, samples = torch.rand(classes) + 0.2, torch.rand(3) + 0.1

        def run(dtype):
            x = leaf(output, dtype)
            target = labels if name in LABEL_LOSSES else values.to(dtype)
            loss = function(x, target, weight.to(dtype), samples.to(dtype))
            loss.backward()
            return {"loss": loss.reshape(1), "grad_output": x.grad}

        golden.put(f"{name}.output", output, True)
        golden.put(f"{name}.labels", labels.to(torch.uint8))
        golden.put(f"{name}.values", values, True)
        golden.put(f"{name}.channels", weight)
        golden.put(f"{name}.samples", samples)
        golden.metadata[name] = options
        golden.put_result(name, run)
    golden.save()


def make_squared_errors(folder):
    golden = Golden(folder, "squared_errors")
    for name, shape, scale in (("image", (3, 5, 7, 9), 1), ("near", (4, 6, 8, 8), 1e-3), ("far", (2, 3, 6, 5), 100)):
        target = torch.randn(*shape)
        output = target + scale * torch.randn(*shape)

        def run(dtype):
            y = leaf(output, dtype)
            loss = F.mse_loss(y, target.to(dtype))
            loss.backward()
            return {"loss": loss.reshape(1), "grad_output": y.grad}

        golden.put(f"{name}.output", output, True)
        golden.put(f"{name}.target", target, True)
        golden.metadata[name] = {}
        golden.put_result(name, run)
    golden.save()


# --- BatchNorm --------------------------------------------------------------------------------------------

BATCH_NORMS = {  # batch, chunks (1: whole batch), options
    "whole": (5, 1, {}),
    "chunked_2": (5, 2, {}),
    "chunked_4": (7, 4, {}),
    "cumulative": (5, 1, {"momentum": None}),
    "large_momentum": (6, 3, {"momentum": 0.7}),
    "not_affine": (5, 1, {"affine": False}),
    "not_tracked": (5, 2, {"track_running_stats": False}),
    "large_eps": (5, 1, {"eps": 0.5}),
    "shifted": (5, 1, {"shift": 100.0}),
    "relu": (5, 1, {"relu": True}),
    "add_relu": (5, 2, {"relu": True, "residual": True}),
}


def add_batch_norm(golden, name, batch, chunks, options):
    """Three training passes, then one in evaluation, of one layer."""
    channels = 6
    settings = {key: options[key] for key in ("momentum", "affine", "track_running_stats", "eps") if key in options}
    scale, shift = torch.rand(channels) * 3 + 0.1, torch.randn(channels) * 2 + options.get("shift", 0.0)
    xs = [torch.randn(batch, channels, 5, 4) * scale.view(-1, 1, 1) + shift.view(-1, 1, 1)
          + torch.randn(batch, channels, 1, 1) for _ in range(3)]
    residuals = [torch.randn_like(x) for x in xs]
    grads = [torch.randn_like(x) for x in xs]
    weight, bias = torch.rand(channels) + 0.5, torch.randn(channels)
    residual, relu = options.get("residual", False), options.get("relu", False)
    affine = options.get("affine", True)

    def activation(y, r):
        y = y + r if residual else y
        return F.relu(y) if relu else y

    def run(dtype):
        from torch_unet import ChunkedBatchNorm2d
        layer = ChunkedBatchNorm2d(channels, **settings).to(dtype)
        layer.chunks = chunks
        if affine:
            layer.weight.data.copy_(weight)
            layer.bias.data.copy_(bias)
        results = {}
        for i, (x, r, g) in enumerate(zip(xs, residuals, grads)):
            x_leaf, r_leaf = leaf(x, dtype), leaf(r, dtype)
            layer.zero_grad()
            y = activation(layer(x_leaf), r_leaf)
            y.backward(g.to(dtype))
            results |= {f"y{i}": y, f"grad_x{i}": x_leaf.grad}
            if residual:
                results[f"grad_residual{i}"] = r_leaf.grad
            if affine:
                results |= {f"grad_weight{i}": layer.weight.grad.clone(), f"grad_bias{i}": layer.bias.grad.clone()}
            if layer.track_running_stats:
                results |= {f"running_mean{i}": layer.running_mean.clone(),
                            f"running_var{i}": layer.running_var.clone()}
        layer.eval()
        if layer.track_running_stats:
            results["y_eval"] = activation(layer(xs[0].to(dtype)), residuals[0].to(dtype))
        return results

    for i in range(3):
        golden.put(f"{name}.x{i}", xs[i], True)
        golden.put(f"{name}.residual{i}", residuals[i], True)
        golden.put(f"{name}.grad_y{i}", grads[i], True)
    golden.put(f"{name}.weight", weight)
    golden.put(f"{name}.bias", bias)
    golden.metadata[name] = {"chunks": chunks, "relu": relu, "residual": residual, "affine": affine,
                             "momentum": options.get("momentum", 0.1), "eps": options.get("eps", 1e-5),
                             "track_running_stats": options.get("track_running_stats", True)}
    golden.put_result(name, run)


def make_batch_norms(folder):
    golden = Golden(folder, "batch_norm")
    for name, (batch, chunks, options) in BATCH_NORMS.items():
        add_batch_norm(golden, name, batch, chunks, options)
    golden.save()


# --- whole training steps ---------------------------------------------------------------------------------

UNETS = {  # width, depth, batch, chunks, class weights
    "whole_5": (6, 3, 5, 1, False),
    "whole_7": (4, 3, 7, 1, True),
    "whole_8": (8, 3, 8, 1, False),
    "chunked_4_of_7": (4, 3, 7, 4, False),
    "chunked_4_of_8": (6, 3, 8, 4, False),
}


class Margin:
    """How far a network's decisions are from turning over: the smallest |input| of a ReLU, and the smallest lead of a
    positive maximum in a pooling window. A decision nearer than float32's error would make any two float32 results
    differ by far more than rounding."""

    def __init__(self, net):
        self.smallest = float("inf")
        for name, module in net.named_modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.register_forward_hook(lambda m, x, y: self.note(y.detach().abs()))
        for stage in net.encoder[:-1]:
            stage.register_forward_hook(lambda m, x, y: self.note_pool(y.detach()))

    def note(self, values):
        self.smallest = min(self.smallest, values.min().item())

    def note_pool(self, y):
        first, second = F.unfold(y.flatten(0, 1).unsqueeze(1), 2, stride=2).topk(2, dim=1).values.unbind(1)
        self.note((first - second)[first > 0])


def random_training(width, depth, batch, weighted):
    """Initial weights and batches; sample n ignores a share of pixels that grows with n, so that devices differ."""
    classes, height, width_px, steps = 5, 16, 24, 5
    initial = UNet(width, depth, classes).state_dict()
    for key, value in initial.items():
        if ".bn." in key and value.dim() == 1:
            positive = "var" in key or "weight" in key
            value.copy_(torch.rand_like(value) + 0.5 if positive else torch.randn_like(value) / 4)
    images = torch.randn(steps, batch, 3, height, width_px) + torch.randn(steps, batch, 3, 1, 1)
    labels = torch.randint(0, classes, (steps, batch, height, width_px))
    labels[torch.rand(labels.shape) < 0.9 * torch.arange(batch).view(1, -1, 1, 1) / batch] = 255
    return initial, images, labels, torch.rand(classes) + 0.5 if weighted else None


SGD = {"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-2, "norm_weight_decay": 2e-3}


def train_unet(width, depth, chunks, training, dtype, autocast=False):
    """Returns the final state, with the losses, and the margin. `autocast`: to bf16."""
    initial, images, labels, class_weight = training
    net = UNet(width, depth, 5)
    net.load_state_dict(initial)
    net = net.to(dtype)
    margin = Margin(net)
    for module in net.modules():
        if hasattr(module, "chunks"):
            module.chunks = chunks
    optimizer = make_sgd(net, **SGD)
    weight = None if class_weight is None else class_weight.to(dtype)
    losses = [train_step(net, optimizer, i.to(dtype), l, weight, autocast).item() for i, l in zip(images, labels)]
    state = {key: value for key, value in net.state_dict().items() if value.dim() > 0}
    return state | {"losses": torch.tensor(losses, dtype=dtype)}, margin.smallest


def make_unet(folder, name, width, depth, batch, chunks, weighted):
    golden = Golden(folder, f"unet_{name}")
    for _ in range(200):
        training = random_training(width, depth, batch, weighted)
        if train_unet(width, depth, chunks, training, torch.float64)[1] > 2e-6:
            break
    else:
        sys.exit(f"make_golden: no training of {name} whose decisions float32 can reproduce")
    initial, images, labels, class_weight = training
    for key, value in initial.items():
        golden.put(f"initial.{key}", value)
    golden.put("images", images.permute(0, 1, 3, 4, 2))
    golden.put("labels", labels.to(torch.uint8))
    golden.metadata["case"] = {"width": width, "depth": depth, "classes": 5, "batch": batch, "chunks": chunks,
                               "steps": len(images), "size": list(images.shape[-2:]), **SGD,
                               "class_weight": [] if class_weight is None else class_weight.tolist()}
    golden.put_result("final", lambda dtype: train_unet(width, depth, chunks, training, dtype)[0], activation=False)
    for key, value in train_unet(width, depth, chunks, training, torch.float32, autocast=True)[0].items():
        golden.put(f"final.{key}.bf16", value)
    golden.save()


# --- a network of a user's own ----------------------------------------------------------------------------


class TwoHeads(torch.nn.Module):
    """A residual block and an auxiliary head."""

    def __init__(self):
        super().__init__()
        self.stem, self.block = (torch.nn.Module() for _ in range(2))
        self.stem.conv, self.block.conv = (torch.nn.Conv2d(c, 8, 3, padding=1, bias=False) for c in (3, 8))
        self.stem.bn, self.block.bn = (torch.nn.BatchNorm2d(8) for _ in range(2))
        self.aux, self.head = (torch.nn.Conv2d(8, 4, 1) for _ in range(2))
        self.smallest = float("inf")  # |input| of a ReLU

    def note(self, x):
        self.smallest = min(self.smallest, x.detach().abs().min().item())
        return x

    def forward(self, x):
        x = self.note(self.stem.bn(self.stem.conv(x))).relu()
        y = F.leaky_relu(self.note(self.block.conv(x)), 0.125)
        y = self.note(self.block.bn(y) + x).relu()
        return self.head(y), self.aux(x)


def train_two_heads(initial, images, labels, dtype):
    """Returns the final state, with the losses of both heads step by step, and the margin of the decisions."""
    net = TwoHeads()
    net.load_state_dict(initial)
    net = net.to(dtype)
    optimizer = make_sgd(net, **SGD)
    losses = []
    for x, target in zip(images, labels):
        both = [F.cross_entropy(logits, target, ignore_index=255) for logits in net(x.to(dtype))]
        optimizer.zero_grad()
        (both[0] + 0.4 * both[1]).backward()
        optimizer.step()
        losses += [loss.item() for loss in both]
    state = {key: value for key, value in net.state_dict().items() if value.dim() > 0}
    return state | {"losses": torch.tensor(losses, dtype=dtype)}, net.smallest


def make_two_heads(folder):
    golden = Golden(folder, "two_heads")
    steps, batch, height, width = 4, 6, 12, 16
    for _ in range(200):
        initial = TwoHeads().state_dict()
        images = torch.randn(steps, batch, 3, height, width) + torch.randn(steps, batch, 3, 1, 1)
        labels = torch.randint(0, 4, (steps, batch, height, width))
        labels[torch.rand(labels.shape) < 0.9 * torch.arange(batch).view(1, -1, 1, 1) / batch] = 255
        if train_two_heads(initial, images, labels, torch.float64)[1] > 2e-6:
            break
    else:
        sys.exit("make_golden: no training of two heads whose decisions float32 can reproduce")
    for key, value in initial.items():
        golden.put(f"initial.{key}", value)
    golden.put("images", images.permute(0, 1, 3, 4, 2))
    golden.put("labels", labels.to(torch.uint8))
    golden.metadata["case"] = {"batch": batch, "classes": 4, "size": [height, width], "steps": steps, **SGD}
    golden.put_result("final", lambda dtype: train_two_heads(initial, images, labels, dtype)[0], activation=False)
    golden.save()


def make_samplers(folder):
    golden = Golden(folder, "samplers")
    cases = []
    for samples, ranks in ((10, 4), (8, 4), (2, 5), (3, 7), (13, 3), (16, 1), (1, 2), (7, 4)):
        for drop_last in (False, True):
            for rank in range(ranks):
                sampler = torch.utils.data.DistributedSampler(range(samples), ranks, rank, shuffle=False,
                                                              drop_last=drop_last)
                cases.append({"samples": samples, "ranks": ranks, "rank": rank, "drop_last": drop_last,
                              "size": len(sampler), "indices": list(sampler)})
    golden.metadata["cases"] = cases
    golden.save()


# --- optimizers -------------------------------------------------------------------------------------------

ADAMW = {"betas": [0.9, 0.999], "eps": 1e-8, "groups": [{"lr_mult": 1, "weight_decay": 0.05},
                                                        {"lr_mult": 10, "weight_decay": 0.0}]}


def train_adamw(initial, grads, rates, dtype):
    """Weights and state of half of the parameters after the other, from given gradients and learning rates."""
    halves = [leaf(half, dtype) for half in initial.chunk(2)]
    groups = [{"params": [half], "weight_decay": group["weight_decay"]} for half, group in zip(halves, ADAMW["groups"])]
    optimizer = torch.optim.AdamW(groups, lr=1.0, betas=tuple(ADAMW["betas"]), eps=ADAMW["eps"])
    for grad, rate in zip(grads, rates):
        for half, part, group, about in zip(halves, grad.chunk(2), optimizer.param_groups, ADAMW["groups"]):
            half.grad = part.to(dtype).clone()
            group["lr"] = rate * about["lr_mult"]
        optimizer.step()
    state = [optimizer.state[half] for half in halves]
    return {"weight": torch.cat(halves), "exp_avg": torch.cat([s["exp_avg"] for s in state]),
            "exp_avg_sq": torch.cat([s["exp_avg_sq"] for s in state])}


# Those that differ from AdamW in their rule alone: (class, keys of PyTorch, slots of its state, what ours is told).
RULES = {
    "nesterov": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}, ["momentum_buffer"]),
    "adam": (torch.optim.Adam, {"betas": (0.9, 0.999), "eps": 1e-8}, ["exp_avg", "exp_avg_sq"]),
    "rmsprop": (torch.optim.RMSprop, {"alpha": 0.99, "eps": 1e-8, "momentum": 0.9}, ["square_avg", "momentum_buffer"]),
}
RULES_DECAY = 0.05
CLIPPING = {"norm": 2.0, "value": 0.5}


def train_rule(rule, initial, grads, rates, dtype, clipping=None):
    make, options, slots = RULES[rule]
    weight = leaf(initial, dtype)
    optimizer = make([weight], lr=1.0, weight_decay=RULES_DECAY, **options)
    for grad, rate in zip(grads, rates):
        weight.grad = grad.to(dtype).clone()
        if clipping:
            torch.nn.utils.clip_grad_norm_([weight], clipping["norm"])
            torch.nn.utils.clip_grad_value_([weight], clipping["value"])
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
    return {"weight": weight, **{slot: optimizer.state[weight][slot] for slot in slots}}


def make_optimizers(folder):
    golden = Golden(folder, "optimizers")
    steps, elements = 30, 400
    initial = torch.randn(elements)
    grads = torch.randn(steps, elements) * 10.0 ** (-6 * torch.rand(elements)) + torch.randn(elements) / 10
    grads[:, ::7] = 0
    rates = [1e-3 * (1 - step / steps) for step in range(steps)]
    golden.put("initial", initial)
    golden.put("grads", grads)
    golden.metadata["case"] = {**ADAMW, "rates": rates, "decay": RULES_DECAY, "clipping": CLIPPING}
    golden.put_result("adamw", lambda dtype: train_adamw(initial, grads, rates, dtype), activation=False)
    for rule in RULES:
        golden.put_result(rule, lambda dtype: train_rule(rule, initial, grads, rates, dtype), activation=False)
    golden.put_result("clipped", lambda dtype: train_rule("nesterov", initial, grads, rates, dtype, CLIPPING),
                      activation=False)
    golden.save()


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(int(sys.argv[2]) if len(sys.argv) > 2 else 20)
    torch.set_num_threads(1)
    make_layers(folder)
    make_losses(folder)
    make_more_losses(folder)
    make_batch_norms(folder)
    for name, case in UNETS.items():
        make_unet(folder, name, *case)
    make_two_heads(folder)
    make_samplers(folder)
    make_optimizers(folder)
    make_squared_errors(folder)
    make_pth.make(folder)
    print(f"golden results of PyTorch {torch.__version__} in {folder}")


if __name__ == "__main__":
    main()
