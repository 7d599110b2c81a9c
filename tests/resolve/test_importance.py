from __future__ import annotations

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import lowbit
from lowbit.api import prepare
from lowbit.config.methods import OutputMse
from lowbit.config.presets import find_preset
from lowbit.errors import ConfigError
from lowbit.graph import io
from lowbit.planning import make_plan
from lowbit.scales.importance import weight_importance

_CASES = {
    "conv": (("Conv", {"group": 1, "kernel_shape": [1, 1]}), (6, 4, 1, 1)),
    "grouped": (("Conv", {"group": 2, "kernel_shape": [1, 1]}), (6, 2, 1, 1)),
    "depthwise": (("Conv", {"group": 4, "kernel_shape": [1, 1]}), (4, 1, 1, 1)),
    "transposed": (("ConvTranspose", {"group": 2, "kernel_shape": [1, 1]}), (4, 3, 1, 1)),
}


def _config(**changes: object) -> lowbit.QuantConfig:
    config = find_preset("A8W8")
    weight = msgspec.structs.replace(config.weight, method=OutputMse())
    changes = {
        "weight": weight,
        "refinement": None,
        "equalization": None,
        "keep_only_if_better": False,
        **changes,
    }
    return msgspec.structs.replace(config, **changes)


def _model(case: str) -> onnx.ModelProto:
    (op_type, attributes), shape = _CASES[case]
    rng = np.random.default_rng(1)
    outputs = shape[0] if op_type == "Conv" else shape[1] * attributes["group"]
    weight = rng.normal(size=shape).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node(op_type, ["x", "w", "b"], ["y"], "layer", **attributes)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, outputs, 4, 4])],
        [
            numpy_helper.from_array(weight, "w"),
            numpy_helper.from_array(np.zeros(outputs, np.float32), "b"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _independent_channels() -> np.ndarray:
    """Channels with means and spreads of their own, and no covariance at all."""
    two = np.array([[1, 1], [1, -1]])
    signs = np.kron(np.kron(two, two), np.kron(two, two))[1:5].reshape(1, 4, 4, 4)
    spread = np.float32([1, 3, 0.1, 2]).reshape(1, 4, 1, 1)
    middle = np.float32([2, 0.5, 1, -1]).reshape(1, 4, 1, 1)
    return (middle + spread * signs).astype(np.float32)


@pytest.mark.parametrize("case", _CASES)
def test_importance_is_what_errors_in_weights_do_to_the_output(case: str) -> None:
    """Move weights, alone and together, and look at the mean square of the output's change."""
    feeds = [{"x": _independent_channels()}]
    model = _model(case)
    result = lowbit.quantize(model, data=feeds, config=_config())
    ready = prepare(io.load(model), _config(), feeds[0])
    plan = make_plan(ready.adapted, _config(), ready.target)

    found = weight_importance(ready.adapted, plan, result.stats)["w"]

    def outputs(weight: np.ndarray) -> np.ndarray:
        changed = onnx.ModelProto()
        changed.CopyFrom(model)
        changed.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "w"))
        session = ort.InferenceSession(changed.SerializeToString())
        return np.concatenate([session.run(None, feed)[0] for feed in feeds])

    weight = numpy_helper.to_array(model.graph.initializer[0])
    before = outputs(weight)
    moves = [0.5 * (np.arange(weight.size) == k).reshape(weight.shape) for k in range(weight.size)]
    if case != "transposed":  # there each error counts by itself
        moves.append(np.random.default_rng(2).normal(size=weight.shape))
    for move in moves:
        change = (outputs((weight + move).astype(np.float32)) - before).astype(np.float64)
        total = np.square(change).mean(axis=(0, 2, 3)).sum()
        assert found.error(move.astype(np.float32)).sum() == pytest.approx(total, rel=1e-3)


def test_it_is_no_method_for_activations() -> None:
    config = _config().with_method(OutputMse())

    with pytest.raises(ConfigError, match="output is a method for weights"):
        lowbit.quantize(_model("conv"), data="random", config=config)
