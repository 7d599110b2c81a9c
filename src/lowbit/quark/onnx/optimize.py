"""The older home of graph optimization, which every run begins with."""

from __future__ import annotations

from typing import Any

import onnx

from lowbit.graph import io
from lowbit.normalize.normalize import normalize
from lowbit.quark.errors import say

__all__ = ["optimize"]


def optimize(model: onnx.ModelProto, *args: Any, **options: Any) -> onnx.ModelProto:
    """Return the model in lowbit's normal form: it computes the same with fewer nodes."""
    if args or options:
        say("optimize: the normal form is one and the same; further arguments have no effect")
    return io.to_proto(normalize(io.load(model)))
