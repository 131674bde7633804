"""lens() where the answer is known, and what it leaves alone."""
import math
import re

import pytest

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")

from torch import nn  # noqa: E402

from lockstep import ConfigError, LockstepError, MissingPackageError  # noqa: E402
from lockstep.torch import Group, LayerNoise, convert, lens  # noqa: E402
from lockstep.torch.noise import judge  # noqa: E402
from own_forwards import ActivatedBatchNorm, ActivatedSyncBatchNorm, Handmade  # noqa: E402
from small_unet import UNet  # noqa: E402


def tiny():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(0.5), nn.Conv2d(6, 4, 1),
                         nn.BatchNorm2d(4))


def noise(images, size=16):
    """Images that are alike: iid noise."""
    return torch.randn(images, 3, size, size, generator=torch.Generator().manual_seed(1))


def shifted(images, size=16, by=3.0):
    """Images whose means differ: noise plus a colour of each image's own."""
    colours = torch.randn(images, 3, 1, 1, generator=torch.Generator().manual_seed(2))
    return noise(images, size) + by * colours


@pytest.mark.parametrize("make", [tiny, lambda: UNet(8, 3, 4)], ids=["tiny", "unet"])
def test_images_that_are_alike_need_nothing_and_those_with_means_of_their_own_do(make):
    alike = lens(make(), [noise(32, 32)], images_per_device=(1, 2, 4))
    assert [each.verdict for each in alike.by_images] == ["not needed"] * 3
    apart = lens(make(), [shifted(32, 32)], images_per_device=(1, 2, 4))
    assert [each.verdict for each in apart.by_images] == ["by image"] * 3
    pretrained = lens(make(), [shifted(32, 32)], images_per_device=(1, 2, 4), weights="pretrained")
    assert [each.verdict for each in pretrained.by_images] == ["synchronize", "cannot tell", "cannot tell"]
    assert apart.by_images[0].worst.ratio > 100 * alike.by_images[0].worst.ratio
    assert apart.by_images[0].logit_disparity > 10 * alike.by_images[0].logit_disparity
    shown = apart._repr_html_()
    assert f"<p>{apart.verdicts()[0]}</p>" in shown and shown.count("<tr>") == 4 and '<th scope="col">variance missed</th>' in shown
    assert lens(make(), [shifted(32, 32)], images_per_device=(4,), global_batch=4, weights="pretrained"
                ).verdict(4) == "not needed"


def layer(missed, bimodality=0.4, values=100, factor=2.2):
    return LayerNoise(layer="bn", values=values, ratio=0.0, missed=missed, log_var_ratio=math.log(factor), mean_shift=0.0,
                      bimodality=bimodality)


@pytest.mark.parametrize("together, missed, weights, losses, verdict, reason", [
    (1, 0.49, "initial", (1, 9), "cannot tell", "it misses 49.0 % of the variance at bn, which an evaluation"),
    (1, 0.5, "initial", (1, 9), "by image", "50 % of the variance at bn lies between images: statistics"),
    (4, 0.125, "trained", (1, 1), "by image", "50 % of the variance at bn lies between images: statistics"),
    (4, 0.0625, "pretrained", (1, 1), "cannot tell", "they miss 6.2 % of the variance at bn: noise"),
    (1, 0.5, "pretrained", (1, 9), "synchronize", "it misses 50.0 % of the variance at bn"),
    (1, 0.01, "trained", (1, 1.6), "by image", "the loss 1.00 by each image's own statistics and 1.60 by their running ones"),
    (1, 0.01, "trained", (1, 1.5), "not needed", "it misses 1.0 % of the variance at bn, and less"),
    (2, 0.01, "initial", (1, 1.6), "not needed", "they miss 1.0 %"),
    (2, 0.07, "pretrained", (1, 1.6), "synchronize", "the running statistics do not fit the weights: loss 1.60 in evaluation"),
    (2, 0.07, "trained", (1, 1.6), "synchronize", "the running statistics do not fit the weights"),
    (2, 0.07, "initial", (float("nan"), float("nan")), "cannot tell", "noise, which may harm or regularise"),
    (8, 0.01, "initial", (1, 9), "not needed", "the global batch has no more than 8 images"),
    (8, 0.08, "initial", (1, 1), "by image", "64 % of the variance"),
])
def test_the_rule(together, missed, weights, losses, verdict, reason):
    found = judge(together, [layer(missed / 2), layer(missed), layer(0)], 8, *losses, weights,
                  losses[1] if weights == "trained" else float("nan"))
    assert found[0] == verdict and reason in found[1], found


@pytest.mark.parametrize("factor, verdict", [(1.99, "synchronize"), (2.01, "cannot tell"), (2.49, "cannot tell"), (2.51, "by image")])
def test_the_rule_of_one_image_alone(factor, verdict):
    found = judge(1, [layer(0.1, factor=factor - 0.1), layer(0.2, factor=factor ** 2 / (factor - 0.1))], 8)
    assert found[0] == verdict and f"by a factor of {factor:.1f}, the mean of all layers" in found[1]
    assert judge(1, [layer(0.1, factor=factor)], 8, weights="pretrained")[0] == "synchronize"


def test_images_that_fall_into_kinds_are_said_to():
    assert "which fall into kinds: statistics" in judge(1, [layer(0.6, 0.7)], None)[1]
    assert "kinds" not in judge(1, [layer(0.6, 0.69)], None)[1]
    assert judge(1, [layer(0.3, values=1)], None)[0] == "synchronize"  # nothing else counts where there is no training


def test_bimodality_by_hand():
    """Of 0, 0, 0 and 1 the corrected skewness is 2 and the excess of the kurtosis 4. Rounding alone has none."""
    x = torch.tensor([[0.0, 7.1], [0.0, 7.1], [0.0, 7.1], [1.0, 7.1000004]])
    assert x[3, 1] != x[0, 1]

    def of(images):
        return lens(nn.BatchNorm1d(2), [images], images_per_device=(1,)).by_images[0].layers[0].bimodality
    assert of(x) == pytest.approx((2 ** 2 + 1) / (4 + 13.5) / 2)
    assert of(x[1:]) == 0  # of three nobody can tell
    heaps = torch.cat([torch.zeros(32, 1), torch.ones(32, 1)]) + 0.01 * noise(64, 1)[:, :1, 0, 0]
    assert of(heaps.expand(64, 2)) > 0.9


def test_figures_by_hand():
    """One BatchNorm of vectors: an image is one value per channel, so that nothing is within and all is between."""
    x = torch.tensor([[1.0], [3.0], [5.0], [7.0], [1.0], [3.0], [5.0], [7.0]])
    found = lens(nn.BatchNorm1d(1, eps=1e-12), [x], images_per_device=(2,))
    layer = found.by_images[0].layers[0]
    assert found.by_images[0].changed == 0.5  # the sign of a single logit is its class: -+-+ in training, --++ in evaluation
    between = numpy.var(x.numpy(), ddof=1)  # of single images
    assert layer.values == 2 and layer.missed == pytest.approx(0.5)  # b / 2 of 0 + b
    assert layer.ratio == pytest.approx((between / 2) / (between - between / 2))
    assert layer.mean_shift == pytest.approx(numpy.sqrt(0.5))
    assert layer.log_var_ratio == pytest.approx(numpy.log(5 / 1))  # pairs have the variance 1, all have 5
    # In training logits are -1 and 1 in turn; in evaluation they are normalised by mean 4 and the pairs' unbiased variance 2.
    trained, evaluated = numpy.array([-1, 1] * 4), (x.numpy().ravel() - 4) / numpy.sqrt(2)
    whole = (x.numpy().ravel() - 4) / numpy.sqrt(5)
    assert found.by_images[0].logit_disparity == pytest.approx(numpy.sqrt(((trained - evaluated) ** 2).mean()), rel=1e-6)
    assert found.by_images[0].logit_noise == pytest.approx(numpy.sqrt(((trained - whole) ** 2).mean()), rel=1e-6)


def test_variances_by_hand():
    """Pairs of values, whose means are 1, 5, 1 and 5: within images the variance is 1, between them 16 / 3."""
    x = torch.tensor([[[0.0, 2.0]], [[4.0, 6.0]]] * 2)
    layer = lens(nn.BatchNorm1d(1, eps=1e-12), [x], images_per_device=(1,)).by_images[0].layers[0]
    assert layer.values == 2 and layer.missed == pytest.approx((16 / 3) / (1 + 16 / 3))
    assert layer.ratio == pytest.approx(16 / 3) and layer.log_var_ratio == pytest.approx(numpy.log(5))


def test_one_value_per_channel_cannot_train():
    found = lens(nn.Sequential(nn.BatchNorm1d(3)), [torch.randn(8, 3)], images_per_device=(1, 2))
    assert found.by_images[0].verdict == "synchronize" and "one value per channel" in found.by_images[0].reason
    assert found.to_dict()["by_images_per_device"][0]["logit_noise"] is None


def test_each_image_by_its_own_statistics():
    """Where a layer sees one value of an image, its own statistics leave nothing: those of all images take their place."""
    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.first, self.second = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.BatchNorm1d(6)
            self.head = nn.Linear(6, 4)

        def forward(self, x):
            return self.head(self.second(self.first(self.conv(x)).relu().mean((2, 3))))
    torch.manual_seed(0)
    net, labels = Pooled(), torch.arange(8) % 4
    found = lens(net, [(shifted(8), labels)], images_per_device=(1, 2, 4))
    with torch.no_grad():
        pooled = nn.functional.instance_norm(net.conv(shifted(8))).relu().mean((2, 3))
        # Means and variances of all images are those that one pass of all has left.
        whole = nn.functional.batch_norm(net.conv(shifted(8)), None, None, training=True).relu().mean((2, 3))
        own = nn.functional.cross_entropy(net.head((pooled - whole.mean(0)) / (whole.var(0) + 1e-5).sqrt()), labels)
    assert [each.own_loss for each in found.by_images] == [pytest.approx(float(own), rel=1e-5)] * 3
    assert numpy.isnan(found.by_images[0].loss)  # no training by one value
    labels = torch.randint(0, 4, (8, 16, 16), generator=torch.Generator().manual_seed(3))
    found = lens(tiny(), [(shifted(8), labels)], images_per_device=(1, 4))
    assert found.by_images[0].own_loss == found.by_images[0].loss == found.by_images[1].own_loss != found.by_images[1].loss
    assert found.to_dict()["by_images_per_device"][1]["own_loss"] == found.by_images[0].loss
    assert lens(tiny(), [shifted(8)], images_per_device=(1,)).to_dict()["by_images_per_device"][0]["own_loss"] is None


def test_one_output_channel_tells_two_classes_apart():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 1, 3, padding=1), nn.BatchNorm2d(1))
    labels = torch.randint(0, 2, (8, 16, 16), generator=torch.Generator().manual_seed(3))
    labels[:, :4] = 255  # do not count
    found = lens(net, [(shifted(8), labels)], images_per_device=(1,))
    assert found.by_images[0].changed > 0.05
    with torch.no_grad():
        logits = nn.functional.batch_norm(net[0](shifted(8)), None, None, training=True)
    expected = nn.functional.binary_cross_entropy_with_logits(logits[:, 0, 4:], labels[:, 4:].float())
    assert found.loss == pytest.approx(float(expected), rel=1e-5)
    assert lens(net, [(shifted(8), labels[:, None])], images_per_device=(1,)).loss == found.loss
    with pytest.raises(LockstepError, match="expected labels 0 and 1 .* got 3; if .* give lens\\(\\) a loss="):
        lens(net, [(shifted(8), torch.full((8, 16, 16), 3))], images_per_device=(1,))


def test_layers_that_run_in_training_only_are_named():
    class Auxiliary(nn.Module):
        def __init__(self, main):
            super().__init__()
            self.main, self.aux = main, nn.ModuleList(nn.BatchNorm2d(3) for _ in range(6))

        def forward(self, x):
            return (self.main(x), [bn(x) for bn in self.aux]) if self.training else self.main(x)
    found = lens(Auxiliary(tiny()), [noise(8)], images_per_device=(1,))
    assert found.not_run == found.to_dict()["not_run"] == [f"aux.{number}" for number in range(6)]
    assert "\nleft out: 6 layers that run in training only (aux.0, aux.1, aux.2, aux.3, ...)\n" in str(found)
    alone = lens(Auxiliary(nn.Conv2d(3, 2, 1)), [noise(8)], images_per_device=(1,))
    assert not alone.shares_statistics and "no other layer" in str(alone) and "nothing to synchronize" not in str(alone)
    assert lens(tiny(), [noise(8)], images_per_device=(1,)).not_run == []


def test_the_model_is_left_as_it_was():
    net = tiny()
    net.train()
    net[5].eval()  # frozen by its user, in this very training
    before = {name: value.clone() for name, value in net.state_dict().items()}
    modes = [module.training for module in net.modules()]
    lens(net, [noise(8)], images_per_device=(1, 2))
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert [module.training for module in net.modules()] == modes
    assert all("forward" not in module.__dict__ for module in net.modules())
    with pytest.raises(LockstepError, match="refuses images"):  # and after an error, too
        lens(net, [torch.randn(8, 2, 4, 4)], images_per_device=(1,))
    assert [module.training for module in net.modules()] == modes
    assert all("forward" not in module.__dict__ for module in net.modules())


def test_layers_that_a_model_keeps_frozen_take_no_statistics():
    class Frozen(nn.Sequential):
        def train(self, mode=True):
            super().train(mode)
            self[1].eval()
            return self
    found = lens(Frozen(*tiny()), [noise(8)], images_per_device=(1,))
    assert [layer.layer for layer in found.by_images[0].layers] == ["5"]
    without = lens(nn.Sequential(nn.Conv2d(3, 2, 1)), [noise(8)], images_per_device=(1,))
    assert not without.shares_statistics and "nothing to synchronize" in str(without)


def test_label_255_counts_where_it_is_a_class():
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 300, 1))
    found = lens(net, [(noise(8), torch.full((8, 16, 16), 255))], images_per_device=(1,))
    assert found.loss is not None and math.isfinite(found.loss)


def test_losses_labels_and_outputs():
    labels = torch.randint(0, 4, (8, 16, 16), generator=torch.Generator().manual_seed(3))
    labels[:, :4] = 255  # do not count
    net = tiny()
    batches = [(noise(8)[:5], labels[:5]), (noise(8)[5:], labels[5:])]
    found = lens(net, batches, images_per_device=(2,))
    assert found.loss == pytest.approx(lens(net, [{"image": noise(8), "label": labels}], images_per_device=(2,)).loss)
    own = lens(net, batches, images_per_device=(2,), loss=lambda logits, of: nn.functional.cross_entropy(
        logits, of, ignore_index=255))
    assert own.by_images[0].loss == pytest.approx(found.by_images[0].loss, rel=1e-5)

    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x):
            return {"out": self.net(x), "aux": None}
    wrapped = lens(Wrapped(), [noise(8)], images_per_device=(2,))
    assert wrapped.by_images[0].logit_noise == found.by_images[0].logit_noise and wrapped.to_dict()["loss"] is None
    with pytest.raises(LockstepError, match="expected logits .* got str; let it return them, or name them by"):
        lens(Named(), [noise(8)], images_per_device=(2,))
    assert lens(Named(), [noise(8)], images_per_device=(2,), output=lambda returned: noise(2)).by_images


class Named(nn.Module):
    """Returns what nobody expects of a network."""

    def __init__(self):
        super().__init__()
        self.bn = nn.BatchNorm2d(3)

    def forward(self, x):
        self.bn(x)
        return "logits"


@pytest.mark.parametrize("batches, message", [
    ([], "the loader, and it has none"), ([noise(3)], "two sets of them, 4 images, and there are 3"),
    ([noise(2), noise(2, 8)], "images of one size"), (["a.png"], "expected batches of images")])
def test_errors_say_what_to_do(batches, message):
    with pytest.raises(LockstepError, match=message):
        lens(tiny(), batches, images_per_device=(2,))


def broken():
    net = tiny()
    net[0].weight.data[0, 0, 0, 0] = float("nan")
    return net


def silent():
    net = nn.Sequential(tiny(), nn.Conv2d(4, 2, 1))
    nn.init.zeros_(net[1].weight)
    return net


@pytest.mark.parametrize("net, images, message", [
    (tiny, torch.where(torch.arange(8).view(8, 1, 1, 1) == 5, torch.nan, noise(8)),
     "finite numbers, got NaN or infinity in 1 of 8, first in number 5"),
    (tiny, torch.ones(8, 3, 16, 16), "images that differ, got 8 times the same"),
    (tiny, noise(1).expand(8, 3, 16, 16), "images that differ, got 8 times the same"),
    (broken, noise(8), "finite logits, got NaN or infinity from finite images"),
    (silent, noise(8), "logits that differ .* the same everywhere")])
def test_images_and_logits_that_say_nothing_are_errors(net, images, message):
    with pytest.raises(LockstepError, match=message):
        lens(net(), [images], images_per_device=(1, 2))


@pytest.mark.parametrize("option", [{"images": -1}, {"images": 0}, {"images": 8.0}, {"images_per_device": "12"}, {"images_per_device": []},
                                    {"images_per_device": 1.5}, {"images_per_device": [0, 1]}, {"global_batch": 0}])
def test_other_numbers_are_refused(option):
    with pytest.raises(ConfigError, match=f"expected {next(iter(option))}=.*at least 1, got"):
        lens(tiny(), [noise(8)], **option)


@pytest.mark.parametrize("numbers", [{1, 2}, range(1, 3), numpy.array([1, 2]), torch.tensor([1, 2])], ids=lambda each: type(each).__name__)
def test_numbers_are_whole_whatever_holds_them(numbers):
    assert [each.images_per_device for each in lens(tiny(), [noise(8)], numbers, images=numpy.int64(8)).by_images] == [1, 2]
    assert len(lens(tiny(), [noise(8)], (each for each in numbers)).by_images) == 2


@pytest.mark.parametrize("make", [nn.SyncBatchNorm, ActivatedSyncBatchNorm])
def test_pytorch_s_own_sync_batch_norm_runs_on_a_cpu(make):
    def net(layer):
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(3, 6, 3), layer, *([] if make is ActivatedSyncBatchNorm else [nn.ReLU()]), nn.Conv2d(6, 2, 1))
    looked_at = net(make(6))
    found = lens(looked_at, shifted(8), (1, 2))
    assert type(looked_at[1]) is make and found.to_dict() == lens(net(ActivatedBatchNorm(6)), shifted(8), (1, 2)).to_dict()


@pytest.mark.parametrize("error", [ValueError, TypeError, KeyError])
def test_whatever_a_model_raises_it_refuses(error):
    class Refuses(nn.Module):
        def forward(self, x):
            raise error("three bands")
    with pytest.raises(LockstepError, match=rf"the model refuses images \[2, 3, 16, 16\]: {error.__name__}: .*three bands.*; the loader's batches"):
        lens(nn.Sequential(nn.BatchNorm2d(3), Refuses()), noise(8))


@pytest.mark.parametrize("tracks", [True, False])
def test_a_layer_that_clamps_eps_is_seen_to(tracks):
    """Where variances are near eps, as of these images, 1/sqrt(max(var, eps)) is far from 1/sqrt(var + eps)."""
    eps, labels = 1e-2, torch.randint(0, 3, (8, 16, 16), generator=torch.Generator().manual_seed(3))
    x = shifted(8, by=1.0).double() * torch.tensor([0.05, 0.1, 0.2]).view(1, 3, 1, 1)

    def logits(images, var):
        return (images - images.mean((0, 2, 3), keepdim=True)) / var.clamp_min(eps).sqrt().view(1, 3, 1, 1)

    def of(images):
        return logits(images, images.var((0, 2, 3), unbiased=False))
    found = lens(convert(nn.BatchNorm2d(3, eps=eps, track_running_stats=tracks).double(), Group(), eps_mode="clamp"), (x, labels), (1, 2))
    assert found.loss == pytest.approx(float(nn.functional.cross_entropy(of(x), labels)), rel=1e-5)
    pairs = torch.cat([of(pair) for pair in x.split(2)])
    assert found.by_images[1].loss == pytest.approx(float(nn.functional.cross_entropy(pairs, labels)), rel=1e-5)
    settled = torch.stack([pair.var((0, 2, 3)) for pair in x.split(2)]).mean(0)  # unbiased, as running variances are
    assert found.by_images[1].running_loss == pytest.approx(float(nn.functional.cross_entropy(logits(x, settled), labels)), rel=1e-5)


def test_weights_come_from_somewhere():
    with pytest.raises(ValueError, match="expected weights='initial' or 'pretrained' or 'trained', .* got 'imagenet'"):
        lens(tiny(), [noise(8)], weights="imagenet")
    found = lens(tiny(), [noise(8)], images_per_device=(1,), weights="trained")
    assert "8 images of 16x16, trained weights\n" in str(found) and found.to_dict()["weights"] == "trained weights"


def test_numbers_with_the_same_verdict_stand_in_one_line():
    lines = lens(tiny(), [shifted(16)], images_per_device=(1, 2, 4)).verdicts()
    assert len(lines) == 1 and lines[0].startswith("1, 2, 4 images per device: by image (")
    lines = lens(tiny(), [noise(16)], images_per_device=(1, 2)).verdicts()
    assert [line[:26] for line in lines] == ["1 image per device: not ne", "2 images per device: not n"]  # reasons differ


def test_table_and_page(tmp_path):
    net = nn.Sequential()
    net.add_module("a<b>", nn.BatchNorm2d(3))
    found = lens(net, [shifted(8)], images_per_device=(1, 2))
    assert found.to_table().rows == 2 and list(found.to_table()["images_per_device"]) == [1, 2]
    found.save_html(tmp_path / "lens.html")
    page = (tmp_path / "lens.html").read_text(encoding="utf-8")
    assert "Normalise by image with 1, 2 images per device" in page and "1, 2 images per device: by image" in page
    lens(net, [shifted(8)], images_per_device=(1, 2), weights="pretrained").save_html(tmp_path / "pretrained.html")
    assert "Synchronize with 1 image per device" in (tmp_path / "pretrained.html").read_text(encoding="utf-8")
    assert "by own statistics" in page and "bimodality" in page and "a&lt;b&gt;" in page and "a<b>" not in page
    assert not re.search(r"<script|https?://|<img|<link", page)  # one file, no network
    from html.parser import HTMLParser
    open_tags = []

    class Balance(HTMLParser):
        def handle_starttag(self, tag, attributes):
            if tag not in ("meta",):
                open_tags.append(tag)

        def handle_endtag(self, tag):
            assert open_tags.pop() == tag
    Balance().feed(page)
    assert open_tags == []


def test_pandas():
    pandas = pytest.importorskip("pandas")
    frame = lens(tiny(), [noise(8)], images_per_device=(1, 2)).to_pandas()
    assert isinstance(frame, pandas.DataFrame) and len(frame) == 4


def test_without_pandas(monkeypatch):
    import sys
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingPackageError, match="pip install pandas"):
        lens(tiny(), [noise(8)], images_per_device=(1,)).to_pandas()


@pytest.mark.parametrize("name", ["resnet50", "fcn_resnet50"])
def test_torchvision_s_networks(name):
    """Untrained, images with colours of their own need it; and every layer is there."""
    torchvision = pytest.importorskip("torchvision")
    torch.manual_seed(0)
    if name == "resnet50":
        net = torchvision.models.resnet50(num_classes=5)
    else:
        net = torchvision.models.segmentation.fcn_resnet50(weights=None, weights_backbone=None, num_classes=5)
    found = lens(net, [shifted(4, 64)], images_per_device=(1, 2))
    layers = [layer.layer for layer in found.by_images[0].layers]
    assert sorted(layers) == sorted(name for name, module in net.named_modules() if isinstance(module, nn.BatchNorm2d))
    assert found.verdict(1) == "by image"
    first = found.by_images[0].layers[0]
    assert first.layer in ("bn1", "backbone.bn1") and first.values == 32 * 32 and first.missed > 0.2
    assert lens(net, [noise(4, 64)], images_per_device=(1,)).by_images[0].layers[0].missed < 0.01


class Functional(nn.Module):
    """Calls functional.batch_norm by itself."""

    def __init__(self, always):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 4, 1)
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("var", torch.ones(6))
        self.always = always

    def forward(self, x):
        weight = self.conv.weight  # standardised by a batch norm of one "image", which is not shared: as timm writes it
        weight = nn.functional.batch_norm(weight.reshape(1, 6, -1), None, None, training=True).reshape_as(weight)
        x = nn.functional.conv2d(x, weight)
        if self.always is not None:
            x = nn.functional.batch_norm(x, self.mean, self.var, training=self.always or self.training)
        return self.head(x)


@pytest.mark.parametrize("always", [True, False])
def test_a_batch_norm_that_is_no_layer_is_refused(always):
    net = Functional(always)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with pytest.raises(LockstepError, match="calls torch.nn.functional.batch_norm by itself, of .2, 6, 14, 14., in training"):
        lens(net, [noise(8)], images_per_device=(1,))
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items()) and net.training
    assert not lens(Functional(None), [noise(8)], images_per_device=(1,)).shares_statistics


def test_torchscript_is_refused_and_a_compiled_network_is_looked_at():
    scripted = torch.jit.script(tiny())
    with pytest.raises(LockstepError, match="the model is TorchScript"):
        lens(scripted, [noise(8)], images_per_device=(1,))
    with pytest.raises(LockstepError, match="0 is TorchScript"):
        lens(nn.Sequential(scripted, nn.Conv2d(4, 2, 1)), [noise(8)], images_per_device=(1,))
    if not hasattr(torch, "compile"):
        return
    net = tiny()
    expected = lens(net, [noise(8)], images_per_device=(1, 2))
    assert lens(torch.compile(net), [noise(8)], images_per_device=(1, 2)).to_dict() == expected.to_dict()


def test_layers_keep_a_forward_of_their_own():
    net = nn.Sequential(nn.Conv2d(3, 6, 3), ActivatedBatchNorm(6), nn.Conv2d(6, 4, 1))
    plain = nn.Sequential(net[0], nn.BatchNorm2d(6), nn.ReLU(), net[2])
    labels = torch.randint(0, 4, (8, 14, 14), generator=torch.Generator().manual_seed(3))
    found, expected = (lens(each, [(shifted(8), labels)], images_per_device=(1, 2)) for each in (net, plain))
    assert found.to_dict() == expected.to_dict() and net[1].num_batches_tracked == 0
    with pytest.raises(LockstepError, match="1 is a Handmade, whose forward does not call"):
        lens(nn.Sequential(nn.Conv2d(3, 6, 3), Handmade(6)), [noise(8)], images_per_device=(1,))


def test_natural_input():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4))
    x, y = shifted(8), torch.randint(0, 4, (8, 16, 16), generator=torch.Generator().manual_seed(3))
    of_y = torch.where(y == 3, 255, y)
    expected = lens(net, [(x, of_y)], images_per_device=(2,))

    def same(loader, **options):
        return lens(net, loader, options.pop("images_per_device", (2,)), **options).to_dict() == expected.to_dict()
    assert same((x, of_y)) and same([(x, of_y)], images_per_device=2) and same((x, of_y[:, None]))
    assert same((x.numpy(), of_y.numpy().astype("uint8"))) and same((x, of_y.float())) and same((x.double(), of_y))
    assert same({"img": x, "gt": of_y}) and same([{"a": x, "b": of_y}], batch=lambda batch: (batch["a"], batch["b"]))
    assert same((x, torch.where(y == 3, -100, y)), ignore_index=-100) and same((x, torch.where(y == 3, -1, y)), ignore_index=-1)
    one_hot = nn.functional.one_hot(y, 4).movedim(3, 1)
    assert lens(net, (x, one_hot), (2,)).loss == lens(net, (x, y), (2,)).loss == lens(net, (x, one_hot.float()), (2,)).loss
    alone = lens(net, x, (2,))
    assert alone.by_images[0].logit_noise == expected.by_images[0].logit_noise and numpy.isnan(alone.loss)
    dataset = torch.utils.data.TensorDataset(x, y)
    assert lens(net, dataset, (2,), images=8).loss == pytest.approx(lens(net, (x, y), (2,)).loss)  # in another order
    assert lens(net, dataset, (2,), images=4).images == 4


@pytest.mark.parametrize("loader, message", [
    ((torch.zeros(8, 3, 16, 16, dtype=torch.uint8), None), r"floating-point numbers, .* got uint8; write lens\(..., batch="),
    ((noise(8), torch.full((8, 16, 16), -100)), r"labels 0 to 3 \(255 does not count\), got -100; .* write ignore_index=-100"),
    ((noise(8), torch.zeros(8, 4, 4)), r"expected labels \[8, 16, 16\] for logits \[8, 4, 16, 16\], got \[8, 4, 4\]"),
    ((noise(8), torch.full((8, 16, 16), 0.5)), "numbers of classes, got fractions"),
    ([{"picture": noise(8)}], "a dictionary of 'picture'; call them 'image' and 'label', or say which is which"),
    (noise(8)[0], r"the model refuses images \[2, 16, 16\]: .*the loader's batches"),
    (3, "a loader, a data set, or images .* got int"), (noise(8)[0, 0, 0], r"got \[16\]; say where they are")])
def test_other_input_says_what_to_write(loader, message):
    with pytest.raises(LockstepError, match=message):
        lens(tiny(), loader, (1,))


def test_rows_that_are_no_images_are_refused():
    class Video(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm2d(3)

        def forward(self, x):
            return self.norm(x.flatten(0, 1)).unflatten(0, x.shape[:2]).mean(1)
    with pytest.raises(LockstepError, match="norm sees 128 rows of 64 images"):
        lens(Video(), torch.randn(64, 2, 3, 8, 8))


def test_a_batch_of_a_loader_is_one_batch():
    torch.manual_seed(0)
    net, x, y = tiny(), noise(64), torch.randint(0, 4, (64, 16, 16))
    assert lens(net, [x, y]).by_images[0].loss == lens(net, (x, y)).by_images[0].loss


    masks, gray = y % 2, nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2))
    for model, images, labels in ((net, x, masks), (net, x, masks[:, None]), (gray, x[:, :1], masks[:, None])):
        assert lens(model, [images, labels.float()]).loss == lens(model, (images, labels)).loss
    for images in (x, 255 * x.round()):
        assert lens(net, [images[:32], images[32:]]).images == 64  # two batches of images alone


def test_a_network_in_mixed_precision():
    class Mixed(nn.Module):
        def __init__(self, net):
            super().__init__()
            self.net = net

        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return self.net(x)
    labels = torch.randint(0, 4, (8, 16, 16), generator=torch.Generator().manual_seed(3))
    for net in (tiny(), convert(tiny(), Group(), eps_mode="clamp")):
        found, expected = (lens(each, (shifted(8), labels), (1, 2), weights="trained") for each in (Mixed(net), net))
        assert [each.verdict for each in found.by_images] == [each.verdict for each in expected.by_images]
        for a, b in zip(found.by_images, expected.by_images):
            assert [a.loss, a.running_loss, a.stored_loss] == pytest.approx([b.loss, b.running_loss, b.stored_loss], rel=0.02)


def test_modules_whose_train_does_more_are_called():
    class Merges(nn.Sequential):
        merged = False

        def train(self, mode=True):
            self.merged = not mode
            return super().train(mode)
    net = Merges(*tiny()).train()
    lens(net, noise(64))
    assert not net.merged and net.training
