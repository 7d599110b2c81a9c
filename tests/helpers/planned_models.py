"""Graphs written as ONNX text, normalized, and their plans."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from lowbit.config.config import QuantConfig
from lowbit.config.specs import AccumulatorBias, IntegerSpec
from lowbit.normalize.normalize import normalize
from lowbit.numerics.formats import IntegerFormat
from lowbit.planning import Plan, make_plan
from lowbit.targets import Target, find_target


def normalized_graph(inputs: str, body: str, constants: str = "", opset: int = 17) -> ir.Model:
    """Return a normalized model from inputs, ``outputs { nodes }`` and constants as ONNX text."""
    outputs, _, nodes = body.partition("{")
    stored = f"<{constants}>\n" if constants else ""
    text = (
        f'<ir_version: 10, opset_import: ["" : {opset}]>\n'
        f"g ({inputs}) => ({outputs.strip()})\n{stored}{{{nodes}"
    )
    return normalize(ir.from_onnx_text(text))


def int8_config(target: Target, **options: Any) -> QuantConfig:
    """Return a configuration in int8 that the target takes, with other options over it."""
    spec = IntegerSpec(format=IntegerFormat.INT8, power_of_two=target.power_of_two)
    fields = {"activation": spec, "weight": spec, "bias": AccumulatorBias(), "head": "int8"}
    return QuantConfig(target=target.name, **{**fields, **options})


def plan_for(model: ir.Model, target: Target | str = "onnxruntime", **options: Any) -> Plan:
    """Return the plan of a model in int8, or as the options say."""
    target = find_target(target) if isinstance(target, str) else target
    return make_plan(model, int8_config(target, **options), target)
