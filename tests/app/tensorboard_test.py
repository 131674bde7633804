#!/usr/bin/env python3
"""TensorBoard's own reader gives back every number of scalars.json, from a training that was resumed and from an export;
pictures of validation images, and what the HPARAMS tab shows.

    tensorboard_test.py LOCKSTEP

Says SKIPPED without the package tensorboard (python3 -m venv .board && .board/bin/pip install tensorboard).
"""
import json
import pathlib
import struct
import sys
import tempfile
import tomllib
import zlib

from small_run import CONFIG, SMALL, lockstep, overrides

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import api_pb2, metadata
except ImportError as error:
    print(f"SKIPPED: {sys.executable} has no TensorBoard ({error})")
    sys.exit(0)

IGNORED = (224, 224, 192)  # the colour of what has no class
KEYS = [*SMALL, "data.train_images=8", "data.val_images=2", "run.max_iters=10", "run.val_every=4", "run.checkpoint_every=6",
        "run.tensorboard=true"]


def wanted(run):
    points = {}
    for line in (run / "scalars.json").read_text().splitlines():
        numbers = json.loads(line)
        for name, value in numbers.items():
            if name not in ("step", "iter") and not isinstance(value, (str, type(None))):
                points.setdefault(f"{numbers['mode']}/{name}", []).append((numbers["step"], value))
    return points


def check(folder, run):
    reader = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    reader.Reload()
    points = wanted(run)
    if set(reader.Tags()["scalars"]) != set(points):
        sys.exit(f"{folder}: curves {reader.Tags()['scalars']}, expected {sorted(points)}")
    for tag, expected in points.items():
        read = [(event.step, event.value) for event in reader.Scalars(tag)]
        steps = [step for step, _ in read] == [step for step, _ in expected]
        if not steps or any(abs(a[1] - b[1]) > 1e-6 * max(1, abs(b[1])) for a, b in zip(read, expected)):
            sys.exit(f"{folder}: {tag} is {read}, expected {expected}")
    print(f"{folder.name}: {sum(map(len, points.values()))} numbers of {len(points)} curves are equal")


def rows_of(png):
    """The rows of an 8-bit RGB PNG, each a list of pixels."""
    at, data = 8, b""
    while at < len(png):
        length, kind = struct.unpack(">I4s", png[at:at + 8])
        if kind == b"IHDR":
            width, height, depth, color = struct.unpack(">IIBB", png[at + 8:at + 18])
            assert (depth, color) == (8, 2), (depth, color)
        if kind == b"IDAT":
            data += png[at + 8:at + 8 + length]
        at += 12 + length
    raw, stride = zlib.decompress(data), 1 + 3 * width
    rows, above = [], bytes(3 * width)
    for y in range(height):
        kind, row = raw[y * stride], bytearray(raw[y * stride + 1:(y + 1) * stride])
        for i, value in enumerate(row):
            left, up, corner = row[i - 3] if i >= 3 else 0, above[i], above[i - 3] if i >= 3 else 0
            nearest = min((left, up, corner), key=lambda v: abs(left + up - corner - v))
            row[i] = (value + (0, left, up, (left + up) // 2, nearest)[kind]) % 256
        rows.append([tuple(row[i:i + 3]) for i in range(0, len(row), 3)])
        above = bytes(row)
    return rows


def check_images(run, steps):
    reader = EventAccumulator(str(run / "tensorboard"), size_guidance={"images": 0})
    reader.Reload()
    tags = reader.Tags()["images"]
    assert len(tags) == 2 and all(tag.startswith("val/") for tag in tags), tags  # as many as data.val_images
    agreeing, labelled = {}, {}
    for tag in tags:
        events = reader.Images(tag)
        assert [event.step for event in events] == steps, (tag, events)
        for event in events:
            assert (event.height, event.width) == (32, 3 * 32 + 2 * 4), event
            rows = rows_of(event.encoded_image_string)
            assert all(row[32:36] == row[68:72] == [(255, 255, 255)] * 4 for row in rows), "the gaps are not white"
            for row in rows:
                for truth, predicted in zip(row[36:68], row[72:104]):
                    agreeing[event.step] = agreeing.get(event.step, 0) + (truth == predicted)
                    labelled[event.step] = labelled.get(event.step, 0) + (truth != IGNORED)
    # All of the validation split is shown: the share of labelled pixels that agree is what the evaluation has counted.
    for step, expected in wanted(run)["val/aAcc"]:
        share = 100 * agreeing[step] / labelled[step]
        assert abs(share - expected) < 1e-3, (step, share, expected)
    print(f"{len(tags)} validation images at the steps {steps} agree with aAcc")


def check_hparams(run):
    reader = EventAccumulator(str(run / "tensorboard"))
    reader.Reload()
    content = reader.SummaryMetadata
    start = metadata.parse_session_start_info_plugin_data(content("_hparams_/session_start_info").plugin_data.content)
    config = tomllib.loads((run / "config.toml").read_text())
    values = {name: getattr(value, value.WhichOneof("kind")) for name, value in start.hparams.items()}
    assert values["devices"] == "cpu:2" and values["bn.mode"] == config["bn"]["mode"], values
    assert values["optim.lr"] == config["optim"]["lr"] and values["bn.affine"] is True, values
    assert values["run.seed"] == 0 and not {"run.log_every", "run.tensorboard", "run.name"} & set(values), values
    experiment = metadata.parse_experiment_plugin_data(content("_hparams_/experiment").plugin_data.content)
    assert [info.name.tag for info in experiment.metric_infos] == ["val/mIoU", "val/loss", "train/loss"], experiment
    types = {info.name: info.type for info in experiment.hparam_infos}
    assert set(types) == set(values), set(types) ^ set(values)
    assert types["optim.lr"] == api_pb2.DATA_TYPE_FLOAT64 and types["bn.mode"] == api_pb2.DATA_TYPE_STRING
    assert types["bn.affine"] == api_pb2.DATA_TYPE_BOOL
    end = metadata.parse_session_end_info_plugin_data(content("_hparams_/session_end_info").plugin_data.content)
    assert end.status == api_pb2.STATUS_SUCCESS and end.end_time_secs >= start.start_time_secs > 1e9, end
    print(f"the HPARAMS tab has {len(values)} parameters and 3 metrics of a run that succeeded")


with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    run = folder / "run"
    lockstep("train", CONFIG, "-d", "cpu:2", "-o", run, *overrides(KEYS))
    for path in (run / "ckpt").iterdir():
        if not path.name.startswith("iter_6"):
            path.unlink()
    lockstep("train", run / "config.toml", "-d", "cpu:2", "-o", run, "--resume")
    check(run / "tensorboard", run)
    check_images(run, [4, 8, 10])
    check_hparams(run)
    lockstep("logs", "export", run, "--tensorboard", folder / "board")
    check(folder / "board" / "run", run)
