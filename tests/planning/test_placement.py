"""Where Q/DQ goes: which tensors operators request, before any data is seen."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import onnx_ir as ir
import pytest
from helpers.planned_models import int8_config

from lowbit.config.specs import BLOCKS, FloatSpec, IntegerSpec
from lowbit.graph.editing import ARITHMETIC, REQUANTIZED
from lowbit.numerics.formats import FloatFormat, IntegerFormat
from lowbit.ops.traits import OPERATORS, OpTraits
from lowbit.planning import Plan, make_plan
from lowbit.planning.placement import effective_output
from lowbit.targets import Target, find_target

_W = "float[2,2,1,1] w = {1.0, 2.0, 3.0, 4.0}"
_IMAGE = "float[1,2,4,4]"
_INT16 = IntegerSpec(format=IntegerFormat.INT16)


def _names(plan: Plan) -> set[str]:
    return {tensor.name for tensor in plan.tensors}


def _why(plan: Plan) -> dict[str, str]:
    return {node.op_type: node.why for node in plan.float_nodes}


@pytest.mark.parametrize(
    ("attributes", "axis"), [("", 1), ("<transB = 1>", 0), ("<transB = 0>", 1)]
)
def test_per_channel_axes_are_those_of_the_outputs(
    attributes: str, axis: int, graph_of: Callable, plan_of: Callable
) -> None:
    model = graph_of(
        "float[1,2] x",
        f"float[1,2] y {{ y = Gemm {attributes} (x, w) }}",
        "float[2,2] w = {1.0, 2.0, 3.0, 4.0}",
    )
    weight = plan_of(model).weights()[0].spec

    plan = plan_of(model, weight=msgspec.structs.replace(weight, per_channel=True))

    assert plan.weights()[0].axis == axis


def test_a_stack_of_matrices_has_one_scale(graph_of: Callable, plan_of: Callable) -> None:
    """onnxruntime's QLinearMatMul takes a scale per channel for a single matrix alone."""
    model = graph_of(
        "float[2,1,2] x",
        "float[2,1,2] y { y = MatMul (x, w) }",
        "float[2,2,2] w = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0}",
    )
    weight = plan_of(model).weights()[0].spec

    plan = plan_of(model, weight=msgspec.structs.replace(weight, per_channel=True))

    assert plan.weights()[0].axis is None


def test_shape_computations_stay_float(graph_of: Callable, plan_of: Callable) -> None:
    model = graph_of(
        "float[1,2,?,?] x",
        """float[?,?,?,?] y {
            c = Conv <kernel_shape=[1,1]> (x, w)
            s = Shape (c)
            f = Cast <to = 1> (s)
            m = Mul (f, two)
            i = Cast <to = 7> (m)
            y = Resize <mode = "nearest"> (c, , , i)
        }""",
        f"{_W}, float[4] two = {{1.0, 1.0, 2.0, 2.0}}",
    )

    plan = plan_of(model)

    assert not {"f", "m", "two"} & set(plan.by_name())
    assert "computes a shape" in {n.why for n in plan.float_nodes}


def test_nodes_with_infinite_constants_stay_float(graph_of: Callable, plan_of: Callable) -> None:
    model = graph_of(
        f"{_IMAGE} x",
        "float[1,2,4,4] y { c = Conv <kernel_shape=[1,1]> (x, w)\n r = Relu (c)\n y = Add (r, m) }",
        f"{_W}, float[1,1,4,4] m = {{0.0, -inf, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, "
        "0.0, 0.0, 0.0, 0.0}",
    )

    plan = plan_of(model)

    assert "m" not in plan.by_name()
    assert {n.why for n in plan.float_nodes} == {
        "one of its constants is infinite, or as large as a mask"
    }


def test_data_movement_between_float_operators_is_left_alone(
    graph_of: Callable, plan_of: Callable
) -> None:
    body = "float[2,?] y { e = Exp (x)\n t = Transpose (e)\n y = Sqrt (t) }"

    assert plan_of(graph_of("float[4,2] x", body)).tensors == ()


@pytest.mark.parametrize("clip", ["0.0, 6.0", "0.0, 1.0", "-1.0, 1.0"])
def test_clips_are_fused_within_the_bounds_a_target_has(
    clip: str, graph_of: Callable, plan_of: Callable
) -> None:
    low, high = clip.split(", ")
    model = graph_of(
        f"{_IMAGE} x",
        "float[1,2,4,4] y { c = Conv <kernel_shape=[1,1]> (x, w)\n y = Clip (c, lo, hi) }",
        f"{_W}, float lo = {{{low}}}, float hi = {{{high}}}",
    )

    assert ("c" in plan_of(model, "ryzen-ai").by_name()) == (low != "0.0")
    assert "c" not in plan_of(model, "onnxruntime").by_name()


def test_a_tensor_with_two_consumers_is_not_fused(graph_of: Callable, plan_of: Callable) -> None:
    model = graph_of(
        f"{_IMAGE} x",
        "float[1,2,4,4] y, float[1,2,4,4] z "
        "{ c = Conv <kernel_shape=[1,1]> (x, w)\n y = Relu (c)\n z = Sigmoid (c) }",
        _W,
    )

    assert "c" in plan_of(model).by_name()


_MOVED = """float[?,?,?,?] z {
    t = Transpose <perm=[0,1,3,2]> (x)
    e = Exp (t)
    u = Transpose <perm=[0,1,3,2]> (e)
    c = Conv <kernel_shape=[1,1]> (u, w)
    p = MaxPool <kernel_shape=[1,1]> (c)
    s = Sin (p)
    v = Transpose <perm=[0,1,3,2]> (s)
    z = Sqrt (v)
}"""


@pytest.mark.parametrize(
    ("data_movement", "expected"),
    [
        # Beside: the Transpose before the Conv and the MaxPool after it, and so both sides of them.
        ("beside_quantized", "e u c p"),
        # After: only the MaxPool reads what is quantized.
        ("after_quantized", "u c p"),
        ("always", "x t e u c p s v"),
    ],
)
def test_data_movement_is_quantized_where_the_target_says(
    data_movement: str, expected: str, graph_of: Callable, plan_of: Callable
) -> None:
    target = msgspec.structs.replace(find_target("onnxruntime"), data_movement=data_movement)

    plan = plan_of(graph_of(f"{_IMAGE} x", _MOVED, _W), target)

    assert {t.name for t in plan.activations()} == set(expected.split())


def test_data_movement_next_to_data_movement_follows(graph_of: Callable, plan_of: Callable) -> None:
    model = graph_of(
        f"{_IMAGE} x",
        """float[?,?,?,?] z {
            e = Exp (x)
            t = Transpose <perm=[0,1,3,2]> (e)
            u = Slice (t, a, b, d)
            z = Conv <kernel_shape=[1,1]> (u, w)
        }""",
        f"{_W}, int64[1] a = {{0}}, int64[1] b = {{2}}, int64[1] d = {{2}}",
    )

    plan = plan_of(model)

    assert _names(plan) == {"e", "t", "u", "z", "w"}
    assert _why(plan) == {"Exp": "onnxruntime does not run Exp quantized"}


def test_every_operator_is_quantized_where_the_target_says(
    graph_of: Callable, plan_of: Callable
) -> None:
    model = graph_of(
        f"{_IMAGE} x",
        "float[1,2,4,4] y, int64[4] s { e = Exp (x)\n y = Sin (e)\n s = Shape (y) }",
    )

    assert _names(plan_of(model)) == set()
    assert _names(plan_of(model, "ryzen-ai-float")) == {"x", "e", "y"}


def test_operators_with_subgraphs_stay_in_float(graph_of: Callable, plan_of: Callable) -> None:
    model = graph_of(
        "float[2] x, bool b",
        """float[2] y {
            e = Exp (x)
            y = If (b) <
                then_branch = g1 () => (float[2] a) { a = Neg (e) },
                else_branch = g2 () => (float[2] c) { c = Abs (e) }
            >
        }""",
    )

    plan = plan_of(model, "ryzen-ai-float")

    assert _names(plan) == {"x", "e"}
    assert _why(plan) == {"If": "ryzen-ai-float does not run If quantized"}


def test_a_clamp_after_a_float_tensor_stays_in_float(graph_of: Callable, plan_of: Callable) -> None:
    model = graph_of(
        f"{_IMAGE} x",
        f"{_IMAGE} y {{ e = Exp (x)\n r = Relu (e)\n y = Sigmoid (r) }}",
    )

    plan = plan_of(model)

    assert _names(plan) == {"r", "y"}
    assert _why(plan)["Relu"] == "its input is not quantized"


@pytest.mark.parametrize(
    ("layer", "weight", "size", "expected"),
    [
        ("MatMul (x, w)", "float[8,2]", 4, (4, 0)),
        ("Gemm (x, w)", "float[8,2]", 4, (4, 0)),
        ("Gemm <transB=1> (x, w)", "float[2,8]", 4, (4, 1)),
        # No more inputs than a group has: a scale per channel, along the outputs.
        ("MatMul (x, w)", "float[8,2]", 8, (None, 1)),
        ("Gemm <transB=1> (x, w)", "float[2,8]", 16, (None, 0)),
    ],
)
def test_scales_per_group_lie_along_the_inputs_of_matrices(
    layer: str,
    weight: str,
    size: int,
    expected: tuple[int | None, int],
    graph_of: Callable,
    plan_of: Callable,
) -> None:
    numbers = ", ".join(["1.0"] * 16)
    model = graph_of(
        "float[1,8] x", f"float[1,2] y {{ y = {layer} }}", f"{weight} w = {{{numbers}}}"
    )
    spec = IntegerSpec(format=IntegerFormat.INT4, group_size=size)

    row = plan_of(model, weight=spec).by_name()["w"]

    assert (row.integer.group_size, row.axis) == expected
    assert row.integer.per_channel == (expected[0] is None)


def test_convolutions_have_scales_per_channel_instead_of_groups(
    graph_of: Callable, plan_of: Callable
) -> None:
    model = graph_of(f"{_IMAGE} x", f"{_IMAGE} y {{ y = Conv <kernel_shape=[1,1]> (x, w) }}", _W)
    spec = IntegerSpec(format=IntegerFormat.INT4, group_size=2)

    row = plan_of(model, weight=spec).by_name()["w"]

    assert (row.integer.group_size, row.integer.per_channel, row.axis) == (None, True, 0)


@pytest.mark.parametrize(
    ("layer", "constants", "axis"),
    [
        ("Conv <kernel_shape=[1,1]> (x, w)", "float[3,2,1,1] w = {1,2,3,4,5,6}", 0),
        ("ConvTranspose <kernel_shape=[1,1]> (x, w)", "float[2,3,1,1] w = {1,2,3,4,5,6}", 1),
        ("MatMul (x, w)", "float[4,2] w = {1,2,3,4,5,6,7,8}", 1),
        ("InstanceNormalization (x, w, b)", "float[2] w = {1,2}, float[2] b = {1,2}", None),
    ],
)
def test_scales_per_channel_lie_along_the_outputs(
    layer: str, constants: str, axis: int | None, graph_of: Callable, plan_of: Callable
) -> None:
    model = graph_of(f"{_IMAGE} x", f"float[?,?,?,?] y {{ y = {layer} }}", constants)
    spec = IntegerSpec(format=IntegerFormat.INT8, per_channel=True)

    assert plan_of(model, weight=spec).by_name()["w"].axis == axis


def test_constants_beside_wider_activations_have_their_format(
    graph_of: Callable, plan_of: Callable
) -> None:
    model = graph_of(
        "float[1,2] x",
        "float[1,2] y { m = MatMul (x, w)\n y = Mul (m, k) }",
        "float[2,2] w = {1,2,3,4}, float[2] k = {0.5, 2.0}",
    )

    tensors = plan_of(model, activation=_INT16).by_name()

    assert tensors["w"].integer.format is IntegerFormat.INT8
    assert tensors["k"].integer.format is IntegerFormat.INT16


@pytest.mark.parametrize(
    "bias", [FloatSpec(format=FloatFormat.BFLOAT16), BLOCKS["BFP16"]], ids=["float", "block"]
)
def test_biases_in_other_formats_are_constants_like_weights(
    bias: FloatSpec, graph_of: Callable, plan_of: Callable
) -> None:
    model = graph_of(
        f"{_IMAGE} x",
        f"{_IMAGE} y {{ y = Conv <kernel_shape=[1,1]> (x, w, b) }}",
        f"{_W}, float[2] b = {{0.1, 0.2}}",
    )
    spec = FloatSpec(format=FloatFormat.BFLOAT16)

    plan = plan_of(model, "ryzen-ai-float", activation=spec, weight=spec, bias=bias)

    assert plan.by_name()["b"].spec == bias
    assert plan.by_name()["b"].why.startswith("bias of Conv")
    assert plan.biases == ()


def test_an_output_that_nothing_reads_is_not_quantized(
    graph_of: Callable, plan_of: Callable
) -> None:
    model = graph_of(
        "float[1,4] x", "float[1,2] y { m = Mul (x, x)\n a, b = Split <axis=1> (m)\n y = Exp (a) }"
    )

    assert _names(plan_of(model)) == {"x", "m", "a"}


def test_arithmetic_of_the_device_belongs_to_the_operator_before_it(
    graph_of: Callable, plan_of: Callable
) -> None:
    model = graph_of(
        "float[1,2] x",
        "float[1,2] y { s = Sigmoid (x)\n m = Mul (s, k)\n y = Sigmoid (m) }",
        "float k = {0.5}",
    )
    sigmoid, factor, _ = model.graph
    factor.meta[ARITHMETIC] = True

    plan = plan_of(model)

    assert effective_output(sigmoid).name == "m"
    assert _names(plan) == {"x", "m", "y"}
    assert plan.by_name()["m"].why == f"output of Sigmoid {sigmoid.name}"


def test_the_second_name_of_an_output_has_the_format_of_its_scheme(
    graph_of: Callable, plan_of: Callable
) -> None:
    model = graph_of("float[1,2] x", "float[1,2] y { s = Sigmoid (x)\n y = Identity (s) }")
    # Normalization leaves no Identity: it is put in again, as at a format boundary.
    graph = model.graph
    value = graph.outputs[0]
    second = ir.node("Identity", [value], name="requantized")
    second.outputs[0].name = "y2"
    second.outputs[0].type, second.outputs[0].shape = value.type, value.shape
    graph.append(second)
    graph.outputs[0] = second.outputs[0]
    second.meta[REQUANTIZED] = True

    plan = plan_of(model)

    assert plan.by_name()["y2"].why == "output of the graph"


def test_operators_of_one_s_own_are_placed(graph_of: Callable) -> None:
    model = graph_of("float[1,2] x", "float[1,2] y { y = Sigmoid (x) }")
    node = model.graph.node(0)
    node.domain, node.op_type = "my.domain", "Wave"
    target = find_target("onnxruntime")
    mine = msgspec.structs.replace(target, operators=(*target.operators, "my.domain::Wave"))

    def plan(target: Target, **rows: OpTraits) -> Plan:
        named = {f"my.domain::{name}": row for name, row in rows.items()}
        return make_plan(model, int8_config(target), target, {**OPERATORS, **named})

    assert _names(plan(mine, Wave=OpTraits())) == {"x", "y"}
    assert _names(plan(mine, Wave=OpTraits(outputs=0))) == {"x"}
    assert _names(plan(target, Wave=OpTraits())) == set()
    assert _names(plan(mine)) == set()


def test_attributes_may_keep_an_operator_in_float(graph_of: Callable, plan_of: Callable) -> None:
    def plan(alpha: float) -> Plan:
        text = f"float[1,2] y {{ y = HardSigmoid <alpha={alpha}, beta=0.5> (x) }}"
        return plan_of(graph_of("float[1,2] x", text))

    assert _names(plan(0.16666667)) == {"x", "y"}
    assert _names(plan(0.2)) == set()
    assert _why(plan(0.2))["HardSigmoid"] == "HardSigmoid with these attributes is not quantized"


def test_the_first_consumer_s_reason_holds_between_equal_rules(
    graph_of: Callable, plan_of: Callable
) -> None:
    model = graph_of("float[1,2] x", "float[1,2] y { s = Sigmoid (x)\n y = Tanh (s) }")

    assert plan_of(model).by_name()["s"].why.startswith("output of Sigmoid")


def test_constants_without_elements_and_trees_stay_as_they_are(graph_of, plan_of) -> None:
    model = graph_of(
        "float[N,2] x",
        "float[N,2] y { c = MatMul (x, v)\n y = Concat <axis=0> (c, none) }",
        "float[2,2] v = {1.0, 2.0, 3.0, 4.0}, float[0,2] none = {}",
    )

    assert "none" not in plan_of(model, head="int8").by_name()


def test_a_constant_as_low_as_masks_are_leaves_its_node_in_float(graph_of, plan_of) -> None:
    model = graph_of(
        "float[1,2] x",
        "float[1,2] y { c = MatMul (x, v)\n y = Max (c, low) }",
        "float[2,2] v = {1.0, 2.0, 3.0, 4.0}, float low = {-3.4028235e38}",
    )

    (row,) = (n for n in plan_of(model, head="int8").float_nodes if n.op_type == "Max")
    assert "as large as a mask" in row.why
