"""Reads safetensors files with nothing but numpy (https://github.com/huggingface/safetensors)."""
import json
import struct

import numpy

_DTYPES = {"F32": numpy.float32, "F64": numpy.float64, "I64": numpy.int64, "U8": numpy.uint8}


def read(path):
    """{name: numpy array}"""
    data = open(path, "rb").read()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    tensors = {}
    for name, about in header.items():
        if name != "__metadata__":
            begin, end = about["data_offsets"]
            array = numpy.frombuffer(data[8 + size + begin:8 + size + end], _DTYPES[about["dtype"]])
            tensors[name] = array.reshape(about["shape"])
    return tensors
