"""Parameters as values, and the constants they are made for."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir
import pytest

from lowbit.config.specs import AccumulatorBias
from lowbit.errors import ModelError
from lowbit.graph.editing import add_constant
from lowbit.planning.plan import BiasPlan
from lowbit.scales.parameters import Adjustment, Params, bias_values, constant_values


def _model(**constants: np.ndarray) -> ir.Model:
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 17})
    for name, data in constants.items():
        add_constant(graph, name, data)
    return ir.Model(graph, ir_version=8)


def _row(factor: float) -> BiasPlan:
    return BiasPlan(
        node="n",
        tensor="b",
        index=2,
        spec=AccumulatorBias(),
        input="x",
        weight="w",
        factor=factor,
        why="",
    )


def test_constants_come_as_single_precision() -> None:
    values = constant_values(_model(w=np.array([1.5, 2.0], np.float64)), "w")

    assert values.dtype == np.float32
    assert values.tolist() == [1.5, 2.0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_constants_no_scale_represents_are_named(bad: float) -> None:
    with pytest.raises(ModelError, match=r"constant 'w' holds NaN or infinite.*--exclude"):
        constant_values(_model(w=np.array([1.0, bad], np.float32)), "w")


def test_a_bias_is_what_the_node_adds() -> None:
    model = _model(b=np.array([1.0, -2.0], np.float32))

    assert bias_values(model, _row(0.5)).tolist() == [0.5, -1.0]
    assert bias_values(model, _row(0.0)).tolist() == [0.0, 0.0]


def test_a_bias_of_one_number_has_a_dimension() -> None:
    assert bias_values(_model(b=np.array(3.0, np.float32)), _row(1.0)).shape == (1,)


def test_a_constant_without_data_is_named() -> None:
    model = _model()
    model.graph.initializers["w"] = ir.Value(name="w")

    with pytest.raises(ValueError, match="the plan lists 'w' as a constant"):
        constant_values(model, "w")


def test_parameters_are_frozen_values() -> None:
    params = Params({}, {})

    with pytest.raises(dataclasses.FrozenInstanceError):
        params.adjustments = ()  # type: ignore[misc]
    assert params.bias_values == {}
    assert Params({}, {}).bias_values is not params.bias_values


def test_an_adjustment_may_have_an_unknown_cost() -> None:
    assert Adjustment("t", 1.0, 2.0, "why").cost_db is None
