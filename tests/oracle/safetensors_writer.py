"""Writes safetensors files with nothing but numpy (https://github.com/huggingface/safetensors)."""
import json
import struct

_DTYPES = {"float32": "F32", "float64": "F64", "float16": "F16", "int64": "I64", "int32": "I32", "int16": "I16",
           "int8": "I8", "uint8": "U8", "bool": "BOOL"}


def write(path, tensors, metadata):
    """tensors: {name: numpy array}, or (type, array of as wide elements) for a type that numpy has not got;
    metadata: {name: JSON value}, each stored as its JSON text."""
    header = {"__metadata__": {name: json.dumps(value) for name, value in metadata.items()}}
    offset = 0
    typed = {name: value if isinstance(value, tuple) else (_DTYPES[str(value.dtype)], value)
             for name, value in sorted(tensors.items())}
    arrays = {name: array.copy(order="C") for name, (_, array) in typed.items()}
    for name, array in arrays.items():
        header[name] = {"dtype": typed[name][0], "shape": list(array.shape),
                        "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for array in arrays.values():
            file.write(array.tobytes())
