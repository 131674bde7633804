#!/usr/bin/env python3
"""Writes the inputs that tests/fuzz/corpus begins with: small files of every kind that Lockstep and others write.

    make_corpus.py PROGRAM    (PROGRAM: bin/lockstep of a build; needs python3-torch and python3-pil)

What else lies in tests/fuzz/corpus are inputs that a reader once failed on: their names say what was wrong.
"""
import io
import json
import os
import pathlib
import pickle
import struct
import subprocess
import sys
import tempfile
import zlib

import torch
from PIL import Image

ROOT = pathlib.Path(__file__).resolve().parents[2]
CORPUS = ROOT / "tests/fuzz/corpus"


def write(target, name, data):
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)


def safetensors(tensors, metadata=None):
    """tensors: name: (dtype, shape, bytes)."""
    header, data = {}, b""
    if metadata is not None:
        header["__metadata__"] = metadata
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def make_safetensors():
    write("safetensors", "one", safetensors({"w": ("F32", [2, 2], bytes(16))}))
    write("safetensors", "none", safetensors({}))
    write("safetensors", "metadata", safetensors({"a.weight": ("F16", [3], bytes(6)), "scalar": ("I64", [], bytes(8)),
                                                  "empty": ("BOOL", [0, 7], b"")}, {"format": "pt", "ü": "\U0001f600"}))
    types = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2, "BOOL": 1, "U8": 1,
             "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1}
    write("safetensors", "types", safetensors({name: (name, [2], bytes(2 * size)) for name, size in types.items()}))
    write("safetensors", "nested", with_metadata(safetensors({"w": ("U8", [1], b"1")}), b"[1]", b"[" * 3000 + b"]" * 3000))
    write("safetensors", "overlap", safetensors({"w": ("U8", [4], bytes(4))}).replace(b"[0, 4]", b"[1, 4]"))


def with_metadata(file, old, new):
    """A file of safetensors with another text in its header."""
    size = struct.unpack("<Q", file[:8])[0]
    header = file[8:8 + size].replace(old, new)
    return struct.pack("<Q", len(header)) + header + file[8 + size:]


def saved(value, **options):
    stream = io.BytesIO()
    torch.save(value, stream, **options)
    return stream.getvalue()


def make_pth():
    weights = {"conv.weight": torch.arange(6.).reshape(2, 3), "conv.bias": torch.zeros(2, dtype=torch.float16)}
    shared = {"a": weights["conv.weight"], "b": weights["conv.weight"].t(), "c": torch.tensor(3), "d": torch.zeros(0, 4)}
    checkpoint = {"state_dict": weights, "epoch": 3, "lr": 0.1, "name": "x", "big": 1 << 70, "list": [1, None, True, (2, 3, 4, 5)]}
    module = torch.nn.Sequential(torch.nn.Conv2d(1, 1, 1), torch.nn.BatchNorm2d(1))
    for name, value in {"weights": weights, "shared": shared, "checkpoint": checkpoint, "module": module.state_dict(),
                        "parameter": {"w": torch.nn.Parameter(torch.ones(2))}, "code": {"w": print}}.items():
        zipped = saved(value)
        write("pth", name, zipped)
        write("pth", name + "_legacy", saved(value, _use_new_zipfile_serialization=False))
        begin = zipped.index(b"data.pkl") + len(b"data.pkl")
        begin = zipped.index(b"\x80\x02", begin)
        size = len(pickle_of(zipped))
        write("pickle", name, zipped[begin:begin + size])
    write("pickle", "protocol_4", pickle.dumps({"w": 1}, protocol=4))


def pickle_of(archive):
    import zipfile
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        name = next(name for name in opened.namelist() if name.endswith("/data.pkl"))
        return opened.read(name)


def png(width, height, depth, color, rows, extra=b"", interlaced=0):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, interlaced)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + extra + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def make_png():
    palette = b"\x00\x00\x00\x06PLTE" + bytes(6) + struct.pack(">I", zlib.crc32(b"PLTE" + bytes(6)))
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
    for color, depths in {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}.items():
        for depth in depths:
            row = (5 * channels[color] * depth + 7) // 8
            write("png", f"color_{color}_depth_{depth}", png(5, 3, depth, color, (b"\x00" + bytes(row)) * 3, palette if color == 3 else b""))
    stream = io.BytesIO()
    Image.effect_noise((9, 7), 50).save(stream, "PNG", optimize=True)
    write("png", "noise", stream.getvalue())
    write("png", "interlaced", png(1, 1, 8, 0, b"\x00\x07", interlaced=1))
    write("png", "size_of_the_header_alone", png(16384, 16384, 8, 2, b"\x00" * 64))


def make_jpeg():
    noise = Image.effect_noise((20, 13), 60)
    for mode in ("L", "RGB", "CMYK"):
        for name, options in {"": {}, "_progressive": {"progressive": True}, "_444": {"subsampling": 0}}.items():
            stream = io.BytesIO()
            noise.convert(mode).save(stream, "JPEG", quality=30, **options)
            write("jpeg", mode + name, stream.getvalue())
    whole = (CORPUS / "jpeg/RGB").read_bytes()
    write("jpeg", "cut_off", whole[:-60])
    for name in ("RGB", "RGB_progressive"):
        data = bytearray((CORPUS / "jpeg" / name).read_bytes())
        frame = data.index(b"\xff\xc2" if "progressive" in name else b"\xff\xc0")
        data[frame + 5:frame + 9] = struct.pack(">HH", 16384, 16384)
        write("jpeg", name + "_size_of_the_header_alone", bytes(data))


def exif(order, orientation):
    entries = [(0x0100, 4, 7), (0x0112, 3, orientation)]
    block = struct.pack(order + "H", 42) + struct.pack(order + "I", 8) + struct.pack(order + "H", len(entries))
    for tag, kind, value in entries:
        block += struct.pack(order + "HHI", tag, kind, 1) + (struct.pack(order + "HH", value, 0) if kind == 3 else struct.pack(order + "I", value))
    return {"<": b"II", ">": b"MM"}[order] + block + bytes(4)


def make_exif():
    for order, name in (("<", "little_endian"), (">", "big_endian")):
        write("exif", name, exif(order, 6))
    segment = b"Exif\0\0" + exif(">", 3)
    write("exif", "jpeg", b"\xff\xd8\xff\xe0\0\x04ab\xff\xff\xe1" + struct.pack(">H", 2 + len(segment)) + segment + b"\xff\xda\0\x02")
    chunk = struct.pack(">I", len(exif("<", 8))) + b"eXIf" + exif("<", 8) + bytes(4)
    whole = png(1, 1, 8, 0, b"\x00\x07", chunk)
    write("exif", "png", whole)
    plain = png(1, 1, 8, 0, b"\x00\x07")
    write("exif", "png_behind_the_pixels", plain[:-12] + chunk + plain[-12:])
    write("png", "exif", whole)


def make_tiff():
    """Of several pages: gray and RGB, of 1, 8, 16 and 32 bits, by each compression that is at hand."""
    kinds = {"L": 0, "1": 1, "RGB": (1, 2, 3), "RGBA": (1, 2, 3, 4), "P": 1, "I;16": 300, "F": 1.5}
    for mode, value in kinds.items():
        image = Image.new(mode, (5, 3), value)
        for compression in ("raw", "tiff_lzw", "tiff_adobe_deflate", "packbits", "zstd", "lzma"):
            stream = io.BytesIO()
            try:
                image.save(stream, "TIFF", compression=compression)
            except (OSError, KeyError):
                continue
            write("tiff", f"{mode.replace(';', '_')}_{compression}", stream.getvalue())
    stream = io.BytesIO()
    Image.new("RGB", (16, 16), (1, 2, 3)).save(stream, "TIFF", compression="jpeg")
    write("tiff", "jpeg", stream.getvalue())
    stream = io.BytesIO()
    pages = [Image.new("L", (4, 4), i) for i in range(3)]
    pages[0].save(stream, "TIFF", save_all=True, append_images=pages[1:])
    write("tiff", "pages", stream.getvalue())
    write("tiff", "tiles", tiled_tiff())


def tiled_tiff():
    """A big-endian file of tiles of 16x16 in two planes of 16 bits, with GDAL's value of what is not there."""
    planes = b"".join(struct.pack(">256H", *range(i, 256 + i)) for i in (0, 1000))
    values = [(256, 4, [5]), (257, 4, [3]), (258, 3, [16, 16]), (259, 3, [1]), (262, 3, [1]), (277, 3, [2]), (284, 3, [2]),
              (322, 3, [16]), (323, 3, [16]), (324, 4, [8, 520]), (325, 4, [512, 512]), (42113, 2, list(b"7\0"))]
    extra, entries = b"", b""
    behind = 8 + len(planes) + 2 + 12 * len(values) + 4
    for tag, kind, numbers in values:
        data = b"".join(struct.pack({2: ">B", 3: ">H", 4: ">I"}[kind], number) for number in numbers)
        if len(data) > 4:
            place = struct.pack(">I", behind + len(extra))
            extra += data
        else:
            place = data.ljust(4, b"\0")
        entries += struct.pack(">HHI", tag, kind, len(numbers)) + place
    return b"MM\0*" + struct.pack(">I", 8 + len(planes)) + planes + struct.pack(">H", len(values)) + entries + bytes(4) + extra


def npy(descr, shape, data, fortran=False, version=1):
    text = f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(text)) + text + data


def make_npy():
    for name, size in (("<u2", 2), (">i4", 4), ("|u1", 1), ("|b1", 1), ("<f2", 2), ("<f4", 4), (">f8", 8), ("<i8", 8)):
        write("npy", "type_" + name[1:], npy(repr(name), (2, 3, 3), bytes(range(18)) * size))
    write("npy", "fortran", npy("'<u2'", (3, 2, 3), bytes(36), fortran=True, version=3))
    write("npy", "two_extents", npy("'|u1'", (2, 3), bytes(6), version=2))
    write("npy", "objects", npy("'|O'", (2, 3), bytes(48)))
    write("npy", "records", npy("[('a', '<u2')]", (2, 3), bytes(12)))
    write("npy", "shape_beyond_the_file", npy("'<f8'", (100000, 100000, 3), bytes(24)))


def make_lists():
    write("lists", "of_windows", b"\xef\xbb\xbfa.png b.png \r\nimages\\a.png\t\"b c.png\"\t\r\n")
    write("lists", "of_a_spreadsheet", b'"a.png";"b ""c"".png"\na.png,b c.png\n"a.png\n')
    write("lists", "utf_16", "a.png b c.png\n".encode("utf-16"))
    write("lists", "pairs", b"a.png b.png\r\n/data/set/a.png a.png\n\n")
    write("lists", "tabs", b"a.png\tb c.png\nx/../a.png\tb c.png\n")
    write("lists", "words", b"one\ntwo words\nthree of them\n")
    write("lists", "long", b"/".join([b"d"] * 200) + b"/a.png a.png\n")
    write("lists", "too_deep", b"/".join([b"d"] * 3000) + b"/a.png a.png\n")
    write("lists", "too_long_a_name", b"d" * 300 + b".png a.png\n")


CONFIG = """[run]
max_iters = 4
log_every = 1
checkpoint_every = 2
val_every = 2
[data]
layout = "streets"
size = [16, 16]
train_images = 4
val_images = 2
[batch]
global = 2
[model]
width = 4
depth = 1
"""


def make_config():
    for file in sorted((ROOT / "data/configs").glob("*.toml")):
        write("config", file.stem, file.read_bytes())
    write("config", "settings", CONFIG.encode() + b"\0bn.mode=sync\0optim.lr=1e-3\0run.max_iters=7\0data.size=[9,9]\0model.arch=unet")
    write("config", "types", b"a = 1979-05-27T07:32:00Z\n[data]\nsize = [1.5, {x = 1}]\n[[run]]\nname = '''\nx'''\n[optim]\nlr = inf\n")
    write("config", "empty", b"")


ENVIRONMENT = {"lockstep": "0.1.0", "cores": 2, "libraries": {"dnnl": "2.6"}, "choices": [{"problem": "p", "choice": "winograd8"}]}


def make_run(program):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "c.toml").write_text(CONFIG)
        subprocess.run([program, "train", folder / "c.toml", "-d", "cpu:2", "-o", folder / "run", "-s", "bn.mode=sync"], check=True,
                       env=dict(os.environ, LOCKSTEP_AUTOTUNE=""), stdout=subprocess.DEVNULL)
        run = folder / "run"
        scalars = (run / "scalars.json").read_bytes()
        events = b""
        for line in (run / "events.jsonl").read_text().splitlines():
            event = json.loads(line)
            if "environment" in event:
                event["environment"] = ENVIRONMENT
            if event["type"] != "rank":
                events += json.dumps(event, separators=(",", ":")).replace(str(folder), "runs").encode() + b"\n"
        environment = json.dumps(ENVIRONMENT).encode()
        choices = json.dumps({"version": 1, "choices": {"machine": {"problem": {"choice": "direct", "milliseconds": {"direct": 1.5}}}}})
        write("run_folder", "scalars", scalars)
        write("run_folder", "events", b"\0" + events)
        write("run_folder", "environment", b"\0\0" + environment)
        write("run_folder", "choices", b"\0\0\0" + choices.encode())
        write("run_folder", "all", scalars[:400] + b"\0" + events[:1500] + b'\0{"choices":[{"problem":"p","choice":"c"}]}\0' + choices.encode())
        write("checkpoint", "sync", (run / "ckpt/last.state.safetensors").read_bytes())
        write("run_folder", "types", b'{"mode":7,"step":"x"}\n[1]\n{"step":[]}\n\0{"type":1}\n{"type":"end","status":[]}\n\0{"choices":[1]}\0[]')
        state = (CORPUS / "checkpoint/sync").read_bytes()
        for name, count in {"replicas_below_zero": b"-1", "replicas_without_number": b"9" * 15}.items():
            write("checkpoint", name, with_metadata(state, b'"replicas":"2"', b'"replicas":"' + count + b'"'))
        write("config", "resolved", (run / "config.toml").read_bytes())


def make_window():
    """Sides less one, window sides less one, overlap in percent, divisor less one, blend, classes less one, and a long side."""
    for blend, name in enumerate(("crop", "gaussian", "flat")):
        write("window", name, bytes((30, 22, 15, 15, 50, 3, blend, 1, 0, 1, 28, 32, 3, 39)))
        write("window", name + "_narrow", bytes((39, 39, 3, 47, 90, 0, blend, 2, 7, 127, 127, 127, 7, 99)))


def main():
    make_safetensors()
    make_pth()
    make_png()
    make_jpeg()
    make_exif()
    make_tiff()
    make_npy()
    make_window()
    make_lists()
    make_config()
    make_run(pathlib.Path(sys.argv[1]).resolve())


if __name__ == "__main__":
    main()
