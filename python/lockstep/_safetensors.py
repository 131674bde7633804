"""The safetensors format: eight bytes of length, a JSON header, the tensors' bytes (github.com/huggingface/safetensors)."""
import json
import struct
from pathlib import Path
from typing import Any, Dict, Tuple

import numpy as np

from .errors import FormatError
from .table import Array

_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U64": "<u8",
           "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?"}
_MOST_HEADER = 100_000_000  # the format's own limit


def read_safetensors(file: Path) -> Tuple[Dict[str, Array], Dict[str, str]]:
    """The tensors of a file by name, in order of their names, and its metadata. Arrays are copies, and may be written to.

    Raises FormatError for a file that is missing, damaged, or has an element type that NumPy has not (BF16).
    """
    try:
        data = file.read_bytes()
    except OSError as error:
        raise FormatError(f"{file}: cannot be read: {error.strerror}") from error
    if len(data) < 8:
        raise FormatError(f"{file}: expected a safetensors file, got {len(data)} bytes; the file is cut off")
    (length,) = struct.unpack("<Q", data[:8])
    if length > min(len(data) - 8, _MOST_HEADER):
        raise FormatError(f"{file}: its header is said to have {length} bytes, of {len(data)} in all; it is cut off, or "
                          f"no safetensors file")
    try:
        header = json.loads(data[8:8 + length])
        metadata = header.pop("__metadata__", {})
        tensors = {name: _tensor(file, name, header[name], memoryview(data)[8 + length:]) for name in sorted(header)}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"{file}: its header is no safetensors header: {error}") from error
    return tensors, metadata


def _tensor(file: Path, name: str, entry: Dict[str, Any], data: memoryview) -> Array:
    if entry["dtype"] not in _DTYPES:
        raise FormatError(f"{file}: {name} has elements {entry['dtype']}, which NumPy has not; known are "
                          f"{', '.join(_DTYPES)}. The package safetensors reads it with PyTorch")
    begin, end = entry["data_offsets"]
    dtype, shape = np.dtype(_DTYPES[entry["dtype"]]), tuple(entry["shape"])
    wanted = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    if not 0 <= begin <= end <= len(data) or end - begin != wanted:
        raise FormatError(f"{file}: {name} of shape {list(shape)} takes {wanted} bytes, and stands at {begin} to {end} of "
                          f"{len(data)}; the file is cut off or damaged")
    array: Array = np.frombuffer(data[begin:end], dtype=dtype).reshape(shape).copy()
    return array
