"""Watch: the lens's figures while a network trains, which it does not change."""
import copy
import pickle

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from lockstep.torch import Watch, WatchCallback, lens  # noqa: E402


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))


def images():
    random = torch.Generator().manual_seed(1)
    return torch.randn(8, 3, 8, 8, generator=random) + torch.randn(8, 3, 1, 1, generator=random)


def trained(net, steps):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(steps):
        net(images()).square().mean().backward()
        optimizer.step()
    return net


def test_its_figures_are_the_lens_s_and_the_training_is_as_it_was():
    net = network()
    expected = lens(net, images(), 2).by_images[0].layers
    plain = trained(copy.deepcopy(net), 5)
    with Watch(net, images_per_device=2, every=2) as watch:
        trained(net, 5)
        net.eval()(images())
    assert [dict(row) for row in watch.table.records()][:2] == [{"step": 1, **layer.to_dict()} for layer in expected]
    assert list(watch.table["step"]) == [1, 1, 3, 3, 5, 5] and list(watch.table["layer"][:2]) == ["1", "4"]
    assert all(torch.equal(a, b) for a, b in zip(net.state_dict().values(), plain.state_dict().values()))
    summary = watch.summary
    assert list(summary["layer"]) == ["1", "4"] and str(watch) == f"variance missed by 2 images per device, in percent\n{summary}"
    of_layer = 100 * watch.table.where(layer="4")["missed"]
    assert [summary[name][1] for name in ("first", "last", "most")] == [of_layer[0], of_layer[-1], max(of_layer)]
    trained(net.train(), 2)
    assert watch.table.rows == 6 and not net[1]._forward_pre_hooks


def test_batches_that_are_too_small_are_passed_by():
    with Watch(network(), images_per_device=5, every=1) as watch:
        pass
    assert watch.table.rows == 0
    net = network()
    with Watch(net, images_per_device=5, every=1) as watch:
        net(images())
    assert watch.table.rows == 0 and watch.steps == 1
    assert str(watch).startswith("nothing was seen (steps: 1): no BatchNorm layer in training saw two sets of 5 images, or torch.compile")
    with pytest.raises(ValueError, match="at least one image"):
        Watch(net, 0)


def test_its_figure():
    pytest.importorskip("matplotlib").use("Agg")
    net = network()
    with Watch(net, every=1) as watch:
        trained(net, 3)
    axes = watch.plot()
    assert len(axes.lines) == 2 and list(axes.lines[0].get_xdata()) == [1, 2, 3]


def test_a_trainer_that_calls_it_as_lightning_does(tmp_path, capsys):
    pytest.importorskip("matplotlib").use("Agg")
    net, callback = network(), WatchCallback(every=2, figure=tmp_path / "watch.png")
    callback.setup(None, net, stage="fit")
    callback.on_train_start(None, net)
    for index in range(3):
        callback.on_train_batch_start(None, net, None, index)
        net[:2](images())  # parts of it
        callback.on_train_batch_end(None, net, None, None, index)
    callback.on_train_end(None, net)
    assert list(callback.watch.table["step"]) == [1, 3] and (tmp_path / "watch.png").stat().st_size > 1000
    assert capsys.readouterr().out == f"{callback.watch}\n" and not net[1]._forward_pre_hooks and callback.state_dict() is None
    with pytest.raises(AttributeError):
        callback.watches


def test_lightning(tmp_path, capsys):
    lightning = pytest.importorskip("lightning.pytorch")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = network()

        def training_step(self, batch, index):
            return self.net(batch).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)
    callback = WatchCallback(every=2)
    trainer = lightning.Trainer(max_epochs=1, callbacks=[callback], accelerator="cpu", logger=False, default_root_dir=tmp_path,
                                enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Module(), torch.utils.data.DataLoader(images().repeat(3, 1, 1, 1), batch_size=8))
    assert list(callback.watch.table["step"]) == [1, 1, 3, 3] and "net.1" in capsys.readouterr().out


def test_calls_by_name_copies_and_other_rows():
    class Layers(nn.Module):
        def __init__(self):
            super().__init__()
            self.named, self.rows = nn.BatchNorm2d(3), nn.BatchNorm1d(3)

        def forward(self, x):
            return self.rows(self.named(input=x).permute(0, 2, 3, 1).reshape(-1, 3))
    net = Layers()
    with Watch(net, every=1) as watch:
        teacher = copy.deepcopy(net)
        for _ in range(2):
            net(images()), teacher(5 * images())
    seen = 2 if torch.__version__ >= "2" else 0  # before, hooks are not told what is given by name
    assert [(row["step"], row["layer"]) for row in watch.table.records()] == [(1, "named"), (2, "named")][:seen]
    net = network()
    with Watch(net):
        pickle.loads(pickle.dumps(net))(images())
