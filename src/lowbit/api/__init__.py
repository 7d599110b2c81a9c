"""The public functions: quantize, plan, compare, convert, inspect."""

from lowbit.api.compare import compare, examine
from lowbit.api.convert import convert
from lowbit.api.inspect import inspect
from lowbit.api.quantize import ModelSource, Result, plan, quantize

__all__ = ["ModelSource", "Result", "compare", "convert", "examine", "inspect", "plan", "quantize"]
