"""The order of the stages: the only package that knows all of them."""

from lowbit.pipeline.clock import Progress
from lowbit.pipeline.converting import convert
from lowbit.pipeline.preparing import ModelSource, Prepared, model_inputs, prepare
from lowbit.pipeline.quantizing import Result, quantize

__all__ = [
    "ModelSource",
    "Prepared",
    "Progress",
    "Result",
    "convert",
    "model_inputs",
    "prepare",
    "quantize",
]
