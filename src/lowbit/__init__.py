"""Quantize ONNX models after training, for AMD Ryzen AI NPUs and every target that reads Q/DQ.

    import lowbit
    result = lowbit.quantize("model.onnx", "quantized.onnx", data="images/", preset="XINT8")
    print(result.report.sqnr_db)

Everything heavy is imported when it is first used.
"""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType
from typing import TYPE_CHECKING, Any

from lowbit.errors import (
    CalibrationError,
    ConfigError,
    DataError,
    GoalMissedError,
    LowbitError,
    ModelError,
    OutputError,
    PlanError,
    RuinedError,
    VerificationError,
    WorkerError,
)
from lowbit.postponed import postpone
from lowbit.version import __version__

# onnx-ir imports both for sums of symbolic sizes, which nothing here asks for: a quarter of all imports.
for _name in ("sympy", "onnx_ir._symbolic_shapes"):
    postpone(_name)

if TYPE_CHECKING:
    from lowbit.api.compare import compare
    from lowbit.api.convert import convert
    from lowbit.api.inspect import inspect
    from lowbit.api.quantize import Result, plan, quantize
    from lowbit.api.sweep import sweep
    from lowbit.config import presets
    from lowbit.config.config import QuantConfig
    from lowbit.config.files import read_config
    from lowbit.config.specs import (
        AccumulatorBias,
        BfpSpec,
        DynamicSpec,
        FloatSpec,
        IntegerSpec,
        MxSpec,
        Rule,
        TensorOverride,
    )
    from lowbit.data import Preprocessing, Tokenization
    from lowbit.numerics.formats import IntegerFormat
    from lowbit.planning.plan import Plan, load_plan, save_plan
    from lowbit.report.values import Report
    from lowbit.search.goal import Goal

_LAZY = {
    "BfpSpec": "lowbit.config.specs",
    "DynamicSpec": "lowbit.config.specs",
    "Goal": "lowbit.search.goal",
    "FloatSpec": "lowbit.config.specs",
    "MxSpec": "lowbit.config.specs",
    "IntegerFormat": "lowbit.numerics.formats",
    "Plan": "lowbit.planning.plan",
    "Preprocessing": "lowbit.data",
    "AccumulatorBias": "lowbit.config.specs",
    "QuantConfig": "lowbit.config.config",
    "Report": "lowbit.report.values",
    "Result": "lowbit.api.quantize",
    "Rule": "lowbit.config.specs",
    "TensorOverride": "lowbit.config.specs",
    "Tokenization": "lowbit.data",
    "IntegerSpec": "lowbit.config.specs",
    "convert": "lowbit.api.convert",
    "compare": "lowbit.api.compare",
    "inspect": "lowbit.api.inspect",
    "load_plan": "lowbit.planning.plan",
    "plan": "lowbit.api.quantize",
    "quantize": "lowbit.api.quantize",
    "read_config": "lowbit.config.files",
    "save_plan": "lowbit.planning.plan",
    "sweep": "lowbit.api.sweep",
}

__all__ = [
    "AccumulatorBias",
    "BfpSpec",
    "CalibrationError",
    "ConfigError",
    "DataError",
    "DynamicSpec",
    "FloatSpec",
    "Goal",
    "GoalMissedError",
    "IntegerFormat",
    "IntegerSpec",
    "LowbitError",
    "ModelError",
    "MxSpec",
    "OutputError",
    "Plan",
    "PlanError",
    "Preprocessing",
    "QuantConfig",
    "Report",
    "Result",
    "RuinedError",
    "Rule",
    "TensorOverride",
    "Tokenization",
    "VerificationError",
    "WorkerError",
    "__version__",
    "compare",
    "convert",
    "inspect",
    "load_plan",
    "plan",
    "presets",
    "quantize",
    "read_config",
    "save_plan",
    "sweep",
]


def __getattr__(name: str) -> Any:
    if name == "presets":
        return importlib.import_module("lowbit.config.presets")
    if name in _LAZY:
        return getattr(_imported(_LAZY[name]), name)
    # Packages are reachable after ``import lowbit`` alone, as the documentation prints them.
    if not name.startswith("_") and importlib.util.find_spec(f"lowbit.{name}") is not None:
        return importlib.import_module(f"lowbit.{name}")
    raise AttributeError(f"module 'lowbit' has no attribute {name!r}")


def _imported(name: str) -> ModuleType:
    """Import a module and all that it needs. Nothing of that is garbage, so none is looked for: a sixth of the time."""
    from lowbit.graph.memory import garbage_collection_paused

    with garbage_collection_paused():
        return importlib.import_module(name)


def __dir__() -> list[str]:
    return sorted(__all__)
