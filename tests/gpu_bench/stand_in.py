#!/usr/bin/env python3
"""Stands in for lockstep and for a python3 with PyTorch: prints the figures that STAND_IN (JSON) holds.

{"refused": "<setting>", "broken", "hangs": "<word of the command>", "ms": {"<device> <mode>": ms, "tf32": ms}, "torch_ms":
{"eager": ms, "graph": ms}, "speed", "copy": GB/s, "torch_copy": GB/s, "us": of a recorded exchange, "seconds": ours,
"torch_seconds": theirs}
"""
import json
import os
import sys
import time

words = sys.argv[1:]
says = json.loads(os.environ["STAND_IN"])


def cases(seconds, others):
    return {"cases": [{"dtype": "fp32", "channels": channels, "tensor_bytes": 1e6 * mb, "seconds": seconds,
                       "right": True, **others(1e6 * mb, channels)}
                      for channels in (16, 64) for mb in (4, 64)]}


if says.get("hangs") in words:
    time.sleep(60)
if says.get("broken") in words:
    sys.exit("it broke")
if f"run.{says.get('refused')}" in [word.partition("=")[0] for word in words]:
    print(f"run.{says['refused']}: not known", file=sys.stderr)
    sys.exit(2)
if "step" in words:
    mode = next(word for word in words if word.startswith("bn.mode=")).partition("=")[2]
    name = "tf32" if "run.tf32=true" in words else f"{words[words.index('-d') + 1]} {mode}"
    ms = says["ms"][name]
    print(json.dumps({"ms_per_step": {"median": ms}}))
elif "batch_norm" in words:
    print(json.dumps(cases({"median": says["seconds"]}, lambda _, channels: {
        "gb_per_s": says["speed"] + (channels == 16), "copy_gb_per_s": says["copy"]})))
elif "exchange" in words:
    issued = {"channels": 16, "microseconds": {"median": 40}}
    print(json.dumps({"cases": [{"ranks": 4, **issued, "captured_microseconds": {"median": says["us"]}},
                                {"ranks": 2, **issued, "captured_microseconds": {"median": 99}}]}))
elif words[0].endswith("torch_batch_norm.py"):
    print(json.dumps(cases(says["torch_seconds"], lambda size, _: {
        "copy_seconds": 2 * size / says["torch_copy"] / 1e9})))
elif words[0].endswith("torch_unet.py"):
    print(json.dumps({"steps_ms": [1000, says["torch_ms"]["graph" if "--graph" in words else "eager"], 0]}))
