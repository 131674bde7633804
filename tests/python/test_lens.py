"""lens() where the answer is known, and what it leaves alone."""
import re

import pytest

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")

from torch import nn  # noqa: E402

from lockstep import LockstepError, MissingPackageError  # noqa: E402
from lockstep.torch import lens  # noqa: E402
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
    assert [each.verdict for each in apart.by_images] == ["synchronize", "cannot tell", "cannot tell"]
    assert apart.by_images[0].worst.ratio > 100 * alike.by_images[0].worst.ratio
    assert apart.by_images[0].logit_disparity > 10 * alike.by_images[0].logit_disparity
    assert lens(make(), [shifted(32, 32)], images_per_device=(4,), global_batch=4).verdict(4) == "not needed"


def test_figures_by_hand():
    """One BatchNorm of vectors: an image is one value per channel, so that nothing is within and all is between."""
    x = torch.tensor([[1.0], [3.0], [5.0], [7.0], [1.0], [3.0], [5.0], [7.0]])
    found = lens(nn.BatchNorm1d(1, eps=1e-12), [x], images_per_device=(2,))
    layer = found.by_images[0].layers[0]
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
    with pytest.raises(RuntimeError):  # and after an error, too
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
    with pytest.raises(LockstepError, match="expected logits .* got str; name them by"):
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


def test_table_and_page(tmp_path):
    net = nn.Sequential()
    net.add_module("a<b>", nn.BatchNorm2d(3))
    found = lens(net, [shifted(8)], images_per_device=(1, 2))
    assert found.to_table().rows == 2 and list(found.to_table()["images_per_device"]) == [1, 2]
    found.save_html(tmp_path / "lens.html")
    page = (tmp_path / "lens.html").read_text(encoding="utf-8")
    assert "Synchronize with 1 image per device" in page and "a&lt;b&gt;" in page and "a<b>" not in page
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
    assert found.verdict(1) == "synchronize"
    first = found.by_images[0].layers[0]
    assert first.layer in ("bn1", "backbone.bn1") and first.values == 32 * 32 and first.missed > 0.2
    assert lens(net, [noise(4, 64)], images_per_device=(1,)).by_images[0].layers[0].missed < 0.01
