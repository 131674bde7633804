"""Training and prediction by Lockstep's library, in this process, for a loop of one's own.

    from lockstep.native import DataParallel
    net = DataParallel("cpu:4", "unet", (8, 3, 64, 64), num_classes=3, bn="sync")
    print(net.train_step(images, labels).loss)

This needs the compiled module `lockstep_native`, which docs/do/python.md builds.
"""
import os
from pathlib import Path
from typing import Any, Union

from ._arguments import refused
from .errors import MissingPackageError
from .run import read_run

_NEEDED = ("avx2", "fma", "bmi2")  # of an x86-64 processor, before the module ends by an illegal instruction


def _check_processor(cpuinfo: str) -> None:
    """Raises MissingPackageError where /proc/cpuinfo says that the processor lacks what the module is compiled for."""
    words = set(cpuinfo.split())
    lacking = [feature for feature in _NEEDED if feature not in words]
    if lacking and "sse2" in words:  # it is an x86-64 processor, and one that tells
        raise MissingPackageError(f"lockstep.native needs a processor with AVX2, FMA and BMI2, and this one lacks "
                                  f"{', '.join(lacking)}; use another machine")


_cpuinfo = Path("/proc/cpuinfo")
if _cpuinfo.exists():
    _check_processor(_cpuinfo.read_text(encoding="utf-8", errors="replace"))
# How long threads look for others before they sleep. OpenMP reads it when it is loaded, now or by an earlier import.
_SPIN = "GOMP_SPINCOUNT"
_chosen = _SPIN in os.environ or "OMP_WAIT_POLICY" in os.environ
if not _chosen:
    os.environ[_SPIN] = "1000"
try:
    from lockstep_native import DataParallel, ImportSummary, Predictor, StepResult, load_weights, save_safetensors
except ModuleNotFoundError as error:
    if error.name != "lockstep_native":
        raise
    raise MissingPackageError("lockstep.native needs the compiled module lockstep_native, which this Python does not find; "
                              "docs/do/python.md says how it is built, and a wheel with it made") from None
finally:
    if not _chosen:
        del os.environ[_SPIN]

_OF_PREDICTION = ("mode", "groups", "eps", "eps_mode", "affine")  # keys of [bn]


def _from_run(kind: Any, run: Union[str, Path], which: str = "last", *, device: str = "cpu:1", threads: int = 0) -> Any:
    """Of the folder of a run, with the weights of its checkpoint `which`, evaluated by own statistics where its configuration says so.
    Images are to be normalised by its data.mean and data.std. Raises ConfigError for other evaluations."""
    found = read_run(run)
    model, bn = found.config["model"], found.config["bn"]
    if bn["eval_stats"] not in ("device0", "own"):
        raise refused(f"{found.path} is evaluated by bn.eval_stats = \"{bn['eval_stats']}\", and a Predictor by device0 or own: write "
                      f"weights by lockstep.export(run, \"weights.safetensors\", settings={{\"bn.eval_stats\": \"pooled\"}}), say, and give "
                      f"them to Predictor()")
    not_of_it = ("arch", "backbone_weights", "weights_prefix") + (() if model["arch"] == "unet" else ("width", "depth"))
    return kind(model["arch"], found.state_dict(which), found.config["data"]["num_classes"], device=device, threads=threads,
                model={key: value for key, value in model.items() if key not in not_of_it},
                bn={key: value for key, value in bn.items() if key in _OF_PREDICTION}, own_statistics=bn["eval_stats"] == "own",
                tf32=found.config["run"].get("tf32", True))


Predictor.from_run = classmethod(_from_run)

__all__ = ["DataParallel", "ImportSummary", "Predictor", "StepResult", "load_weights", "save_safetensors"]
