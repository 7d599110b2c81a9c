"""A plan without the stages that it does not depend on."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from lowbit.config.presets import find_preset
from lowbit.graph import io
from lowbit.ops.traits import OPERATORS
from lowbit.pipeline import stages
from lowbit.pipeline.plan_only import plan_only
from lowbit.state import Loaded
from lowbit.targets.builtin import find_target


def _two_layers(*, shared: bool) -> bytes:
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.normal(size=(4, 4, 1, 1)).astype(np.float32), name)
        for name in ("w0", "w1")
    ]
    biases = [
        numpy_helper.from_array(rng.normal(size=4).astype(np.float32), name)
        for name in ("b0", "b1")[: 1 if shared else 2]
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w0", "b0"], ["c"], "first"),
        helper.make_node("Relu", ["c"], ["r"], "relu"),
        helper.make_node("Conv", ["r", "w1", "b0" if shared else "b1"], ["y"], "second"),
    ]
    tensors = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 4, 2, 2]) for n in "xy"]
    graph = helper.make_graph(nodes, "g", tensors[:1], tensors[1:], [*weights, *biases])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return model.SerializeToString()


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("preset", ["A8W8", "XINT8"])
def test_the_plan_is_that_of_all_stages(preset: str, shared: bool) -> None:
    config = find_preset(preset)
    state = Loaded(
        loaded=io.load(_two_layers(shared=shared)),
        samples=None,
        config=config,
        target=find_target(config.target),
        operators=OPERATORS,
    )

    transformed = stages.transform(stages.normalize(state))

    assert plan_only(state).plan == stages.plan(stages.prepare(transformed), check=False).plan
