#!/usr/bin/env python3
"""Writes files of torch.save, what is in them, and some that must be refused, for the tests of load_pth.

    make_pth.py FOLDER

FOLDER/pth/NAME.pth are the files; FOLDER/pth.safetensors says what they hold: `NAME/TENSOR` for each tensor, and in its
metadata the names of the `files` and for those that are `refused` what the complaint must say.
"""
import argparse
import collections
import datetime
import decimal
import enum
import fractions
import functools
import os
import pathlib
import random
import re
import sys
import uuid
import zipfile

import numpy
import torch

import safetensors_writer


class Refused:
    """Pickles as a call of os.system."""

    def __reduce__(self):
        return os.system, ("touch executed_by_a_pickle",)


def network():
    """As torchvision's begin: convolution, BatchNorm, and a head."""
    layers = [("conv1", torch.nn.Conv2d(3, 8, 3, bias=False)), ("bn1", torch.nn.BatchNorm2d(8)),
              ("fc", torch.nn.Linear(8, 5))]
    return torch.nn.Sequential(collections.OrderedDict(layers))


def of_every_type():
    values = torch.tensor([[0.0, 1.0, -2.5], [3.25, 100.0, 7.0]])
    types = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
             torch.int8, torch.uint8, torch.bool]
    tensors = {str(dtype).removeprefix("torch."): values.abs().to(dtype) for dtype in types}
    tensors["negative"] = values.half()
    tensors["scalar"] = torch.tensor(41)
    tensors["empty"] = torch.zeros(0, 4)
    tensors["extremes"] = torch.tensor([float("inf"), float("nan"), 6e-8, 65504.0]).half()
    return tensors


def views():
    whole = torch.arange(120.0).reshape(2, 3, 4, 5)
    return {"whole": whole,
            "transposed": whole.permute(3, 1, 0, 2),
            "part": whole[1:, 1:3, ::2, 1::3],
            "last": whole[1, 2, 3, 4],
            "expanded": whole[:, :1, :1, :1].expand(2, 3, 4, 5),
            "channels_last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
            "tied": whole.view(-1)[7:17],
            "row_of_one": whole[:1].transpose(0, 1)}


def checkpoint(key):
    model = network()
    optimizer = torch.optim.Adam(model.parameters())
    sum(parameter.sum() for parameter in model.parameters()).backward()
    optimizer.step()
    return {"epoch": 3, "arch": "resnet", "best": numpy.float64(0.5), "args": argparse.Namespace(lr=0.1, gpus=[0, 1]),
            "losses": [1.5, 2.5], "curves": collections.defaultdict(list, train=[0.5]), "seen": {1, 2},
            "device": torch.device("cpu"), "beside": beside(), "optimizer": optimizer.state_dict(), key: model.state_dict()}, key


class Outer:
    class Mode(enum.Enum):
        TRAIN = 1


def beside():
    """What no table of classes would have."""
    folder = pathlib.Path("runs")
    layers = [functools.partial(torch.nn.BatchNorm2d, eps=1e-3), network(), network().forward, torch.nn.Conv2d, type(None)]
    return [..., slice(1, None), collections.deque([1, 2], 5), frozenset([3]), datetime.datetime(2024, 5, 6), decimal.Decimal("0.1"),
            datetime.timedelta(3), uuid.UUID(int=7), folder, re.compile("a+"), Outer.Mode.TRAIN, range(3), 1j, b"bytes",
            bytearray(b"more"), fractions.Fraction(1, 3), random.getstate(), numpy.random.get_state(), numpy.arange(3.0),
            torch.get_rng_state(), torch.float16, torch.zeros(3, 3).to_sparse(), *layers]


def parameters():
    return collections.OrderedDict((name, value) for name, value in network().named_parameters())


def long_names():
    """More than 256 values in the memo, and integers of every width."""
    state = {f"layer.{i}.{'x' * (i % 300)}": torch.full((1,), float(i)) for i in range(700)}
    return {"state_dict": state, "integers": [255, 65535, -1, 2 ** 31 - 1, 2 ** 40, -2 ** 40, 2 ** 100]}, "state_dict"


FILES = {
    "types": of_every_type,
    "views": views,
    "network": lambda: network().state_dict(),
    "half": lambda: network().half().state_dict(),
    "data_parallel": lambda: torch.nn.DataParallel(network()).state_dict(),
    "parameters": parameters,
    "state_dict": lambda: checkpoint("state_dict"),
    "model": lambda: checkpoint("model"),
    "model_state_dict": lambda: checkpoint("model_state_dict"),
    "long_names": long_names,
}

REFUSED = {
    "system": (lambda: {"weight": torch.zeros(2), "x": Refused()}, "names posix.system"),
    "module": (network, "holds an object of torch.nn.modules.container.Sequential"),
    "sparse": (lambda: {"x": torch.zeros(3, 3).to_sparse()}, "_rebuild_sparse_tensor"),
    "tensor": (lambda: torch.zeros(3), "holds a tensor"),
    "list": (lambda: [torch.zeros(3)], "holds a list"),
    "nested": (lambda: {"generator": {"x": torch.zeros(3)}, "epoch": 2}, "a dict of [generator, epoch]"),
    "module_beside": (lambda: {"epoch": 3, "model": network()}, "[epoch, model (an object of torch.nn.modules.container.Sequential)]"),
    "two": (lambda: {"x": torch.zeros(3), "y": {"z": torch.zeros(3)}}, "expected a tensor under y"),
    "key": (lambda: {"x": torch.zeros(3), 7: torch.zeros(3)}, "a name in the state dict is an int"),
}


def to_array(tensor):
    tensor = tensor.detach().contiguous()
    if tensor.dtype == torch.bfloat16:
        return "BF16", tensor.view(torch.int16).numpy()
    return tensor.numpy()


def save(value, path, legacy):
    if legacy:
        torch.save(value, path, _use_new_zipfile_serialization=False)
    else:
        torch.save(value, path)


def make_files(folder, tensors):
    names = []
    for name, make_value in FILES.items():
        value = make_value()
        value, key = value if isinstance(value, tuple) else (value, None)
        for legacy in (False, True):
            file = name + ("_legacy" if legacy else "")
            save(value, folder / f"{file}.pth", legacy)
            names.append(file)
            for tensor_name, tensor in (value[key] if key else value).items():
                tensors[f"{file}/{tensor_name}"] = to_array(tensor)
    return names


def make_refused(folder):
    complaints = {}
    for name, (make_value, complaint) in REFUSED.items():
        for legacy in (False, True):
            file = f"refused_{name}" + ("_legacy" if legacy else "")
            save(make_value(), folder / f"{file}.pth", legacy)
            complaints[file] = complaint
    torch.save({"x": torch.zeros(2)}, folder / "refused_protocol.pth", pickle_protocol=4)
    complaints["refused_protocol"] = "pickle of protocol 4"
    torch.jit.save(torch.jit.script(network()), str(folder / "refused_script.pth"))
    complaints["refused_script"] = "TorchScript"
    pack(folder / "network.pth", folder / "refused_deflated.pth", zipfile.ZIP_DEFLATED)
    complaints["refused_deflated"] = "is compressed (method 8)"
    return complaints


def pack(source, target, method):
    """The archive as a common zip program writes it."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", method) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))


def make(folder):
    (folder / "pth").mkdir(exist_ok=True)
    tensors = {}
    names = make_files(folder / "pth", tensors)
    pack(folder / "pth/network.pth", folder / "pth/repacked.pth", zipfile.ZIP_STORED)
    names.append("repacked")
    tensors.update({f"repacked/{name.removeprefix('network/')}": array
                    for name, array in list(tensors.items()) if name.startswith("network/")})
    safetensors_writer.write(folder / "pth.safetensors", tensors,
                             {"torch": torch.__version__, "files": names, "refused": make_refused(folder / "pth")})


if __name__ == "__main__":
    torch.manual_seed(20)
    pathlib.Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    make(pathlib.Path(sys.argv[1]))
