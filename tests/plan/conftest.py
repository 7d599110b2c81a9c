"""Plans of graphs written as text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import pytest

from lowbit.config.config import QuantConfig
from lowbit.config.specs import IntegerSpec, ProductBias
from lowbit.normalize.normalize import normalize
from lowbit.numerics.formats import IntegerFormat
from lowbit.planning import Plan, make_plan
from lowbit.targets import find_target


def config_for(target: str, **options: Any) -> QuantConfig:
    spec = IntegerSpec(format=IntegerFormat.INT8, power_of_two=find_target(target).power_of_two)
    fields = {"activation": spec, "weight": spec, "bias": ProductBias(), "head": "int8"}
    return QuantConfig(target=target, **{**fields, **options})


@pytest.fixture
def graph_of() -> Callable[[str, str, str], ir.Model]:
    """Return a normalized model from inputs, constants and nodes as ONNX text."""

    def build(inputs: str, body: str, constants: str = "", opset: int = 17) -> ir.Model:
        outputs, _, nodes = body.partition("{")
        text = (
            f'<ir_version: 10, opset_import: ["" : {opset}]>\n'
            f"g ({inputs}) => ({outputs.strip()})\n<{constants}>\n{{{nodes}"
            if constants
            else f'<ir_version: 10, opset_import: ["" : {opset}]>\n'
            f"g ({inputs}) => ({outputs.strip()})\n{{{nodes}"
        )
        return normalize(ir.from_onnx_text(text))

    return build


@pytest.fixture
def plan_of() -> Callable[..., Plan]:
    def plan(model: ir.Model, target: str = "onnxruntime", **options: Any) -> Plan:
        return make_plan(model, config_for(target, **options), find_target(target))

    return plan
