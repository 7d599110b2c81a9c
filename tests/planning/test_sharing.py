from __future__ import annotations

from collections.abc import Callable

import msgspec
import onnx_ir as ir
import pytest
from helpers.planned_models import int8_config

from lowbit.config.specs import IntegerSpec, TensorOverride
from lowbit.numerics.formats import IntegerFormat
from lowbit.ops.traits import OPERATORS, Kind, OpTraits
from lowbit.planning import Plan, make_plan
from lowbit.targets import FusedPair, Target, find_target
from lowbit.targets.target import Alignment, AlignRule

_W = "float[2,2,1,1] w = {1.0, 2.0, 3.0, 4.0}"


def test_chains_of_data_movement_share_the_first_tensors_parameters(
    graph_of: Callable, plan_of: Callable
) -> None:
    model = graph_of(
        "float[1,2,4,4] x",
        """float[?,?,?,?] y {
            c = Conv <kernel_shape=[1,1]> (x, w)
            t = Transpose <perm=[0,1,3,2]> (c)
            p = MaxPool <kernel_shape=[2,2]> (t)
            y = Conv <kernel_shape=[1,1]> (p, w)
        }""",
        _W,
    )

    tensors = plan_of(model).by_name()

    assert tensors["t"].leader == tensors["p"].leader == "c"
    assert "same numbers as c" in tensors["p"].why


def test_another_spec_ends_the_sharing(graph_of: Callable, plan_of: Callable) -> None:
    model = graph_of(
        "float[1,2,4,4] x",
        "float[1,2,4,4] y { t = Transpose <perm=[0,1,3,2]> (x)\n y = Conv <kernel_shape=[1,1]> (t, w) }",
        _W,
    )
    wide = TensorOverride(tensor="t", spec=IntegerSpec(format=IntegerFormat.INT16))

    assert plan_of(model, tensors=(wide,)).by_name()["t"].leader == "t"


@pytest.mark.parametrize(("mode", "leader"), [("nearest", "c"), ("linear", "r")])
def test_resizing_shares_only_where_numbers_are_copied(
    mode: str, leader: str, graph_of: Callable, plan_of: Callable
) -> None:
    model = graph_of(
        "float[1,2,4,4] x",
        f"""float[?,?,?,?] y {{
            c = Conv <kernel_shape=[1,1]> (x, w)
            r = Resize <mode="{mode}"> (c, , s)
            y = Conv <kernel_shape=[1,1]> (r, w)
        }}""",
        f"{_W}, float[4] s = {{1.0, 1.0, 2.0, 2.0}}",
    )

    assert plan_of(model).by_name()["r"].leader == leader


def test_the_only_input_of_a_clamp_is_observed_after_it(
    graph_of: Callable, plan_of: Callable
) -> None:
    model = graph_of(
        "float[1,2,4,4] x",
        "float[1,2,4,4] y { s = Mul (x, x)\n y = Clip (s, lo, hi) }",
        "float lo = {-2.0}, float hi = {2.0}",
    )

    tensors = plan_of(model).by_name()

    assert tensors["s"].observe == "y"


@pytest.mark.parametrize("rule", ["merged", "output", "lowest", "input"])
def test_concats_are_aligned_through_fused_relus(
    rule: AlignRule, graph_of: Callable, plan_of: Callable
) -> None:
    model = graph_of(
        "float[1,2,4,4] x",
        """float[1,4,4,4] y {
            a = Conv <kernel_shape=[1,1]> (x, w)
            b = Relu (a)
            y = Concat <axis=1> (b, x)
        }""",
        _W,
    )
    target = msgspec.structs.replace(
        find_target("ryzen-ai"), align=(Alignment(operators=("Concat",), rule=rule),)
    )

    groups = plan_of(model, target).groups

    assert [(g.op_type, g.rule, g.inputs, g.outputs) for g in groups] == [
        ("Concat", rule, ("b", "x"), ("y",))
    ]


def test_tensors_of_other_formats_are_not_aligned(graph_of: Callable, plan_of: Callable) -> None:
    model = graph_of(
        "float[1,2,4,4] x, float[1,2,4,4] z",
        """float[1,2,4,4] y, float[1,6,4,4] u {
            c = Concat <axis=1> (x, z)
            y = Conv <kernel_shape=[1,1]> (c, w)
            d = Concat <axis=1> (x, z, y)
            u = Relu (d)
        }""",
        "float[2,4,1,1] w = {1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0, 4.0}",
    )
    target = msgspec.structs.replace(
        find_target("onnxruntime"), align=(Alignment(operators=("Concat",), rule="merged"),)
    )
    wide = IntegerSpec(format=IntegerFormat.INT16)

    def members(*names: str) -> list[set[str]]:
        overrides = tuple(TensorOverride(tensor=name, spec=wide) for name in names)
        groups = plan_of(model, target, tensors=overrides).groups
        return [{*group.inputs, *group.outputs} for group in groups]

    assert {"c", "x", "z"} in members()
    # The output alone has 16 bits: nothing is left for it to be aligned with.
    assert not any("c" in group for group in members("c"))
    assert {"c", "x"} in members("z")


def test_groups_come_in_the_order_of_the_alignments(graph_of: Callable, plan_of: Callable) -> None:
    model = graph_of(
        "float[1,2,4,4] x",
        """float[?,?,?,?] y {
            c = Concat <axis=1> (x, x)
            p = AveragePool <kernel_shape=[2,2]> (c)
            y = Conv <kernel_shape=[1,1]> (p, w)
        }""",
        "float[1,4,1,1] w = {1.0, 2.0, 3.0, 4.0}",
    )
    alignments = tuple(
        Alignment(operators=(name,), rule="merged") for name in ("AveragePool", "Concat")
    )
    target = msgspec.structs.replace(find_target("ryzen-ai"), align=alignments)

    assert [g.op_type for g in plan_of(model, target).groups] == ["AveragePool", "Concat"]


def test_the_input_of_a_clamp_with_another_consumer_is_observed_itself(
    graph_of: Callable, plan_of: Callable
) -> None:
    model = graph_of(
        "float[1,2,4,4] x",
        "float[1,2,4,4] y, float[1,2,4,4] z "
        "{ s = Mul (x, x)\n y = Clip (s, lo, hi)\n z = Sigmoid (s) }",
        "float lo = {-2.0}, float hi = {2.0}",
    )

    tensors = plan_of(model).by_name()

    assert tensors["s"].observe == "s"
    assert "its only consumer clips it" not in tensors["s"].why


def test_all_parts_of_a_split_share_its_inputs_parameters(
    graph_of: Callable, plan_of: Callable
) -> None:
    model = graph_of(
        "float[1,4] x",
        "float[1,2] y { m = Mul (x, x)\n a, b = Split <axis=1> (m)\n y = Mul (a, b) }",
    )

    tensors = plan_of(model).by_name()

    assert (tensors["a"].leader, tensors["b"].leader) == ("m", "m")


def test_sharing_ends_where_the_input_stays_in_float(graph_of: Callable, plan_of: Callable) -> None:
    model = graph_of(
        "float[1,2,4,4] x",
        "float[1,2,4,4] y { t = Transpose <perm=[0,1,3,2]> (x)\n y = Conv <kernel_shape=[1,1]> (t, w) }",
        _W,
    )
    float_input = TensorOverride(tensor="x", keep="float")

    assert plan_of(model, tensors=(float_input,)).by_name()["t"].leader == "t"


def test_a_node_with_tensors_in_float_alone_is_no_group(
    graph_of: Callable, plan_of: Callable
) -> None:
    model = graph_of("float[1,2] x", "float[1,4] y { y = Concat <axis=1> (x, x) }")
    target = msgspec.structs.replace(find_target("ryzen-ai"), data_movement="always")
    floats = tuple(TensorOverride(tensor=name, keep="float") for name in ("x",))

    assert len(plan_of(model, target).groups) == 1
    assert plan_of(model, target, tensors=floats).groups == ()


def test_a_group_takes_the_output_of_a_fused_activation(
    graph_of: Callable, plan_of: Callable
) -> None:
    model = graph_of(
        "float[1,2,4,4] x",
        "float[1,4,4,4] y { c = Concat <axis=1> (x, x)\n y = Relu (c) }",
    )
    target = msgspec.structs.replace(
        find_target("ryzen-ai"),
        data_movement="always",
        fuse=(FusedPair(producers=("Concat",), consumers=("Relu",)),),
    )

    (group,) = plan_of(model, target).groups

    assert (group.inputs, group.outputs) == (("x",), ("y",))


def test_operators_of_ones_own_share_and_fuse_and_align_by_their_full_name(
    graph_of: Callable,
) -> None:
    model = graph_of("float[1,4] x", "float[1,4] y { m = Mul (x, x)\n y = Identity (m) }")
    mul = model.graph.node(0)
    moved = ir.node("Move", [mul.outputs[0]], domain="my.domain", name="move")
    clamped = ir.node("Relu", [moved.outputs[0]], domain="my.domain", name="clamp")
    moved.outputs[0].name, clamped.outputs[0].name = "moved", "clamped"
    for node in (moved, clamped):
        node.outputs[0].type, node.outputs[0].shape = mul.outputs[0].type, mul.outputs[0].shape
    model.graph.extend([moved, clamped])
    model.graph.outputs[0] = clamped.outputs[0]
    model.opset_imports["my.domain"] = 1
    rows = {
        "my.domain::Move": OpTraits(kind=Kind.MOVES, data=(0,)),
        "my.domain::Relu": OpTraits(data=(0,)),
    }
    operators = {**OPERATORS, **rows}
    known = msgspec.structs.replace(
        find_target("onnxruntime"), operators=(*OPERATORS, *rows), fuse=(), align=()
    )
    sharing = msgspec.structs.replace(known, shares=("my.domain::Move",))
    fusing = msgspec.structs.replace(
        known, fuse=(FusedPair(producers=("my.domain::Move",), consumers=("my.domain::Relu",)),)
    )
    aligning = msgspec.structs.replace(
        known, align=(Alignment(operators=("my.domain::Relu",), rule="merged"),)
    )
    # Names without the domain are those of ONNX's own operators.
    other = msgspec.structs.replace(
        known,
        shares=("Move",),
        fuse=(FusedPair(producers=("Move",), consumers=("Relu",)),),
        align=(Alignment(operators=("Relu",), rule="merged"),),
    )

    def plan(target: Target) -> Plan:
        return make_plan(model, int8_config(target), target, operators)

    assert plan(known).by_name()["moved"].leader == "moved"
    assert plan(sharing).by_name()["moved"].leader == mul.outputs[0].name
    assert "moved" not in plan(fusing).by_name()
    assert [g.node for g in plan(aligning).groups] == ["clamp"]
    assert plan(other) == msgspec.structs.replace(plan(known), target=other.name)
