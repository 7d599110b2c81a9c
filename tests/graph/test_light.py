from __future__ import annotations

import pathlib
import subprocess
import sys

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from lowbit.graph.onnx_passes import light_proto


def test_weights_become_inputs_and_come_back(parse, floats) -> None:
    model = ir.from_proto(
        parse(
            "g (float[2,32] x) => (float[64] y) { m = MatMul(x, w) y = Reshape(m, shape) }",
            {"w": floats(32, 32), "shape": np.int64([64])},
        )
    )
    before = {name: value.const_value for name, value in model.graph.initializers.items()}

    with light_proto(model) as (proto, heavy):
        inputs = [value.name for value in proto.graph.input]
        kept = [tensor.name for tensor in proto.graph.initializer]

    assert (inputs, kept, list(heavy)) == (["x", "w"], ["shape"], ["w"])
    assert [value.name for value in model.graph.inputs] == ["x"]
    assert {n: v.const_value for n, v in model.graph.initializers.items()} == before


def test_weights_come_back_after_a_failure(parse, floats) -> None:
    model = ir.from_proto(
        parse("g (float[2,32] x) => (float[2,32] y) { y = MatMul(x, w) }", {"w": floats(32, 32)})
    )

    with pytest.raises(RuntimeError), light_proto(model):
        raise RuntimeError

    assert list(model.graph.initializers) == ["w"]
    assert len(model.graph.inputs) == 1


PEAK = """
import resource, sys
from lowbit.graph import io
from lowbit.normalize.normalize import normalize
import onnx.shape_inference, onnx.version_converter, onnxruntime, numpy
path = sys.argv[1]
small = normalize(io.load(sys.argv[2]))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
model = normalize(io.load(path))
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert model.graph.num_nodes() == 3 * int(sys.argv[3]), model.graph.num_nodes()
print((after - before) // 1024)
"""


def _write_layers(path: pathlib.Path, layers: int, opset: int) -> None:
    """Write a chain of 64 MB layers; the weights file is a hole, which takes no disk."""
    width = 4096
    size = 4 * width * width
    nodes, weights, last = [], [], "x"
    for index in range(layers):
        nodes += [
            helper.make_node("MatMul", [last, f"w{index}"], [f"m{index}"], name=f"n{index}"),
            helper.make_node("Clip", [f"m{index}"], [f"c{index}"], **_bounds(opset)),
            helper.make_node("Dropout", [f"c{index}"], [f"d{index}"]),
            helper.make_node("Relu", [f"d{index}"], [f"r{index}"]),
        ]
        weight = TensorProto(name=f"w{index}", data_type=1, dims=[width, width])
        weight.data_location = TensorProto.EXTERNAL
        for key, value in (("location", "w.bin"), ("offset", index * size), ("length", size)):
            weight.external_data.add(key=key, value=str(value))
        weights.append(weight)
        last = f"r{index}"
    info = [helper.make_tensor_value_info(name, 1, [1, width]) for name in ("x", last)]
    graph = helper.make_graph(nodes, "g", info[:1], info[1:], weights)
    path.parent.mkdir()
    with (path.parent / "w.bin").open("wb") as file:
        file.truncate(layers * size)
    opsets = [helper.make_opsetid("", opset)]
    path.write_bytes(
        helper.make_model(graph, opset_imports=opsets, ir_version=6).SerializeToString()
    )


def _bounds(opset: int) -> dict[str, float]:
    return {"min": 0.0, "max": 6.0} if opset < 11 else {}


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no resource module")
@pytest.mark.parametrize("opset", [10, 17], ids=["converted", "as it is"])
def test_a_model_of_three_gigabytes_is_normalized_without_reading_it(tmp_path, opset: int) -> None:
    _write_layers(tmp_path / "small" / "m.onnx", 1, opset)
    _write_layers(tmp_path / "large" / "m.onnx", 48, opset)
    paths = [str(tmp_path / kind / "m.onnx") for kind in ("large", "small")]

    done = subprocess.run(
        [sys.executable, "-c", PEAK, *paths, "48"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 100, "megabytes above a small model's peak"
