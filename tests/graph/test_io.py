from __future__ import annotations

import os
import pathlib

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from lowbit.errors import ModelError, OutputError
from lowbit.graph import io
from lowbit.graph.session import session
from lowbit.normalize.normalize import normalize

LINEAR = """g (float[2,64] x) => (float[2,64] y) {
  m = MatMul(x, w)
  y = Add(m, b)
}"""


@pytest.fixture
def linear(parse, floats) -> onnx.ModelProto:
    return parse(LINEAR, {"w": floats(64, 64), "b": floats(64)})


@pytest.fixture
def external(linear, tmp_path) -> pathlib.Path:
    """Write the model with its weights beside it."""
    path = tmp_path / "external" / "m.onnx"
    path.parent.mkdir()
    copy = onnx.ModelProto()
    copy.CopyFrom(linear)
    onnx.save(copy, path, save_as_external_data=True, location="m.bin", size_threshold=0)
    return path


@pytest.mark.parametrize("kind", ["path", "text", "bytes", "bytearray", "proto", "ir"])
def test_a_model_loads_from(kind: str, linear, tmp_path, floats, assert_same) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(linear, path)
    source = {
        "path": path,
        "text": str(path),
        "bytes": path.read_bytes(),
        "bytearray": bytearray(path.read_bytes()),
        "proto": linear,
        "ir": ir.from_proto(linear),
    }[kind]

    model = io.load(source)

    assert_same(linear, model, {"x": floats(2, 64)})


def test_a_loaded_model_is_copied(linear) -> None:
    given = ir.from_proto(linear)

    io.load(given).graph[0].name = "changed"

    assert given.graph[0].name != "changed"


def test_external_data_stays_on_disk_and_is_right(external, linear, floats, run) -> None:
    feed = {"x": floats(2, 64)}

    model = io.load(external)
    with session(model) as running:
        outputs = running.run(["y"], feed)

    assert all(
        isinstance(v.const_value, ir.ExternalTensor) for v in model.graph.initializers.values()
    )
    np.testing.assert_array_equal(outputs[0], run(linear, feed)[0])


def test_external_data_of_attributes_is_found_and_run(linear, tmp_path, floats, run) -> None:
    weight = linear.graph.initializer.pop(0)
    constant = helper.make_node("Constant", [], [weight.name], value=weight)
    linear.graph.node.insert(0, constant)
    copy = onnx.ModelProto()
    copy.CopyFrom(linear)
    onnx.save(
        copy,
        tmp_path / "m.onnx",
        save_as_external_data=True,
        size_threshold=0,
        convert_attribute=True,
    )
    feed = {"x": floats(2, 64)}

    model = io.load(tmp_path / "m.onnx")
    with session(model) as running:
        outputs = running.run(["y"], feed)

    np.testing.assert_array_equal(outputs[0], run(linear, feed)[0])


def test_a_missing_file_names_the_nearest(tmp_path, linear) -> None:
    onnx.save(linear, tmp_path / "resnet50.onnx")

    with pytest.raises(ModelError, match=r"no such model: .*resnet5.onnx; did you mean 'resnet50"):
        io.load(tmp_path / "resnet5.onnx")


def test_a_missing_folder_is_a_missing_model(tmp_path) -> None:
    with pytest.raises(ModelError, match="no such model"):
        io.load(tmp_path / "nowhere" / "m.onnx")


def test_a_folder_is_refused(tmp_path) -> None:
    with pytest.raises(ModelError, match=r"is a folder; give the \.onnx file"):
        io.load(tmp_path)


def _truncated(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _corrupt(data: bytes) -> bytes:
    return data[:20] + bytes(255 - b for b in data[20:60]) + data[60:]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda _: b"", "empty"),
        (_truncated, "truncated"),
        (_corrupt, "truncated, or another kind of file"),
        (
            lambda _: b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x10\0\0\0\x10\x08\x02\0\0\0",
            "kind of file",
        ),
        (lambda _: b"This is no model, only some text.\n", "another kind of file"),
        (lambda _: b"\x08\x08", "no graph in it"),
    ],
    ids=["empty", "truncated", "corrupt", "png", "text", "no graph"],
)
@pytest.mark.parametrize("given", ["path", "bytes"])
def test_what_is_no_model_is_refused(linear, tmp_path, make, message: str, given: str) -> None:
    data = make(linear.SerializeToString())
    path = tmp_path / "m.onnx"
    path.write_bytes(data)

    with pytest.raises(ModelError, match=message) as caught:
        io.load(path if given == "path" else data)

    assert ("m.onnx" if given == "path" else "the given bytes") in str(caught.value)


def test_something_else_is_refused() -> None:
    with pytest.raises(ModelError, match="from int; give a path, bytes or a ModelProto"):
        io.load(3)


def test_a_model_without_outputs_is_refused(linear) -> None:
    del linear.graph.output[:]

    with pytest.raises(ModelError, match="no outputs"):
        io.load(linear)


def test_a_model_without_operators_is_refused(linear) -> None:
    del linear.opset_import[:]

    with pytest.raises(ModelError, match="imports no standard operator set"):
        io.load(linear)


def test_the_long_name_of_the_standard_domain_is_understood(linear, floats, assert_same) -> None:
    linear.opset_import[0].domain = "ai.onnx"
    for node in linear.graph.node:
        node.domain = "ai.onnx"

    normal = normalize(io.load(linear))

    assert normal.opset_imports[""] == 17
    assert_same(linear, normal, {"x": floats(2, 64)})


def test_missing_weights_are_named(external) -> None:
    external.with_name("m.bin").unlink()

    with pytest.raises(ModelError, match=r"m\.onnx: the weights file m.bin is missing"):
        io.load(external)


def test_truncated_weights_are_named(external) -> None:
    data = external.with_name("m.bin")
    data.write_bytes(data.read_bytes()[:1000])

    with pytest.raises(ModelError, match=r"m.bin ends at byte 1000, but tensor 'w' .* truncated"):
        io.load(external)


def test_missing_weights_of_bytes_are_named(external, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ModelError, match=r"the given bytes: the weights file m\.bin is missing"):
        io.load(external.read_bytes())


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="the system has no symbolic links")
def test_weights_that_are_a_link_out_of_the_folder_are_explained(external, tmp_path) -> None:
    data = external.with_name("m.bin")
    data.rename(tmp_path / "elsewhere.bin")
    data.symlink_to(tmp_path / "elsewhere.bin")

    with pytest.raises(ModelError, match=r"m.bin cannot be read .* put a plain copy of it next to"):
        io.load(external)


def test_saving_and_loading_gives_the_same_model(linear, tmp_path, floats, assert_same) -> None:
    io.save(io.load(linear), tmp_path / "out.onnx")

    assert [p.name for p in tmp_path.iterdir()] == ["out.onnx"]
    assert_same(linear, io.load(tmp_path / "out.onnx"), {"x": floats(2, 64)})
    onnx.checker.check_model(str(tmp_path / "out.onnx"), full_check=True)


def test_a_small_model_with_external_data_is_saved_as_one_file(
    external, linear, tmp_path, floats, run
) -> None:
    io.save(io.load(external), tmp_path / "out.onnx")

    feed = {"x": floats(2, 64)}
    alone = onnx.load(tmp_path / "out.onnx")
    np.testing.assert_array_equal(run(alone, feed)[0], run(linear, feed)[0])


def test_weights_are_written_beside_the_model_when_asked_for(linear, tmp_path, floats, run) -> None:
    io.save(io.load(linear), tmp_path / "out.onnx", external_data=True)

    assert (tmp_path / "out.onnx.data").stat().st_size >= 64 * 4
    feed = {"x": floats(2, 64)}
    whole = onnx.load(tmp_path / "out.onnx")
    np.testing.assert_array_equal(run(whole, feed)[0], run(linear, feed)[0])


def test_the_message_of_a_model_holds_its_external_weights(external, linear, floats, run) -> None:
    feed = {"x": floats(2, 64)}

    proto = io.to_proto(io.load(external))

    np.testing.assert_array_equal(run(proto, feed)[0], run(linear, feed)[0])


def test_weights_too_large_for_one_file_are_saved_beside_it(
    linear, tmp_path, floats, run, monkeypatch
) -> None:
    monkeypatch.setattr(io, "EXTERNAL_DATA_FROM", 1000)

    io.save(io.load(linear), tmp_path / "out.onnx")

    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.onnx", "out.onnx.data"]
    assert (tmp_path / "out.onnx").stat().st_size < 2000
    feed = {"x": floats(2, 64)}
    expected = run(linear, feed)[0]
    np.testing.assert_array_equal(run(onnx.load(tmp_path / "out.onnx"), feed)[0], expected)


def test_a_model_can_be_saved_over_the_weights_it_reads(
    linear, tmp_path, floats, run, monkeypatch
) -> None:
    monkeypatch.setattr(io, "EXTERNAL_DATA_FROM", 1000)
    path = tmp_path / "m.onnx"
    io.save(io.load(linear), path)
    model = io.load(path)
    # The first weight comes last in the new file, so that no offset stays the same.
    model.graph.register_initializer(model.graph.initializers.pop("w"))

    io.save(model, path)

    feed = {"x": floats(2, 64)}
    expected = run(linear, feed)[0]
    for again in (model, io.load(path)):
        with session(again) as running:
            np.testing.assert_array_equal(running.run(["y"], feed)[0], expected)


@pytest.mark.parametrize("external", [False, True])
def test_an_existing_file_is_kept_when_writing_fails(
    linear, tmp_path, monkeypatch, *, external: bool
) -> None:
    path = tmp_path / "out.onnx"
    path.write_bytes(b"precious")
    if external:
        monkeypatch.setattr(io, "EXTERNAL_DATA_FROM", 1000)

    def fail(_proto, target, **_options) -> None:
        pathlib.Path(target).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(onnx, "save", fail)
    monkeypatch.setattr(io, "write_message", fail)

    with pytest.raises(OutputError, match=r"cannot write .*out.onnx: No space left on device"):
        io.save(io.load(linear), path)

    assert path.read_bytes() == b"precious"
    assert [p.name for p in tmp_path.iterdir()] == ["out.onnx"]


def test_an_interrupted_write_leaves_nothing_behind(linear, tmp_path, monkeypatch) -> None:
    def interrupt(*_arguments, **_options) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(io, "write_message", interrupt)

    with pytest.raises(KeyboardInterrupt):
        io.save(io.load(linear), tmp_path / "out.onnx")

    assert not list(tmp_path.iterdir())


def test_a_full_temporary_folder_is_explained(linear, monkeypatch) -> None:
    def fail(*_arguments, **_options) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(onnx, "save", fail)

    with (
        pytest.raises(OutputError, match=r"temporary copy .* No space left on device; set TMPDIR"),
        io.as_file(io.load(linear)),
    ):
        pass


def test_a_file_that_may_not_be_read_is_named(linear, tmp_path, monkeypatch) -> None:
    onnx.save(linear, tmp_path / "m.onnx")

    def refuse(*_arguments, **_options) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(onnx, "load", refuse)

    with pytest.raises(ModelError, match=r"cannot read .*m\.onnx: Permission denied"):
        io.load(tmp_path / "m.onnx")


def test_a_message_that_contradicts_itself_is_refused(linear) -> None:
    linear.graph.initializer[0].data_type = 99

    with pytest.raises(ModelError, match=r"the given ModelProto is not a readable ONNX model"):
        io.load(linear)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "bool"])
def test_small_tensors_of_a_message_are_read_once(dtype: str, monkeypatch) -> None:
    data = np.arange(6).reshape(2, 3).astype(dtype)
    graph = helper.make_graph(
        [helper.make_node("Identity", ["w"], ["y"])],
        "g",
        [],
        [helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(data.dtype), [2, 3])],
        [numpy_helper.from_array(data, "w")],
    )
    reads = []
    read = ir.TensorProtoTensor.numpy
    monkeypatch.setattr(ir.TensorProtoTensor, "numpy", lambda t: reads.append(t) or read(t))

    tensor = io.load(helper.make_model(graph)).graph.initializers["w"].const_value

    for _ in range(3):
        assert tensor.numpy().dtype == data.dtype
        np.testing.assert_array_equal(tensor.numpy(), data)
    assert tuple(tensor.shape) == (2, 3)
    assert tensor.name == "w"
    assert len(reads) == 1


def test_large_tensors_of_a_message_are_not_copied(parse, floats) -> None:
    model = io.load(parse(LINEAR, {"w": floats(64, 1024), "b": floats(1024)}))

    assert isinstance(model.graph.initializers["w"].const_value, ir.TensorProtoTensor)
