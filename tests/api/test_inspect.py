"""A description of a model, and what each target would do with it."""

from __future__ import annotations

import onnx
from helpers.small_models import small_cnn, small_feeds

import lowbit
from lowbit.config.presets import PRESETS


def test_facts_are_those_of_the_file() -> None:
    proto = small_cnn()

    found = lowbit.inspect(proto)

    assert sum(found.operators.values()) == len(proto.graph.node)
    assert [t.name for t in found.inputs] == [v.name for v in proto.graph.input]
    assert found.opsets["ai.onnx"] == proto.opset_import[0].version
    sizes = [len(t.raw_data) or 4 * len(t.float_data) for t in proto.graph.initializer]
    assert found.constant_bytes == sum(sizes)
    assert found.constants == sum(sizes) // 4


def test_weights_that_are_nodes_count_as_constants() -> None:
    proto = small_cnn()
    expected = lowbit.inspect(proto)
    for tensor in proto.graph.initializer:
        node = onnx.helper.make_node("Constant", [], [tensor.name], value=tensor)
        proto.graph.node.insert(0, node)
    proto.graph.ClearField("initializer")

    found = lowbit.inspect(proto)

    assert (found.constants, found.constant_bytes) == (expected.constants, expected.constant_bytes)


def test_every_built_in_target_has_an_outlook_as_its_plan_says() -> None:
    found = lowbit.inspect(small_cnn())

    # One row for each target that some preset is for.
    assert {row.target for row in found.targets} == {p.config.target for p in PRESETS.values()}
    for row in found.targets:
        plan = lowbit.plan(small_cnn(), preset=row.preset)
        assert row.float_nodes == len(plan.float_nodes)
        assert row.activations == len(plan.activations())
        assert row.refused == ""


def test_a_quantized_model_is_told_and_refused_by_the_targets() -> None:
    quantized = lowbit.quantize(small_cnn(), data=small_feeds(4)).model

    found = lowbit.inspect(quantized)

    assert found.quantized_tensors > 3
    assert all("quantized" in row.refused for row in found.targets)


def test_a_model_that_onnxruntime_cannot_load_is_said_to_be_one() -> None:
    proto = small_cnn()
    assert lowbit.inspect(proto).not_loaded == ""

    proto.graph.node[-1].op_type, proto.graph.node[-1].domain = "Unheard", "nobody"
    proto.opset_import.append(onnx.helper.make_opsetid("nobody", 1))

    found = lowbit.inspect(proto)
    assert "onnxruntime cannot load" in found.not_loaded
    assert "Unheard" in found.not_loaded
