from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import onnx_ir as ir
import pytest

from lowbit.config.config import QuantConfig
from lowbit.config.specs import IntegerSpec, ProductBias, Rule, TensorOverride
from lowbit.errors import ConfigError, PlanError
from lowbit.numerics.formats import IntegerFormat
from lowbit.planning import make_plan
from lowbit.targets import OperatorFormats, Target, find_target

_INT16 = IntegerSpec(format=IntegerFormat.INT16)


@pytest.fixture
def small(graph_of: Callable) -> ir.Model:
    return graph_of(
        "float[1,2,4,4] x",
        """float[1,2,4,4] y {
            c = Conv <kernel_shape=[1,1]> (x, w, b)
            r = Relu (c)
            y = ConvTranspose <kernel_shape=[1,1], group=2> (r, v, b)
        }""",
        "float[2,2,1,1] w = {1.0, 2.0, 3.0, 4.0}, float[2,1,1,1] v = {1.0, 2.0}, "
        "float[2] b = {0.1, 0.2}",
    )


def test_tensors_come_in_graph_order_with_reasons(small: ir.Model, plan_of: Callable) -> None:
    plan = plan_of(small)

    assert [t.name for t in plan.tensors] == ["x", "r", "y", "w", "v"]
    assert all(t.why for t in plan.tensors)


def test_biases_know_the_scales_they_are_tied_to(small: ir.Model, plan_of: Callable) -> None:
    first, second = plan_of(small).biases

    assert (first.input, first.weight, first.group) == ("x", "w", 1)
    assert (second.input, second.weight, second.group) == ("r", "v", 2)
    assert first.tensor == second.tensor == "b"


def test_a_product_bias_needs_both_its_scales(small: ir.Model, plan_of: Callable) -> None:
    keep_float = TensorOverride(tensor="x", keep="float")

    plan = plan_of(small, tensors=(keep_float,))

    assert [row.input for row in plan.biases] == ["r"]
    assert "x" not in plan.by_name()


def test_a_bias_with_its_own_scale_needs_neither(small: ir.Model, plan_of: Callable) -> None:
    keep_float = TensorOverride(tensor="x", keep="float")

    plan = plan_of(small, tensors=(keep_float,), bias=IntegerSpec(format=IntegerFormat.INT8))

    assert len(plan.biases) == 2


def test_no_bias_spec_leaves_biases_in_float(small: ir.Model, plan_of: Callable) -> None:
    assert plan_of(small, bias=None).biases == ()


def test_gemm_biases_carry_beta(graph_of: Callable, plan_of: Callable) -> None:
    model = graph_of(
        "float[1,2] x",
        "float[1,2] y { y = Gemm <beta = 0.5> (x, w, b) }",
        "float[2,2] w = {1.0, 2.0, 3.0, 4.0}, float[2] b = {0.1, 0.2}",
    )

    row = plan_of(model).biases[0]

    assert (row.factor, row.channel_axis) == (0.5, -1)


def test_overrides_by_tensor_name(small: ir.Model, plan_of: Callable) -> None:
    overrides = (
        TensorOverride(tensor="r", spec=_INT16),
        TensorOverride(tensor="y", range=(-3.0, 3.0)),
    )

    tensors = plan_of(small, tensors=overrides).by_name()

    assert tensors["r"].spec == _INT16
    assert tensors["y"].range == (-3.0, 3.0)


def test_an_unknown_tensor_in_an_override_is_an_error(small: ir.Model, plan_of: Callable) -> None:
    with pytest.raises(PlanError, match="no quantized tensor is called 'cc'"):
        plan_of(small, tensors=(TensorOverride(tensor="cc", keep="float"),))


def test_an_optional_override_is_passed_over(small: ir.Model, plan_of: Callable) -> None:
    overrides = (TensorOverride(tensor="c", keep="float", optional=True),)

    assert plan_of(small, tensors=overrides) == plan_of(small)


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        ("ryzen-ai-cnn", {"activation": _INT16}, "takes activations as int8, uint8, not int16"),
        (
            "ryzen-ai-cnn",
            {"weight": IntegerSpec(format=IntegerFormat.INT8)},
            "needs power-of-two scales for weights",
        ),
        (
            "ryzen-ai-cnn",
            {"weight": IntegerSpec(format=IntegerFormat.INT8, power_of_two=True, per_channel=True)},
            "no per-channel scales",
        ),
        ("ryzen-ai", {"weight": IntegerSpec(format=IntegerFormat.INT4)}, "takes weights as"),
    ],
)
def test_what_a_target_cannot_do_is_refused(
    small: ir.Model, plan_of: Callable, target: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_of(small, target, **options)


def _with_formats(*formats: OperatorFormats) -> Target:
    return msgspec.structs.replace(find_target("onnxruntime"), name="toy", formats=formats)


def test_an_operator_without_the_format_stays_in_float_and_says_why(small: ir.Model) -> None:
    target = _with_formats(
        OperatorFormats(
            operators=("ConvTranspose",), activation=(IntegerFormat.INT16, IntegerFormat.UINT16)
        )
    )
    config = QuantConfig(
        activation=IntegerSpec(format=IntegerFormat.INT8),
        weight=IntegerSpec(format=IntegerFormat.INT8),
    )

    plan = make_plan(small, config, target)
    wide = make_plan(
        small,
        msgspec.structs.replace(config, rules=(Rule(op_type="ConvTranspose", activation=_INT16),)),
        target,
    )

    assert [(n.op_type, n.why) for n in plan.float_nodes] == [
        ("ConvTranspose", "toy takes ConvTranspose in int16 or uint16, not int8")
    ]
    assert "v" not in plan.by_name()
    assert wide.by_name()["y"].spec.format is IntegerFormat.INT16
    assert not wide.float_nodes


def test_the_last_entry_of_an_operators_formats_holds() -> None:
    target = _with_formats(
        OperatorFormats(operators=("Conv", "Gemm"), weight=(IntegerFormat.INT16,)),
        OperatorFormats(operators=("Conv",), weight=(IntegerFormat.INT4, IntegerFormat.INT8)),
    )

    assert target.formats_of("Conv")[1] == (IntegerFormat.INT4, IntegerFormat.INT8)
    assert target.formats_of("Gemm") == (target.activation_formats, (IntegerFormat.INT16,))
    assert target.formats_of("Relu") == (target.activation_formats, target.weight_formats)


def test_softmax_has_a_fixed_range_where_the_target_says_so(
    graph_of: Callable, plan_of: Callable
) -> None:
    model = graph_of(
        "float[1,2] x",
        "float[1,2] y { m = MatMul (x, w)\n y = Softmax (m) }",
        "float[2,2] w = {1.0, 2.0, 3.0, 4.0}",
    )

    assert plan_of(model, "quark-standard").by_name()["y"].range == (0.0, 1.0)
    assert plan_of(model, "onnxruntime").by_name()["y"].range is None


def test_constants_beside_16_bit_activations_follow_them(
    graph_of: Callable, plan_of: Callable
) -> None:
    model = graph_of(
        "float[1,2,2,2] x",
        "float[1,2,2,2] y { s = Sigmoid (x)\n y = Add (s, k) }",
        "float[1,2,2,1] k = {1.0, 2.0, 3.0, 4.0}",
    )

    plan = plan_of(model, activation=_INT16, bias=ProductBias())

    assert plan.by_name()["k"].spec.format is IntegerFormat.INT16
