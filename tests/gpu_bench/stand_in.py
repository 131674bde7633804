#!/usr/bin/env python3
"""Stands in for lockstep, for cudnn_batch_norm, for nvidia-smi and for a python3 with PyTorch: prints the figures that STAND_IN (JSON) holds.

{"refused": "<setting>", "broken", "hangs": "<word of the command>", "ms": {"<device> <mode>": ms, "tf32": ms}, "torch_ms":
{"eager": ms, "graph": ms; "compile", "tf32", "amp", "processes": ms where it is not eager's}, "version": of PyTorch, "speed", "copy": GB/s, "torch_copy": GB/s, "us": of a recorded exchange, "seconds": ours,
"torch_seconds": theirs, "cudnn": {"<operation> <type>":
seconds, or why cuDNN does not take it}, "gpus": how many are here, "wrong": an operation of cuDNN's, "memory": [MiB that are taken, during a short measurement]}
"""
import json
import os
import pathlib
import sys
import time

words = [word for word in sys.argv[1:] if word != "-B"]
says = json.loads(os.environ["STAND_IN"])


def cases(seconds, others):
    return {"cases": [{"dtype": "fp32", "channels": channels, "tensor_bytes": 1e6 * mb, "seconds": seconds,
                       "right": True, "ratio": 0.9, "residual": {"seconds": {"median": 1.5 * says["seconds"]}}, **others(1e6 * mb, channels)}
                      for channels in (16, 64) for mb in (4, 64)]}


def cudnn_case(operation, dtype, channels, mb):
    found = says["cudnn"].get(f"{operation} {dtype}", f"{dtype} is not for {operation}")
    figures = {"not_supported": found} if isinstance(found, str) else {
        "seconds": {"median": found}, "right": operation != says.get("wrong")}
    return {"operation": operation, "dtype": dtype, "channels": channels, "tensor_bytes": 1e6 * mb, **figures}


def cudnn_report(gpus):
    if gpus > says["gpus"]:
        return {"gpus": gpus, "skipped": f"it takes {gpus} GPUs, and {says['gpus']} is here"}
    operations = ["batch_norm_relu", "batch_norm_add_relu"] if gpus == 1 else ["group_batch_norm"]
    return {"gpus": gpus, "cases": [cudnn_case(operation, "fp32", channels, 64) for operation in operations
                                    for channels in (16, 64)]}


def wait_for(path):
    """At most 20 s."""
    for _ in range(2000):
        if path.exists():
            return
        time.sleep(0.01)


running, asked = (pathlib.Path(__file__).with_name(name) for name in ("running", "asked"))
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
    if "memory" in says and words[words.index("--iters") + 1] == "3":  # until somebody has asked for it
        running.touch()
        wait_for(asked)
        running.unlink()
        asked.unlink(missing_ok=True)
    print(json.dumps({"ms_per_step": {"median": ms}, "peak_memory_bytes": 1e8, "ratio": {"median": 1.02}}))
elif "--query-gpu=memory.used" in words:
    if running.exists():
        print(says["memory"][1])
        asked.touch()
    else:
        print(says.get("memory", [0])[0])
elif "--gpus" in words:
    print(json.dumps(cudnn_report(int(words[words.index("--gpus") + 1]))))
elif words == ["--version"]:
    print("lockstep 1.2.3")
elif words[0] == "-c":
    print(says.get("version", ""))
elif "layers" in words:
    print(json.dumps({"ms_forward": {"median": 5}, "ms_per_step": {"median": 6}}))
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
    if "--sync-batch-norm" in words:
        sys.exit("a first line\nno such layer here")
    kinds = [kind for kind in ("graph", "compile", "tf32", "amp", "processes") if f"--{kind}" in words and kind in says["torch_ms"]]
    ms = says["torch_ms"][kinds[0] if kinds else "eager"]
    print(json.dumps({"steps_ms": [1000, ms, 0], "forward_ms": [ms / 2], "peak_rss_bytes": 4e8,
                      "peak_device_bytes": 7e9, "taken_device_bytes": 8e9}))
