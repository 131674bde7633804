"""Writes safetensors files with nothing but numpy (https://github.com/huggingface/safetensors)."""
import json
import struct

_DTYPES = {"float32": "F32", "float64": "F64", "int64": "I64", "uint8": "U8"}


def write(path, tensors, metadata):
    """tensors: {name: numpy array}; metadata: {name: JSON value}, each stored as its JSON text."""
    header = {"__metadata__": {name: json.dumps(value) for name, value in metadata.items()}}
    offset = 0
    arrays = {name: array.copy(order="C") for name, array in sorted(tensors.items())}
    for name, array in arrays.items():
        header[name] = {"dtype": _DTYPES[str(array.dtype)], "shape": list(array.shape),
                        "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for array in arrays.values():
            file.write(array.tobytes())
