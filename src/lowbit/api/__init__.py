"""The public functions: quantize, compare, convert."""

from lowbit.api.compare import compare, examine
from lowbit.api.convert import convert
from lowbit.api.quantize import Result, quantize
from lowbit.pipeline.clock import Progress
from lowbit.pipeline.preparing import ModelSource, Prepared, model_inputs, prepare

__all__ = [
    "ModelSource",
    "Prepared",
    "Progress",
    "Result",
    "compare",
    "convert",
    "examine",
    "model_inputs",
    "prepare",
    "quantize",
]
