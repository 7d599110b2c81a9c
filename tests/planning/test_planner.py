from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import onnx_ir as ir
import pytest
from helpers.planned_models import int8_config

from lowbit.config.config import QuantConfig
from lowbit.config.presets import find_preset
from lowbit.config.specs import BLOCKS, AccumulatorBias, IntegerSpec, Rule, TensorOverride
from lowbit.errors import ConfigError, PlanError
from lowbit.numerics.formats import IntegerFormat
from lowbit.planning import make_plan
from lowbit.planning.head import Head
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

    assert (first.input, first.weight, first.repeats) == ("x", "w", 1)
    assert (second.input, second.weight, second.repeats) == ("r", "v", 2)
    assert first.tensor == second.tensor == "b"


def test_an_accumulator_bias_needs_both_its_scales(small: ir.Model, plan_of: Callable) -> None:
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
    with pytest.raises(ConfigError, match=message) as raised:
        plan_of(small, target, **options)
    fitting = str(raised.value).partition("presets that fit it: ")[2].split(", ")
    assert fitting[0] == {"ryzen-ai-cnn": "XINT8", "ryzen-ai": "A8W8"}[target]
    for name in fitting:
        assert make_plan(small, find_preset(name), find_target(target)).target == target


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


def test_softmax_has_a_fixed_range_where_the_target_says_so(
    graph_of: Callable, plan_of: Callable
) -> None:
    model = graph_of(
        "float[1,2] x",
        "float[1,2] y { m = MatMul (x, w)\n y = Softmax (m) }",
        "float[2,2] w = {1.0, 2.0, 3.0, 4.0}",
    )

    assert plan_of(model, "vint8").by_name()["y"].range == (0.0, 1.0)
    assert plan_of(model, "ryzen-ai").by_name()["y"].range is None


def test_constants_beside_16_bit_activations_follow_them(
    graph_of: Callable, plan_of: Callable
) -> None:
    model = graph_of(
        "float[1,2,2,2] x",
        "float[1,2,2,2] y { s = Sigmoid (x)\n y = Add (s, k) }",
        "float[1,2,2,1] k = {1.0, 2.0, 3.0, 4.0}",
    )

    plan = plan_of(model, activation=_INT16, bias=AccumulatorBias())

    assert plan.by_name()["k"].spec.format is IntegerFormat.INT16


_DETECTOR = (
    "float[1,8,4,4] x",
    """float[1,9,16] y {
        c = Conv <kernel_shape=[1,1]> (x, w)
        s = Sigmoid (c)
        y = Reshape (s, k)
    }""",
    "float[9,8,1,1] w = {" + ", ".join(["0.5"] * 72) + "}, int64[3] k = {1, 9, 16}",
)


def test_the_tail_stays_in_float_if_asked_for(graph_of: Callable, plan_of: Callable) -> None:
    plan = plan_of(graph_of(*_DETECTOR), head="float")

    assert {t.name for t in plan.activations()} == {"x", "c"}
    assert {n.op_type: n.why for n in plan.float_nodes}["Sigmoid"] == "after the last linear layers"


def test_a_tail_that_decodes_nothing_is_quantized_on_auto(
    graph_of: Callable, plan_of: Callable
) -> None:
    assert {"c", "s", "y"} <= set(plan_of(graph_of(*_DETECTOR), head="auto").by_name())


def test_a_head_that_is_known_is_not_looked_for(graph_of: Callable) -> None:
    model = graph_of(*_DETECTOR)
    conv = model.graph.node(0)
    head = Head(nodes=(conv.name or "",), evidence=("a hint",))
    target = find_target("onnxruntime")

    plan = make_plan(model, int8_config(target, head="auto"), target, head=head)

    assert [(n.node, n.why) for n in plan.float_nodes] == [
        (conv.name, "decodes detections: a hint")
    ]


def test_a_rule_for_a_node_of_the_head_holds(graph_of: Callable, plan_of: Callable) -> None:
    rules = (Rule(op_type="Sigmoid", activation=_INT16),)

    plan = plan_of(graph_of(*_DETECTOR), head="float", rules=rules)

    assert plan.by_name()["s"].spec == _INT16


def test_only_weights_are_planned_without_a_spec_for_activations(
    small: ir.Model, plan_of: Callable
) -> None:
    plan = plan_of(small, activation=None)

    assert [t.name for t in plan.tensors] == ["w", "v"]
    assert plan.biases == ()


def test_only_activations_are_planned_without_a_spec_for_weights(
    small: ir.Model, plan_of: Callable
) -> None:
    plan = plan_of(small, weight=None)

    assert [t.name for t in plan.tensors] == ["x", "r", "y"]
    assert plan.biases == ()


def test_a_bias_that_is_computed_has_no_plan(graph_of: Callable, plan_of: Callable) -> None:
    model = graph_of(
        "float[1,2,4,4] x, float[2] b",
        "float[1,2,4,4] y { y = Conv <kernel_shape=[1,1]> (x, w, b) }",
        "float[2,2,1,1] w = {1.0, 2.0, 3.0, 4.0}",
    )

    assert plan_of(model).biases == ()


def test_a_bias_beside_scales_per_group_stays_in_float(
    graph_of: Callable, plan_of: Callable
) -> None:
    model = graph_of(
        "float[1,4] x",
        "float[1,2] y { y = Gemm (x, w, b) }",
        "float[4,2] w = {1,2,3,4,5,6,7,8}, float[2] b = {0.1, 0.2}",
    )
    grouped = IntegerSpec(format=IntegerFormat.INT8, group_size=2)

    assert len(plan_of(model).biases) == 1
    assert plan_of(model, weight=grouped).biases == ()


def test_a_target_without_blocks_refuses_them(small: ir.Model, plan_of: Callable) -> None:
    with pytest.raises(ConfigError, match="uint16, not bfp16"):
        plan_of(small, "ryzen-ai", activation=BLOCKS["BFP16"])
