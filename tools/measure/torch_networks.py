#!/usr/bin/env python3
"""What convert(), ghost(1) and revert() change in networks of timm, torchvision and segmentation_models_pytorch: nothing, they say.

    torch_networks.py [WORD...]        only networks whose name has one of the words

For each network, with random weights and two small images in float64: the largest difference of its outputs, over the largest
output, in training and in evaluation. The lens is held against hooks that are written here, without the package's code: the
largest difference of a layer's means, in that layer's largest. Fails where a difference exceeds 1e-6, or a network is refused.
"""
import copy
import sys
import warnings
from pathlib import Path

import torch
from torch import nn

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

from lockstep.torch import Group, convert, ghost, lens, revert  # noqa: E402

LIMIT = 1e-6
TIMM = """mobilenetv3_small_100 mobilenetv3_large_100 mobilenetv2_100 mobilenetv4_conv_small efficientnet_b0 efficientnet_lite0
efficientnetv2_rw_t tf_efficientnet_b0 tf_efficientnetv2_b0 mixnet_s mnasnet_100 fbnetc_100 spnasnet_100 ghostnet_100 lcnet_050
tinynet_e hardcorenas_a regnety_002 regnetx_002 regnetz_b16 resnet18 resnet26d resnet50 resnet26t resnetv2_50x1_bit resnest14d
resnext50_32x4d seresnet18 skresnet18 ecaresnet26t densenet121 dla34 dla46_c res2net50_14w_8s hrnet_w18_small vgg11_bn xception41 xception65p
inception_v3 inception_v4 rexnet_100 repvgg_a0 cspresnet50 cspdarknet53 darknet53 vovnet39a ese_vovnet19b_dw selecsls42 dpn48b
gernet_s nf_regnet_b0 botnet26t_256 halonet26t lambda_resnet26t convmixer_768_32 levit_128s mobilevit_xxs edgenext_xx_small
fastvit_t8 repghostnet_050 mobileone_s0 test_byobnet test_efficientnet""".split()
VISION = """resnet18 resnet50 mobilenet_v2 mobilenet_v3_small mobilenet_v3_large efficientnet_b0 densenet121 googlenet shufflenet_v2_x0_5
mnasnet0_5 regnet_y_400mf regnet_x_400mf resnext50_32x4d wide_resnet50_2 vgg11_bn squeezenet1_0""".split()
SEGMENTATION = ["fcn_resnet50", "deeplabv3_resnet50", "deeplabv3_mobilenet_v3_large", "lraspp_mobilenet_v3_large"]
SMP = [("Unet", "resnet18"), ("Unet", "tu-mobilenetv3_small_100"), ("Unet", "timm-mobilenetv3_small_100"),
       ("Unet", "tu-efficientnet_b0"), ("UnetPlusPlus", "mobilenet_v2"), ("FPN", "efficientnet-b0"), ("FPN", "tu-regnety_002"),
       ("DeepLabV3Plus", "resnet18"), ("Linknet", "densenet121"), ("PSPNet", "resnet18"), ("PAN", "resnet18"), ("MAnet", "resnet18"),
       ("Unet", "timm-efficientnet-b0"), ("Unet", "timm-regnety_002"), ("Unet", "timm-resnest14d")]


def networks():
    """(name, function that makes it), of the packages that are installed."""
    try:
        import timm
        yield from ((f"timm {name}", lambda name=name: timm.create_model(name, num_classes=5)) for name in TIMM)
    except ImportError:
        print("timm is not installed", file=sys.stderr)
    try:
        import torchvision.models as vision
        for name in VISION:
            options = {"aux_logits": False} if name == "googlenet" else {}
            yield f"torchvision {name}", lambda name=name, options=options: getattr(vision, name)(weights=None, num_classes=5, **options)
        for name in SEGMENTATION:
            yield f"torchvision {name}", lambda name=name: getattr(vision.segmentation, name)(
                weights=None, weights_backbone=None, num_classes=5)
    except ImportError:
        print("torchvision is not installed", file=sys.stderr)
    try:
        import segmentation_models_pytorch as smp
        for kind, encoder in SMP:
            yield f"smp {kind} {encoder}", lambda kind=kind, encoder=encoder: getattr(smp, kind)(encoder, encoder_weights=None, classes=5)
    except ImportError:
        print("segmentation_models_pytorch is not installed", file=sys.stderr)


def outputs(model, images, training):
    """All tensors that the network returns; of a copy, so that nothing moves."""
    net = copy.deepcopy(model).train(training)
    torch.manual_seed(1)
    with torch.no_grad():
        found = net(images)
    if isinstance(found, dict):
        found = list(found.values())
    return [found] if torch.is_tensor(found) else [each for each in found if torch.is_tensor(each)]


def difference(before, after):
    return max(float((a - b).abs().max() / b.abs().max().clamp_min(1e-300)) for a, b in zip(after, before))


def changes(make, size):
    """The largest difference of each exchange, in training and evaluation, and how many layers there are."""
    torch.manual_seed(0)
    model = make().double()
    images = torch.randn(2, 3, size, size, dtype=torch.float64)
    row = []
    for training in (True, False):
        before = outputs(model, images, training)
        for exchange in (lambda net: convert(net, Group()), lambda net: ghost(net, 1), lambda net: revert(convert(net, Group()))):
            row.append(difference(before, outputs(exchange(copy.deepcopy(model)), images, training)))
    return row, sum(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())


def lens_difference(make, size):
    """The lens's share of variance missed, against hooks on every layer; None where the network has no BatchNorm."""
    torch.manual_seed(0)
    model = make().double()
    images = torch.randn(2, 3, size, size, dtype=torch.float64) + 2 * torch.randn(2, 3, 1, 1, dtype=torch.float64)
    found = lens(model, [images], images_per_device=(1,))
    if not found.by_images:
        return None
    seen = {}

    def hook(name):
        def keep(layer, inputs):
            x = inputs[0].flatten(2) if inputs[0].dim() > 2 else inputs[0][..., None]
            between = x.mean(2).var(0, unbiased=True)
            within = x.var(2, unbiased=False).mean(0)
            seen.setdefault(name, float((between / (between + within + layer.eps)).mean()))
        return keep
    model.eval()
    for name, layer in model.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.train()
            layer.register_forward_pre_hook(hook(name))
    with torch.no_grad():
        model(images)
    # A layer's first call counts.
    first = {each.layer: each.missed for each in reversed(found.by_images[0].layers)}
    return max(abs(first[name] - seen[name]) for name in first)


def main():
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print("| network | layers | training: convert | ghost(1) | revert | evaluation: convert | ghost(1) | revert | lens |\n"
          "|:--|--:|--:|--:|--:|--:|--:|--:|--:|")
    failed, rows = [], 0
    for name, make in networks():
        if sys.argv[1:] and not any(word in name for word in sys.argv[1:]):
            continue
        size = 224 if "levit" in name else 256 if "256" in name or "halonet" in name or "lambda" in name else 128 if "inception" in name or " PAN " in name else 64
        try:
            row, layers = changes(make, size)
            of_lens = lens_difference(make, size)
        except Exception as error:  # a network that its package cannot make is no result, and is said
            print(f"| {name} | {type(error).__name__}: {str(error)[:150]} |", flush=True)
            failed.append(name)
            continue
        rows += 1
        row.append(of_lens or 0.0)
        print(f"| {name} | {layers} | " + " | ".join(f"{value:.1e}" for value in row) + " |", flush=True)
        if max(row) > LIMIT or max(row) != max(row):
            failed.append(name)
    print(f"{rows} networks, {len(failed)} with a difference above {LIMIT:g} or an error: {', '.join(failed) or 'none'}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
