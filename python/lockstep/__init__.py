"""Lockstep from Python: read runs and comparisons, train and compare by the program, and `lockstep.torch` for networks of
PyTorch.

    import lockstep
    run = lockstep.read_run("runs/first")
    comparison = lockstep.read_comparison("runs/compare")
    comparison = lockstep.compare("data/configs/quickstart.toml", seeds=6, devices="cpu:4", output="runs/compare")

This needs NumPy. `lockstep.torch` needs PyTorch and is imported by its name. The program is needed by what trains, scores or
plans: train(), compare(), evaluate(), predict(), export(), diagnose(), plan(), check_data(), report().
"""
from ._version import version
from .commands import Answer, check_data, diagnose, evaluate, export, plan, predict, report
from .comparison import Best, Cell, Comparison, Curve, CurvePoint, Difference, Row, Spread, read_comparison
from .errors import (ConfigError, DataError, FormatError, InterruptedRunError, LockstepError, MissingPackageError,
                     NonFiniteError, ProgramError, ProgramFailure, ProgramNotFoundError, ReplicaError)
from .run import Run, read_run
from .table import Table
from .training import compare, train

__version__ = version()
__all__ = ["Answer", "Best", "Cell", "Comparison", "ConfigError", "Curve", "CurvePoint", "DataError", "Difference", "FormatError",
           "InterruptedRunError", "LockstepError", "MissingPackageError", "NonFiniteError", "ProgramError", "ProgramFailure",
           "ProgramNotFoundError", "ReplicaError", "Row", "Run", "Spread", "Table", "check_data", "compare", "diagnose", "evaluate",
           "export", "plan", "predict", "read_comparison", "read_run", "report", "train"]
