"""Messages written a tensor at a time are the bytes that protobuf writes."""

from __future__ import annotations

import pathlib

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

import lowbit
from lowbit.graph import io, message
from lowbit.graph.message import part_message, write_message
from lowbit.graph.submodels import Extractor
from tests.helpers.small_models import small_cnn, small_feeds

GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "data"


@pytest.fixture(autouse=True)
def _every_tensor_is_large(monkeypatch):
    monkeypatch.setattr(message, "_LARGE", 1)


@pytest.mark.parametrize("name", ["float.onnx", "ops_float.onnx"])
def test_the_bytes_are_protobufs(tmp_path, name) -> None:
    model = io.load(GOLDEN / name)
    write_message(model, tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx").read_bytes() == ir.to_proto(model).SerializeToString()


def test_the_numbers_are_the_same_however_they_were_stored(tmp_path) -> None:
    """What a file had in a field of its type becomes raw data."""
    path = GOLDEN / "a16w8_default.onnx"
    write_message(io.load(path), tmp_path / "m.onnx")
    for got, want in zip(
        onnx.load(tmp_path / "m.onnx").graph.initializer,
        onnx.load(path).graph.initializer,
        strict=True,
    ):
        assert (got.name, got.data_type, got.dims) == (want.name, want.data_type, want.dims)
        np.testing.assert_array_equal(
            onnx.numpy_helper.to_array(got), onnx.numpy_helper.to_array(want)
        )


def test_values_that_are_made_when_they_are_written(tmp_path) -> None:
    model = lowbit.quantize(small_cnn(), data=small_feeds(3), preset="A8W8").quantized
    write_message(model, tmp_path / "m.onnx")
    assert onnx.load(tmp_path / "m.onnx") == io.to_proto(model)


def test_tensors_of_other_files_are_inside(tmp_path) -> None:
    proto = small_cnn()
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0)
    write_message(io.load(tmp_path / "m.onnx"), tmp_path / "one.onnx")
    (tmp_path / "m.onnx").unlink()
    found = onnx.load(tmp_path / "one.onnx", load_external_data=False)
    for got, want in zip(found.graph.initializer, small_cnn().graph.initializer, strict=True):
        np.testing.assert_array_equal(
            onnx.numpy_helper.to_array(got), onnx.numpy_helper.to_array(want)
        )
        assert got.data_location == onnx.TensorProto.DEFAULT


def test_one_tensor_is_alive_at_a_time(tmp_path) -> None:
    alive: list[int] = []

    class Recording(np.ndarray):
        """An array that is known of as long as it lives."""

        def __del__(self) -> None:
            alive.pop()

    def make(name: str) -> ir.Tensor:
        alive.append(1)
        assert len(alive) == 1
        data = np.arange(64, dtype=np.float32).view(Recording)
        return ir.Tensor(data, name=name)

    model = io.load(small_cnn())
    for name, value in model.graph.initializers.items():
        value.const_value = ir.LazyTensor(
            lambda name=name: make(name), dtype=ir.DataType.FLOAT, shape=ir.Shape([64]), name=name
        )
    write_message(model, tmp_path / "m.onnx")
    found = onnx.load(tmp_path / "m.onnx")
    assert all(len(tensor.raw_data) == 256 for tensor in found.graph.initializer)


def test_the_model_keeps_its_tensors(tmp_path) -> None:
    model = io.load(small_cnn())
    before = [value.const_value for value in model.graph.initializers.values()]
    write_message(model, tmp_path / "m.onnx")
    after = [value.const_value for value in model.graph.initializers.values()]
    assert all(a is b for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("number", [0, 1, 127, 128, 300, 1 << 31, (1 << 40) + 5])
def test_varints_are_protobufs(number) -> None:
    proto = onnx.ModelProto(model_version=number)
    # The key of the field, and the number.
    assert b"\x28" + message._varint(number) == proto.SerializeToString()


def test_a_part_calls_its_constants_as_the_graph_does() -> None:
    """A tensor that was made of another one may have that one's name."""
    model = ir.from_onnx_text(
        '<ir_version: 8, opset_import: ["" : 17]> '
        "g (float[1,2] x) => (float[1,2] y) <float[2] made = {3.0, 4.0}> { y = Mul (x, made) }"
    )
    made = model.graph.initializers["made"]
    made.const_value = ir.Tensor(np.array([3.0, 4.0], np.float32), name="source")

    session = Extractor(model).session({"x": np.dtype(np.float32)}, ["y"])

    (y,) = session.run(["y"], {"x": np.ones((1, 2), np.float32)})
    np.testing.assert_array_equal(y, [[3.0, 4.0]])


@pytest.mark.parametrize("name", ["FLOAT", "INT8", "UINT16", "INT32", "INT64", "BOOL", "FLOAT16"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3)])
def test_a_part_has_its_constants_as_onnx_ir_writes_them(name: str, shape) -> None:
    data = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    tensor = ir.Tensor(data.astype(ir.DataType[name].numpy()), name="other")
    value = ir.Value(name="c", const_value=tensor)
    result = ir.Value(name="y")
    node = ir.Node("", "Identity", [value], outputs=[result])
    part = ir.GraphView([], [result], nodes=[node], initializers=[value], opset_imports={"": 17})

    (got,) = onnx.ModelProto.FromString(part_message(part, {}, {}, 8)).graph.initializer

    want = ir.serde.serialize_tensor(tensor)
    want.name = "c"
    assert got.SerializeToString() == want.SerializeToString()


def test_a_constant_of_a_type_numpy_does_not_know_is_written() -> None:
    tensor = ir.Tensor(np.array([1, -2, 3], ir.DataType.INT4.numpy()), dtype=ir.DataType.INT4)
    value, result = ir.Value(name="c", const_value=tensor), ir.Value(name="y")
    node = ir.Node("", "Identity", [value], outputs=[result])
    part = ir.GraphView([], [result], nodes=[node], initializers=[value], opset_imports={"": 21})

    (got,) = onnx.ModelProto.FromString(part_message(part, {}, {}, 10)).graph.initializer

    assert onnx.numpy_helper.to_array(got).astype(int).tolist() == [1, -2, 3]


def test_values_are_read_instead_of_others() -> None:
    given, extra = ir.Value(name="x"), ir.Value(name="y")
    middle = ir.Node("", "Neg", [given], outputs=[ir.Value(name="m")])
    last = ir.Node("", "Abs", [middle.outputs[0]], outputs=[extra])
    part = ir.GraphView(
        [given], [extra, middle.outputs[0]], nodes=[last], opset_imports={"": 17}, name="g"
    )

    data = part_message(part, {"x": None}, {}, 8, {"m": "x"})

    running = ort.InferenceSession(data, providers=["CPUExecutionProvider"])
    y, m = running.run(["y", "m"], {"x": np.array([-2.0], np.float32)})
    assert (y.tolist(), m.tolist()) == ([2.0], [-2.0])
