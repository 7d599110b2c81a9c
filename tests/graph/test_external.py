"""Weights beside a model: only from its own folder, and replaced together with the graph."""

from __future__ import annotations

import os
import pathlib

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from lowbit.errors import ModelError
from lowbit.graph import external, io


def _outside(location: str, name: str = "t") -> onnx.TensorProto:
    tensor = numpy_helper.from_array(np.zeros(2, np.float32), name)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    return tensor


def _model(weights: float = 1.0) -> onnx.ModelProto:
    array = np.arange(300, dtype=np.float32) + np.float32(weights)
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [300])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [300])],
        [numpy_helper.from_array(array, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model.producer_name = "lowbit"
    return model


def _weights(path: pathlib.Path) -> np.ndarray:
    """Return the weights as onnx reads them."""
    return numpy_helper.to_array(onnx.load(path).graph.initializer[0])


def _in_initializer(tensor: onnx.TensorProto) -> onnx.ModelProto:
    model = _model()
    model.graph.initializer.append(tensor)
    return model


def _constant(tensor: onnx.TensorProto) -> onnx.NodeProto:
    return helper.make_node("Constant", [], ["c"], value=tensor)


def _in_attribute(tensor: onnx.TensorProto) -> onnx.ModelProto:
    model = _model()
    model.graph.node.insert(0, _constant(tensor))
    return model


def _in_subgraph(tensor: onnx.TensorProto) -> onnx.ModelProto:
    model = _model()
    branch = helper.make_graph([_constant(tensor)], "b", [], [])
    branch.output.append(helper.make_tensor_value_info("c", TensorProto.FLOAT, [2]))
    node = helper.make_node("If", ["p"], ["z"], then_branch=branch, else_branch=branch)
    model.graph.node.append(node)
    model.graph.input.append(helper.make_tensor_value_info("p", TensorProto.BOOL, []))
    return model


def _in_function(tensor: onnx.TensorProto) -> onnx.ModelProto:
    model = _model()
    opsets = [helper.make_opsetid("", 17)]
    model.functions.append(helper.make_function("own", "F", [], ["c"], [_constant(tensor)], opsets))
    model.opset_import.append(helper.make_opsetid("own", 1))
    model.graph.node.append(helper.make_node("F", [], ["z"], domain="own"))
    return model


def _in_sparse(tensor: onnx.TensorProto) -> onnx.ModelProto:
    model = _model()
    indices = numpy_helper.from_array(np.array([0, 1]), "i")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(tensor, indices, [300]))
    return model


PLACES = [_in_initializer, _in_attribute, _in_subgraph, _in_function, _in_sparse]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("location", ["../secret.bin", "a/../../secret.bin", "..\\secret.bin"])
@pytest.mark.parametrize("given", ["path", "bytes", "message"])
def test_weights_outside_the_folder_are_refused_wherever_they_are(
    place, location, given, tmp_path, monkeypatch
) -> None:
    (tmp_path / "secret.bin").write_bytes(bytes(8))
    folder = tmp_path / "folder"
    (folder / "a").mkdir(parents=True)
    monkeypatch.chdir(folder)
    message = place(_outside(location))
    pathlib.Path("m.onnx").write_bytes(message.SerializeToString())
    source = {
        "path": pathlib.Path("m.onnx"),
        "bytes": message.SerializeToString(),
        "message": message,
    }[given]

    with pytest.raises(ModelError, match="outside the model's folder"):
        io.load(source)


@pytest.mark.parametrize("place", PLACES)
def test_absolute_paths_are_refused(place, tmp_path) -> None:
    secret = tmp_path / "secret.bin"
    secret.write_bytes(bytes(8))

    for location in (str(secret), "C:\\secret.bin", ""):
        with pytest.raises(ModelError, match="outside the model's folder"):
            io.load(place(_outside(location)))


@pytest.mark.parametrize("place", PLACES[:-1])
@pytest.mark.parametrize("given", ["path", "bytes", "message"])
def test_links_out_of_the_folder_are_refused(place, given, tmp_path, monkeypatch) -> None:
    (tmp_path / "secret.bin").write_bytes(bytes(8))
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    pathlib.Path("link.bin").symlink_to(tmp_path / "secret.bin")
    message = place(_outside("link.bin"))
    pathlib.Path("m.onnx").write_bytes(message.SerializeToString())
    source = {"path": "m.onnx", "bytes": message.SerializeToString(), "message": message}[given]

    with pytest.raises(ModelError, match=r"link\.bin cannot be read"):
        io.load(source)


@pytest.mark.parametrize("place", PLACES[:-1])
def test_weights_in_the_folder_are_found_wherever_they_are(place, tmp_path) -> None:
    values = np.float32([3, 4])
    (tmp_path / "t.bin").write_bytes(values.tobytes())
    (tmp_path / "m.onnx").write_bytes(place(_outside("t.bin")).SerializeToString())

    proto = io.to_proto(io.load(tmp_path / "m.onnx"))

    arrays = [numpy_helper.to_array(t) for t in external.message_tensors(proto)]
    assert any(array.shape == (2,) and (array == values).all() for array in arrays)
    assert external.locations(proto) == set()


@pytest.mark.parametrize("key", ["offset", "length"])
def test_negative_places_in_a_file_are_refused(key, tmp_path) -> None:
    (tmp_path / "t.bin").write_bytes(bytes(64))
    tensor = _outside("t.bin")
    tensor.external_data.add(key=key, value="-8")
    (tmp_path / "m.onnx").write_bytes(_in_initializer(tensor).SerializeToString())

    with pytest.raises(ModelError):
        io.load(tmp_path / "m.onnx")


def _saved(model: onnx.ModelProto, path: pathlib.Path, **options) -> list[str]:
    io.save(io.load(model), path, **options)
    return sorted(p.name for p in path.parent.iterdir())


@pytest.mark.parametrize("key", ["offset", "length"])
@pytest.mark.parametrize("value", ["abc", "-5", "", "1e3"])
def test_places_in_a_file_that_are_no_numbers_are_refused_by_name(key, value) -> None:
    model = _model()
    model.graph.initializer[0].CopyFrom(_outside("w.bin", "w"))
    model.graph.initializer[0].external_data.add(key=key, value=value)

    with pytest.raises(ModelError, match=rf"tensor 'w' has the {key} '{value}' .*number of bytes"):
        io.load(model)


def test_the_first_weights_have_the_plain_name(tmp_path) -> None:
    path = tmp_path / "m.onnx"

    assert _saved(_model(), path, external_data=True) == ["m.onnx", "m.onnx.data"]
    assert _weights(path)[0] == 1


def test_new_weights_have_a_name_of_their_own_and_the_old_ones_go(tmp_path) -> None:
    path = tmp_path / "m.onnx"
    _saved(_model(), path, external_data=True)

    graph, data = _saved(_model(2.0), path, external_data=True)

    assert (graph, data[:7], data[-5:]) == ("m.onnx", "m.onnx.", ".data")
    assert _weights(path)[0] == 2
    # The same again is the same bytes, and the plain name is taken once it is free.
    before = path.read_bytes()
    assert _saved(_model(3.0), path, external_data=True) == ["m.onnx", "m.onnx.data"]
    assert _weights(path)[0] == 3
    assert _saved(_model(2.0), path, external_data=True) == [graph, data]
    assert path.read_bytes() == before


def test_writing_the_same_twice_keeps_its_weights(tmp_path) -> None:
    path = tmp_path / "m.onnx"
    for _ in range(3):
        _saved(_model(), path, external_data=True)
        assert _weights(path)[0] == 1


def test_one_file_after_two_leaves_one(tmp_path) -> None:
    path = tmp_path / "m.onnx"
    _saved(_model(), path, external_data=True)

    assert _saved(_model(2.0), path) == ["m.onnx"]


def test_weights_that_another_model_reads_stay(tmp_path) -> None:
    path, copy = tmp_path / "m.onnx", tmp_path / "copy.onnx"
    _saved(_model(), path, external_data=True)
    copy.write_bytes(path.read_bytes())

    _saved(_model(2.0), path, external_data=True)

    assert (_weights(path)[0], _weights(copy)[0]) == (2, 1)


def test_weights_that_are_not_ours_stay(tmp_path) -> None:
    path = tmp_path / "m.onnx"
    theirs = _model()
    theirs.producer_name = "another exporter"
    onnx.save(theirs, path, save_as_external_data=True, location="m.onnx.data", size_threshold=0)
    (tmp_path / "m.onnx.notes.data").write_text("mine")

    assert "m.onnx.data" in _saved(_model(2.0), path, external_data=True)
    assert _weights(path)[0] == 2
    assert (tmp_path / "m.onnx.notes.data").read_text() == "mine"


def test_a_model_with_the_longest_name_has_its_weights_beside_it(tmp_path) -> None:
    path = tmp_path / ("n" * 250 + ".onnx")

    for weights in (1.0, 2.0):
        assert len(_saved(_model(weights), path, external_data=True)) == 2
        assert _weights(path)[0] == weights


@pytest.mark.parametrize("stop", ["weights", "graph"])
def test_a_stop_between_the_two_files_leaves_the_old_ones(stop, tmp_path, monkeypatch) -> None:
    path = tmp_path / "m.onnx"
    _saved(_model(), path, external_data=True)
    whole = os.replace

    def replace(source, target) -> None:
        if str(target).endswith(".data") == (stop == "weights"):
            raise KeyboardInterrupt
        whole(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace)
        with pytest.raises(KeyboardInterrupt):
            io.save(io.load(_model(2.0)), path, external_data=True)

    assert _weights(path)[0] == 1
    _saved(_model(2.0), path, external_data=True)
    assert _weights(path)[0] == 2


def test_what_a_check_refuses_replaces_nothing(tmp_path) -> None:
    path = tmp_path / "m.onnx"
    _saved(_model(), path, external_data=True)
    seen = []

    def refuse(file: pathlib.Path) -> None:
        seen.append(_weights(file)[0])
        raise ModelError("no")

    with pytest.raises(ModelError, match="no"):
        io.save(io.load(_model(2.0)), path, external_data=True, check=refuse)

    assert seen == [2]
    assert _weights(path)[0] == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.onnx", "m.onnx.data"]


def test_the_files_of_a_model_are_listed(tmp_path) -> None:
    path = tmp_path / "m.onnx"
    _saved(_model(), path, external_data=True)

    assert io.weight_files(path) == [tmp_path / "m.onnx.data"]
    assert io.weight_files(tmp_path / "none.onnx") == []
    assert isinstance(io.load(path), ir.Model)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_a_pipe_has_no_files_of_weights_and_is_not_waited_for(tmp_path) -> None:
    os.mkfifo(tmp_path / "m.onnx")

    assert io.weight_files(tmp_path / "m.onnx") == []
