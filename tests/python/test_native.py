"""lockstep.native: the bits of the program, arrays that are not copied, errors, threads, and Ctrl-C."""
import gc
import os
import re
import runpy
import signal
import subprocess
import sys
import threading
import time
import zlib

import pytest

import lockstep
from conftest import ROOT, native_module

numpy = pytest.importorskip("numpy")
native = native_module()

CLASSES, SIDE, IMAGES = 3, 32, 12
MEAN, STD = (0.5, 0.25, 0.125), (0.25, 0.5, 0.75)
MODEL = {"width": 4, "depth": 2}
SMALL = {"arch": "unet", "input": (4, 3, SIDE, SIDE), "num_classes": CLASSES, "model": MODEL, "seed": 3}


def write_png(path, pixels):
    """8-bit RGB [H, W, 3] or gray [H, W]."""
    def chunk(kind, data):
        body = kind + data
        return len(data).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")
    height, width = pixels.shape[:2]
    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 2 if pixels.ndim == 3 else 0, 0, 0, 0])
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A data set in a folder; its training images, normalised as the program does it, and their labels."""
    root = tmp_path_factory.mktemp("data")
    random = numpy.random.default_rng(1)
    pixels = random.integers(0, 256, (IMAGES, SIDE, SIDE, 3), dtype=numpy.uint8)
    labels = (pixels[..., 0] > 127).astype(numpy.uint8) + (pixels[..., 1] > 127)
    labels[random.random(labels.shape) < 0.1] = 255
    for split in ("train", "val"):
        for i in range(IMAGES):
            write_png(root / f"images/{split}/{i:02}.png", pixels[i])
            write_png(root / f"masks/{split}/{i:02}.png", labels[i])
    one = numpy.float32
    normalised = (pixels.astype(one) / one(255) - numpy.array(MEAN, one)) / numpy.array(STD, one)
    return root, numpy.ascontiguousarray(normalised.transpose(0, 3, 1, 2)), labels


@pytest.fixture(scope="module")
def batch(data):
    return data[1][:4], data[2][:4].astype(numpy.uint16)


def trained(batch, devices="cpu:2", steps=3, **options):
    net = native.DataParallel(devices, **{**SMALL, **options})
    for _ in range(steps):
        net.train_step(*batch)
    return net.state_dict()


def same(a, b):
    assert list(a) == list(b)
    return all(a[name].dtype == b[name].dtype and a[name].shape == b[name].shape and a[name].tobytes() == b[name].tobytes()
               for name in a)


def program_run(data, folder, **tables):
    """Six steps of four images, in the order of the files."""
    config = {"run": {"max_iters": 6, "seed": 3}, "model": MODEL, "batch": {"global": 4}, "schedule": {"type": "constant"},
              "data": {"layout": "folder", "root": str(data[0]), "num_classes": CLASSES, "shuffle": False,
                       "mean": MEAN, "std": STD}}
    return lockstep.train({**config, **tables}, output=folder, devices="cpu:2", progress=False)


@pytest.mark.parametrize("bn, optimizer, loss", [
    ({"mode": "sync"}, {"type": "sgd", "lr": 0.05}, {"type": "cross_entropy"}),
    ({"mode": "local", "momentum": 0.3, "eps": 1e-3}, {"type": "adamw", "lr": 0.01, "weight_decay": 0.1}, {"type": "dice"}),
    ({"mode": "ghost", "virtual_devices": 2}, {"type": "sgd", "nesterov": True}, {"type": "focal", "gamma": 1.5}),
    ({"mode": "group", "groups": 2}, {"type": "lion", "lr": 0.001}, {"type": "cross_entropy", "class_weight": [1, 2, 0.5]})])
def test_the_bytes_of_the_program(program, data, tmp_path, bn, optimizer, loss):
    run = program_run(data, tmp_path / "run", bn=bn, optim=optimizer, loss=loss)
    net = native.DataParallel("cpu:2", bn=bn, optimizer=optimizer, losses=loss, **SMALL)
    losses = []
    for step in range(6):
        place = slice(4 * step % IMAGES, 4 * step % IMAGES + 4)
        losses.append(net.train_step(data[1][place], data[2][place]).loss)
    assert net.steps == 6 and losses[-1] < losses[0]
    assert same(net.state_dict(), run.state_dict("last"))


def test_the_number_of_devices_changes_no_bit(batch):
    one = trained(batch, "cpu:1")
    assert same(trained(batch, "cpu:2"), one) and same(trained(batch, "cpu:4"), one)
    assert not same(trained(batch, "cpu:2", bn="local"), one)
    net = native.DataParallel("cpu:2", **SMALL)
    assert net.placement_obstacle == "" and net.size == 2 and net.parameter_count > 1000 and "cpu:1" in repr(net)
    assert "not synchronized" in native.DataParallel("cpu:2", bn="local", **SMALL).placement_obstacle


def test_other_layouts_and_types_are_the_same_batch(batch):
    images, labels = batch
    expected = trained(batch)
    channels_last = numpy.ascontiguousarray(images.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    wide = numpy.zeros((4, 3, SIDE, 2 * SIDE), numpy.float32)
    wide[..., ::2] = images
    for other in (channels_last, wide[..., ::2], numpy.ascontiguousarray(images[::-1, :, ::-1])[::-1, :, ::-1]):
        assert same(trained((other, labels)), expected)
    for kind in (numpy.int64, numpy.int32, numpy.uint8, numpy.int16, numpy.uint64):
        assert same(trained((images, labels.astype(kind))), expected)
    assert same(trained((images, numpy.ascontiguousarray(labels.T).T)), expected)
    readonly = images.copy()
    readonly.flags.writeable = False
    assert same(trained((readonly, labels)), expected)
    assert images.tobytes() == readonly.tobytes()


def test_tensors_of_pytorch(batch):
    torch = pytest.importorskip("torch")
    images, labels = torch.from_numpy(batch[0].copy()), torch.from_numpy(batch[1].astype(numpy.int64))
    expected = trained(batch)
    assert same(trained((images, labels)), expected)
    assert same(trained((images.to(memory_format=torch.channels_last), labels)), expected)
    net = native.DataParallel("cpu:1", **SMALL)
    net.load_state_dict({name: torch.from_numpy(array) for name, array in expected.items()})
    assert same(net.state_dict(), expected)


COPIES = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy
from lockstep.native import DataParallel, Predictor

def peak():  # bytes that the process has held since the last call
    kilobytes = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
    open("/proc/self/clear_refs", "w").write("5")
    return 1024 * kilobytes

side = 1024
net = DataParallel("cpu:2", "unet", (2, 3, side, side), 2, model={"width": 1, "depth": 1})
images = numpy.random.default_rng(0).normal(size=(2, 3, side, side)).astype("float32")
labels = numpy.zeros((2, side, side), "uint16")
channels_last = numpy.ascontiguousarray(images.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
wide = numpy.zeros((2, 3, side, 2 * side), "float32")
def held(images, labels):
    for _ in range(2):  # the devices' own memory is there after the first
        peak()
        before = peak()
        net.train_step(images, labels)
        more = peak() - before
    return more
print(held(images, labels), held(channels_last, labels), held(wide[..., ::2], labels),
      held(images, labels.astype("int64")), images.nbytes, labels.nbytes)
"""


def test_what_is_not_copied():
    """The most memory that a step takes beside what is there: none for images and labels that are read where they lie."""
    if not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("the kernel does not reset what it says of peaks: /proc/self/clear_refs")
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", COPIES, sys.path[0]], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    c_order, channels_last, strided, wide_labels, images, labels = map(int, done.stdout.split())
    assert c_order < labels / 2 and channels_last < labels / 2
    assert strided > 0.9 * images and labels / 2 < wide_labels < 2 * labels


def test_another_thread_works_during_a_step(batch):
    images, labels = numpy.tile(batch[0], (1, 1, 4, 4)), numpy.tile(batch[1], (1, 4, 4))
    net = native.DataParallel("cpu:2", "unet", images.shape, CLASSES, model={"width": 8, "depth": 3})
    count, stop = [0], threading.Event()

    def work():
        while not stop.is_set():
            count[0] += 1
            time.sleep(0)
    interval = sys.getswitchinterval()
    thread = threading.Thread(target=work)
    try:
        sys.setswitchinterval(100)  # no thread is made to give up the lock: only who does so lets others work
        thread.start()
        before = count[0]
        net.train_step(images, labels)
        during = count[0] - before
    finally:
        stop.set()
        sys.setswitchinterval(interval)
        thread.join()
    assert during > 10


def test_ctrl_c_during_steps(batch):
    """The step under way ends, and nothing is half done."""
    whole = native.DataParallel("cpu:2", **SMALL)
    net = native.DataParallel("cpu:2", **SMALL)
    stop = threading.Event()

    def interrupt():
        while not stop.wait(0.02):
            os.kill(os.getpid(), signal.SIGINT)
    interrupted = 0
    thread = threading.Thread(target=interrupt)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        thread.start()
        while net.steps < 60 or interrupted < 3:
            try:
                net.train_step(*batch)
            except KeyboardInterrupt:
                interrupted += 1
    except KeyboardInterrupt:  # in the loop's own lines
        pass
    finally:
        while not stop.is_set() or thread.is_alive():
            try:
                stop.set()
                thread.join()
            except KeyboardInterrupt:
                pass
        signal.signal(signal.SIGINT, handler)
    for _ in range(net.steps):
        whole.train_step(*batch)
    net.train_step(*batch)
    whole.train_step(*batch)
    assert same(net.state_dict(), whole.state_dict())


def test_two_threads_are_told(batch):
    net = native.DataParallel("cpu:1", **SMALL)
    done, said = [], []

    def work():
        for _ in range(30):
            try:
                net.train_step(*batch)
                done.append(1)
            except lockstep.LockstepError as error:
                said.append(str(error))
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all("a DataParallel is used by one thread at a time" in text for text in said)
    assert net.steps == len(done) and len(done) + len(said) == 60


def in_a_forked_child(work):
    """What `work` raises there; it ends by a signal where it hangs."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            work()
            said = "nothing"
        except lockstep.LockstepError as error:
            said = str(error)
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        said = stream.read()
    assert os.waitpid(child, 0)[1] == 0
    return said


def test_a_forked_child_is_told_that_the_threads_are_elsewhere(batch):
    net = native.DataParallel("cpu:2", **SMALL)
    net.train_step(*batch)
    weights = net.state_dict()
    predictor = native.Predictor("unet", weights, CLASSES, model=MODEL)
    expected = (rf"this {{}} was made in process {os.getpid()}, and its threads are not in this forked child, process \d+: make one in the "
                r"child, or start children by")
    for name, work in (("DataParallel", lambda: net.train_step(*batch)), ("DataParallel", net.state_dict),
                       ("DataParallel", lambda: net.load_state_dict(weights)), ("Predictor", lambda: predictor.predict(batch[0]))):
        assert re.match(expected.format(name), in_a_forked_child(work))

    def drop():  # ends no thread of the parent
        nonlocal net, predictor
        net = predictor = None
        gc.collect()
    assert in_a_forked_child(drop) == "nothing"
    net.train_step(*batch)


def test_errors_of_a_step(batch):
    images, labels = batch
    net = native.DataParallel("cpu:2", **SMALL)
    before = net.state_dict()

    def refused(message, images=images, labels=labels, kind=lockstep.LockstepError, **more):
        with pytest.raises(kind, match=message) as caught:
            net.train_step(images, labels, **more)
        assert type(caught.value) is kind and net.steps == 0
    refused(r"images: expected float32 \[N, C, H, W\].*got float64 \[4, 3, 32, 32\].*astype", images.astype(float))
    refused(r"images: expected float32 \[N, C, H, W\] of one image or more, got float32 \[3, 32, 32\]", images[0])
    refused(r"images: expected \[N, 3, 32, 32\] with N up to 4.*got \[4, 32, 32, 3\]", images.transpose(0, 2, 3, 1))
    refused(r"images: expected an array of NumPy, or a tensor that DLPack can share, got .*list", images.tolist())
    refused(r"at most 4 samples.*got 8", numpy.concatenate([images, images]), numpy.concatenate([labels, labels]))
    refused(r"of one image or more, got float32 \[0, 3, 32, 32\]", images[:0], labels[:0])
    refused(r"labels: expected integers \[4, 32, 32\], got float32 \[4, 32, 32\]", labels=labels.astype(numpy.float32))
    refused(r"labels: expected integers \[4, 32, 32\], got int64 \[4, 1, 32, 32\]", labels=labels[:, None].astype(numpy.int64))
    refused(r"labels: expected an array of NumPy.*str", labels="labels")
    refused(r"expected classes from 0, and 255 \(ignore_index\).*got -100", labels=numpy.full((4, 32, 32), -100))
    refused(r"got 65536", labels=numpy.full((4, 32, 32), 65536))
    refused(r"a label is 3, but there are 3 classes; what does not count is 255", labels=numpy.full((4, 32, 32), 3))
    refused(r"a learning rate that is finite and not negative, got -1", lr=-1.0, kind=lockstep.ConfigError)
    refused(r"the loss of .*cpu:0.* is nan; the weights were not changed", images * numpy.float32("nan"),
            kind=lockstep.NonFiniteError)
    assert same(net.state_dict(), before)
    net.train_step(images, labels)
    assert net.steps == 1 and not same(net.state_dict(), before)


@pytest.mark.parametrize("wrong, message", [
    ({"devices": "gpu:2"}, "gpu:2"),
    ({"arch": "unte"}, "unte.*unet"),
    ({"input": (4, 3, 33, 32)}, "33"),
    ({"num_classes": 0}, "num_classes: expected an integer >= 1, got 0"),
    ({"bn": "synk"}, r"bn.mode: expected one of 'local', 'sync'.*got 'synk'"),
    ({"bn": {"mode": "sync", "epz": 1}}, "bn: there is no option 'epz' here; there are mode, .*eps"),
    ({"bn": {"eps": 0}}, "bn.eps: expected a number > 0, got 0"),
    ({"bn": {"mode": "sync", "sync_group": 3}}, "3"),
    ({"bn": 7}, "bn: expected a word for its mode or a dictionary of its options, got 7"),
    ({"optimizer": "sdg"}, "optimizer.type: expected one of 'sgd', 'adamw'.*got 'sdg'"),
    ({"optimizer": {"type": "sgd", "beta1": 0.9}}, "optimizer: there is no option 'beta1' here; there are type, lr, momentum"),
    ({"optimizer": {"lr": "0.1"}}, "optimizer.lr: expected a number >= 0, got '0.1'"),
    ({"optimizer": {"nesterov": 1}}, "optimizer.nesterov: expected True or False, got 1"),
    ({"losses": []}, "loss"),
    ({"losses": "mse"}, "losses.type: expected one of 'cross_entropy', 'dice', 'focal', 'ohem_cross_entropy', got 'mse'"),
    ({"losses": {"type": "dice", "output": "aux"}}, "aux"),
    ({"losses": {"weight": 0}}, "losses.weight: expected a number > 0, got 0"),
    ({"losses": {"class_weight": [1, -1, 1]}}, r"class_weight: expected a list, each a number >= 0, got \[1, -1, 1\]"),
    ({"model": {"width": 2.5}}, "model.width: expected an integer >= 1 and <= 4096, got 2.5"),
    ({"model": {"resnet_width": 8}}, "unet is without a ResNet; leave out resnet_width"),
    ({"arch": "resnet18", "model": {"depth": 2}}, "model.depth means nothing to resnet18; leave it out"),
    ({"model": {"backbone_weights": "a.pth"}}, "load_weights"),
    ({"accumulate": 0}, "expected 1 to 4 micro-batches of a batch of 4, got 0"),
    ({"stall_timeout": -1.0}, "stall_timeout must be at least 0")])
def test_errors_of_options(wrong, message):
    with pytest.raises(lockstep.ConfigError, match=message) as caught:
        native.DataParallel(**{"devices": "cpu:2", **SMALL, **wrong})
    assert caught.value.exit_code == 2 and isinstance(caught.value, lockstep.LockstepError)


def test_weights_that_do_not_fit(batch, tmp_path):
    weights = trained(batch)
    net = native.DataParallel("cpu:2", **{**SMALL, "seed": 4})
    before = net.state_dict()
    less = {name: array for name, array in weights.items() if name != "head.bias"}
    with pytest.raises(lockstep.DataError, match="head.bias"):
        net.load_state_dict(less)
    with pytest.raises(lockstep.DataError, match=r"head.bias: expected float32.*got uint32 \[3\]"):
        net.load_state_dict({**weights, "head.bias": numpy.zeros(3, numpy.uint32)})
    with pytest.raises(lockstep.LockstepError, match=r"head.bias: expected an array.*ndarray'>, whose elements, dtype\('>f4'\), it cannot"):
        net.load_state_dict({**weights, "head.bias": numpy.zeros(3, ">f4")})
    with pytest.raises(lockstep.DataError, match="expected names of tensors, got 3"):
        net.load_state_dict({3: weights["head.bias"]})
    assert same(net.state_dict(), before)
    summary = net.load_state_dict({**less, "other": numpy.zeros(1, numpy.float32)}, strict=False)
    assert summary.missing == ["head.bias"] and summary.unexpected == ["other"] and summary.loaded == len(less)
    net.load_state_dict(weights)
    assert same(net.state_dict(), weights)
    native.save_safetensors(tmp_path / "net.safetensors", weights)
    assert same(native.load_weights(tmp_path / "net.safetensors"), weights)
    strided = {name: numpy.repeat(array, 2, axis=0)[::2] if array.ndim else array for name, array in weights.items()}
    net.load_state_dict(strided)
    assert same(net.state_dict(), weights)
    torch = pytest.importorskip("torch")
    halves = torch.tensor([[1.5, -2.0], [3e38, 0.0]]).bfloat16()
    torch.save({"w": halves}, tmp_path / "bfloat16.pth")
    assert (native.load_weights(tmp_path / "bfloat16.pth")["w"] == halves.float().numpy()).all()
    with pytest.raises(lockstep.DataError, match="nowhere"):
        native.load_weights(tmp_path / "nowhere")
    with pytest.raises(lockstep.DataError, match="head.bias"):
        native.Predictor("unet", less, CLASSES, model=MODEL).predict(batch[0])


def test_a_training_that_goes_on(batch):
    """Weights and the number of steps are a training's whole state where the optimizer keeps none."""
    plain = {"type": "sgd", "momentum": 0.0}
    first = native.DataParallel("cpu:2", optimizer=plain, **SMALL)
    for _ in range(2):
        first.train_step(*batch)
    second = native.DataParallel("cpu:4", optimizer=plain, **{**SMALL, "seed": 9})
    second.load_state_dict(first.state_dict())
    second.steps = first.steps
    second.train_step(*batch, lr=0.02)
    first.train_step(*batch, lr=0.02)
    assert second.steps == 3 and same(first.state_dict(), second.state_dict())


def test_predictor_is_the_program(program, data, tmp_path):
    pillow = pytest.importorskip("PIL.Image")
    run = program_run(data, tmp_path / "run", bn={"mode": "sync", "eps": 1e-3})
    subprocess.run([program, "predict", tmp_path / "run", data[0] / "images/val", "-o", tmp_path / "predicted", "--probabilities",
                    "--no-overlay", "-d", "cpu:1"], check=True, capture_output=True)
    predictor = native.Predictor("unet", run.state_dict("last"), CLASSES, model=MODEL, bn={"eps": 1e-3})
    classes, logits = predictor.predict(data[1])
    assert classes.shape == (IMAGES, SIDE, SIDE) and logits.shape == (IMAGES, CLASSES, SIDE, SIDE)
    assert logits.dtype == numpy.float32 and (logits.argmax(axis=1) == classes).all()
    for i in range(IMAGES):
        assert (numpy.asarray(pillow.open(tmp_path / f"predicted/{i:02}.png")) == classes[i]).all()
        exponents = numpy.exp(logits[i].astype(float))
        probabilities = numpy.load(tmp_path / f"predicted/{i:02}.npy")
        assert abs(exponents / exponents.sum(axis=0) - probabilities).max() < 1e-6
    assert not (native.Predictor("unet", run.state_dict("last"), CLASSES, model=MODEL).predict(data[1])[1] == logits).all()
    channels_last = numpy.ascontiguousarray(data[1].transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    assert native.Predictor.from_run(tmp_path / "run").predict(data[1])[1].tobytes() == logits.tobytes()
    again = predictor.predict(channels_last)[1]
    assert again.tobytes() == logits.tobytes() and again is not logits
    assert (predictor.predict(data[1][:, :, :16])[0].shape) == (IMAGES, 16, SIDE)
    with pytest.raises(lockstep.ConfigError, match="device: expected one device.*cpu:2"):
        native.Predictor("unet", run.state_dict("last"), CLASSES, model=MODEL, device="cpu:2")


def test_predictor_by_own_statistics_is_an_instance_norm(data, tmp_path):
    weights = program_run(data, tmp_path / "run", bn={"mode": "local"}).state_dict("last")
    plain = native.Predictor("unet", weights, CLASSES, model=MODEL).predict(data[1])[1]
    own = native.Predictor("unet", weights, CLASSES, model=MODEL, own_statistics=True).predict(data[1])[1]
    affine = {name: tensor for name, tensor in weights.items() if "running_" not in name and "num_batches" not in name}
    instance = native.Predictor("unet", affine, CLASSES, model=MODEL, bn={"mode": "instance"}).predict(data[1])[1]
    assert own.tobytes() == instance.tobytes() and own.tobytes() != plain.tobytes()
    by_own = program_run(data, tmp_path / "own", bn={"mode": "local", "eval_stats": "own"})
    assert native.Predictor.from_run(by_own.path, "last").predict(data[1])[1].tobytes() == own.tobytes()


def from_run(folder):
    """The options that Predictor.from_run() gives."""
    return native._from_run(lambda *_, **options: options, folder)


def test_a_run_of_pretrained_weights_and_one_of_another_evaluation(data, tmp_path):
    first = program_run(data, tmp_path / "first")
    weights = str(first.path / "ckpt/last.safetensors")
    run = program_run(data, tmp_path / "run", model={**MODEL, "backbone_weights": weights, "weights_prefix": "encoder."})
    assert set(from_run(run.path)["model"]) == {"width", "depth"}
    assert native.Predictor.from_run(run).predict(data[1])[1].shape == (IMAGES, CLASSES, SIDE, SIDE)
    pooled = program_run(data, tmp_path / "pooled", bn={"mode": "local", "eval_stats": "pooled"})
    with pytest.raises(lockstep.ConfigError, match='evaluated by bn.eval_stats = "pooled".*by lockstep.export'):
        from_run(pooled)
    lockstep.export(pooled, tmp_path / "weights.safetensors", settings={"bn.eval_stats": "pooled"})
    native.Predictor("unet", native.load_weights(tmp_path / "weights.safetensors"), CLASSES, model=MODEL)


@pytest.mark.parametrize("tf32", [True, False])
def test_predictor_computes_as_run_tf32_says(tf32, data, tmp_path):
    run = program_run(data, tmp_path / "run", bn={"mode": "local"})
    config = run.path / "config.toml"
    config.write_text(config.read_text().replace("tf32 = true", f"tf32 = {str(tf32).lower()}"))
    assert from_run(run.path)["tf32"] is tf32
    with pytest.raises(TypeError, match="incompatible function arguments"):
        native.Predictor("unet", {}, CLASSES, tf32="no")


def test_a_classifier(batch):
    images, labels = batch[0], numpy.arange(4) % CLASSES
    options = {"arch": "resnet18", "input": images.shape, "num_classes": CLASSES,
               "model": {"resnet_width": 4, "small_images": True}, "bn": "sync"}
    net = native.DataParallel("cpu:2", **options)
    assert net.train_step(images, labels).loss > 0
    with pytest.raises(lockstep.LockstepError, match=r"labels: expected integers \[4\], got uint16 \[4, 32, 32\]"):
        net.train_step(*batch)
    classes, logits = native.Predictor("resnet18", net.state_dict(), CLASSES, model=options["model"]).predict(images)
    assert classes.shape == (4,) and logits.shape == (4, CLASSES) and (logits.argmax(axis=1) == classes).all()


def test_an_auxiliary_head(batch):
    images, labels = batch
    net = native.DataParallel("cpu:1", "fcn_resnet50", images.shape, CLASSES, model={"resnet_width": 4, "aux_head": True},
                              losses=["cross_entropy", {"type": "cross_entropy", "output": "aux", "weight": 0.5}])
    result = net.train_step(images, labels)
    assert len(result.losses) == 2 and result.loss == sum(result.losses) and result.grad_norm > 0


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_nothing_is_kept(batch):
    """References go, arrays outlive what made them, and a few hundred steps take no memory."""
    images, labels = (array.copy() for array in batch)
    net = native.DataParallel("cpu:2", **SMALL)
    references = sys.getrefcount(images), sys.getrefcount(labels)

    def steps(count):
        for _ in range(count):
            net.train_step(images, labels)
            net.state_dict()
            with pytest.raises(lockstep.LockstepError):
                net.train_step(images, labels[:1])
        gc.collect()
        return resident()
    before = steps(100)
    assert steps(300) - before < 2 << 20
    assert (sys.getrefcount(images), sys.getrefcount(labels)) == references
    weights = net.state_dict()
    kept = {name: array.copy() for name, array in weights.items()}
    del net
    gc.collect()
    assert same(weights, kept) and all(array.flags.writeable for array in weights.values())


def test_the_example(capsys):
    runpy.run_path(str(ROOT / "python/examples/own_loop.py"))
    said = capsys.readouterr().out
    losses = [float(loss) for loss in re.findall(r"loss ([0-9.]+)", said)]
    assert len(losses) == 6 and losses[-1] < losses[0] / 2 and int(re.search(r"(\d+)% of the pixels", said).group(1)) > 80


def test_the_stub_is_the_module(tmp_path):
    """python/lockstep/native.pyi is what nanobind's stubgen writes of the module. Where it differs, copy what this has made."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path[:1], *filter(None, [os.environ.get("PYTHONPATH")]),
                                                                str(ROOT / ".python_tools")])}
    version = subprocess.run([sys.executable, "-c", "import nanobind; print(nanobind.__version__)"], env=environment,
                             capture_output=True, text=True).stdout.strip()
    if version != "3.1.0":
        pytest.skip(f"the stub is that of nanobind 3.1.0, here is {version or 'none'}")
    subprocess.run([sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "lockstep.native", "-p", ROOT / "python/native/stub.txt",
                    "-o", tmp_path / "native.pyi"], env=environment, check=True)
    assert (tmp_path / "native.pyi").read_text() == (ROOT / "python/lockstep/native.pyi").read_text(encoding="utf-8")
