"""Models that AMD's own tool wrote compute, with bodies, what they compute with AMD's library."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from helpers.quark_cases import DATA, samples
from onnx import TensorProto, helper, numpy_helper

import lowbit
from lowbit.emit.bodies import with_bodies
from lowbit.errors import ModelError
from lowbit.graph import io
from lowbit.graph.session import session

CASES = ("bf16_nocle", "bf16_scaled_nocle", "bfp16_nocle", "mxint8_nocle")


def _session(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def _without_functions(case: str) -> onnx.ModelProto:
    model = onnx.load(DATA / f"{case}.onnx")
    assert not model.functions
    return model


@pytest.mark.parametrize("case", CASES)
def test_amds_own_models_run_and_give_amds_numbers(case: str) -> None:
    model = io.to_proto(with_bodies(io.load(_without_functions(case))))

    onnx.checker.check_model(model)
    running = _session(model)
    outputs = [running.run(None, dict(feed))[0] for feed in samples("test_input.npz")]
    with np.load(DATA / "outputs_float.npz") as stored:
        expected = stored[f"{case}__noopt"]
    np.testing.assert_array_equal(np.concatenate(outputs), expected.reshape(-1, 10))


def test_without_bodies_the_way_out_is_named() -> None:
    model = io.load(_without_functions("bfp16_nocle"))

    with pytest.raises(ModelError, match="--to functions"), session(model, []):
        pass


@pytest.mark.parametrize("case", CASES)
def test_comparing_needs_no_step_before(case: str) -> None:
    feeds = [dict(feed) for feed in samples("test_input.npz")]

    report = lowbit.compare(DATA / "float.onnx", _without_functions(case), feeds)

    assert report.outputs[0].sqnr_db > 35


def _pair(kind: int, point: int, prefix: str, domain: str) -> onnx.ModelProto:
    constants = [
        numpy_helper.from_array(np.array(0.25, np.float32), "scale"),
        helper.make_tensor("zero", kind, [], [point]),
    ]
    nodes = [
        helper.make_node(f"{prefix}QuantizeLinear", ["x", "scale", "zero"], ["q"], domain=domain),
        helper.make_node(f"{prefix}DequantizeLinear", ["q", "scale", "zero"], ["y"], domain=domain),
    ]
    graph = helper.make_graph(
        nodes,
        "pair",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None])],
        constants,
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (TensorProto.INT8, np.int8),
        (TensorProto.UINT16, np.uint16),
        (TensorProto.INT32, np.int32),
        (TensorProto.UINT32, np.uint32),
    ],
)
@pytest.mark.parametrize(
    ("prefix", "domain"), [("Extended", "com.amd.quark"), ("Vitis", "com.vai.quantize")]
)
def test_integers_of_every_width_saturate(kind: int, dtype: type, prefix: str, domain: str) -> None:
    point = 3 if np.iinfo(dtype).min else 100
    x = np.array([-1e12, -3.1, -0.125, 0, 0.375, 7.7, 1e6, 1e12], np.float32)

    made = io.to_proto(with_bodies(io.load(_pair(kind, point, prefix, domain))))
    (y,) = _session(made).run(None, {"x": x})

    limits = np.iinfo(dtype)
    codes = np.clip(np.rint(x.astype(np.float64) / 0.25) + point, limits.min, limits.max)
    np.testing.assert_array_equal(y, ((codes - point) * 0.25).astype(np.float32))


def test_an_operator_that_is_not_known_is_named() -> None:
    model = _pair(TensorProto.INT8, 0, "Extended", "com.amd.quark")
    model.graph.node[0].op_type = "ExtendedGRU"

    with pytest.raises(ModelError, match=r"ExtendedGRU .* has no body here; known are Extended"):
        with_bodies(io.load(model))


def test_a_model_with_bodies_stays_as_it_is() -> None:
    model = with_bodies(io.load(_without_functions("mxint8_nocle")))

    assert with_bodies(model) is model
