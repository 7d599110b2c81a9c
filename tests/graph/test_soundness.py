"""What is wrong with a model is named when it is read, in one sentence, within a moment."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers.small_models import small_cnn
from onnx import TensorProto, helper, numpy_helper

import lowbit
from lowbit.errors import ModelError
from lowbit.graph import io


def _load(model: onnx.ModelProto) -> None:
    io.load(model)


def test_an_input_that_nobody_produces_is_named() -> None:
    model = small_cnn()
    model.graph.node[1].input[0] = "nobody"

    with pytest.raises(ModelError, match="reads 'nobody', which is no input and no weight"):
        _load(model)


def test_an_output_that_nobody_produces_is_named() -> None:
    model = small_cnn()
    model.graph.output[0].name = "nobody"

    with pytest.raises(ModelError, match="the graph's outputs reads 'nobody'"):
        _load(model)


def test_a_branch_reads_what_is_around_it_and_nothing_else(parse) -> None:
    text = """g (bool p, float[2] x) => (float[2] y) {
          z = Abs(x)
          y = If(p) <
            then_branch = t () => (float[2] a) { a = Neg(z) },
            else_branch = e () => (float[2] b) { b = Neg(%s) }
          >
        }"""
    _load(parse(text % "z"))

    with pytest.raises(ModelError, match="reads 'a'"):
        _load(parse(text % "a"))


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.dims.append(2),
        lambda t: t.dims.append(-1),
        lambda t: t.dims.append(1 << 40),
        lambda t: setattr(t, "raw_data", t.raw_data[:-1]),
        lambda t: setattr(t, "raw_data", t.raw_data + b"\0\0\0\0"),
        lambda t: setattr(t, "data_type", TensorProto.DOUBLE),
        lambda t: setattr(t, "data_type", TensorProto.UNDEFINED),
    ],
)
def test_data_that_do_not_fit_their_shape_are_named(change) -> None:
    model = small_cnn()
    change(model.graph.initializer[0])

    with pytest.raises(ModelError, match=model.graph.initializer[0].name):
        _load(model)


def test_names_of_a_megabyte_are_refused() -> None:
    for place in ("node", "output", "weight"):
        model = small_cnn()
        word = "n" * (1 << 20)
        if place == "node":
            model.graph.node[0].name = word
        elif place == "output":
            model.graph.node[0].output[0] = word
            model.graph.node[1].input[0] = word
        else:
            model.graph.node[0].input[1] = word
            model.graph.initializer[0].name = word

        with pytest.raises(ModelError, match="a name in it has 1048576 characters") as caught:
            _load(model)
        assert len(str(caught.value)) < 500


def _functions(bodies: dict[str, list[str]]) -> onnx.ModelProto:
    """Return a model whose functions each call the named ones in turn."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    model = small_cnn()
    for name, callees in bodies.items():
        nodes, last = [], "a"
        for index, callee in enumerate(callees):
            domain = "" if callee == "Abs" else "own"
            nodes.append(helper.make_node(callee, [last], [f"v{index}"], domain=domain))
            last = f"v{index}"
        model.functions.append(helper.make_function("own", name, ["a"], [last], nodes, opsets))
    model.opset_import.append(helper.make_opsetid("own", 1))
    last = model.graph.output[0].name
    model.graph.node.append(helper.make_node(next(iter(bodies)), [last], ["end"], domain="own"))
    model.graph.output.append(helper.make_tensor_value_info("end", TensorProto.FLOAT, None))
    return model


@pytest.mark.parametrize("bodies", [{"F": ["F"]}, {"F": ["G"], "G": ["H"], "H": ["G"]}])
def test_functions_that_call_themselves_are_refused(bodies) -> None:
    with pytest.raises(ModelError, match="calls itself"):
        lowbit.plan(_functions(bodies))


def test_functions_that_grow_without_end_are_refused_before_they_are_inlined() -> None:
    deep = {f"F{i}": [f"F{i + 1}"] * 2 for i in range(40)} | {"F40": ["Abs"]}

    with pytest.raises(ModelError, match=r"1\.1e\+12 nodes once its functions are inlined"):
        lowbit.plan(_functions(deep))


def test_functions_of_a_usual_size_are_inlined() -> None:
    plan = lowbit.plan(_functions({"F": ["G", "G"], "G": ["Abs", "Abs"]}))

    assert sum(row.op_type == "Abs" for row in plan.float_nodes) == 4


def _transposed(perm: list[int]) -> onnx.ModelProto:
    model = small_cnn()
    last = model.graph.output[0].name
    model.graph.node.append(helper.make_node("Transpose", [last], ["end"], "turn", perm=perm))
    model.graph.output[0].name = "end"
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model


@pytest.mark.parametrize("perm", [[0, 0], [5, 7], [0], [-1, 0]])
def test_a_permutation_that_is_none_is_refused(perm) -> None:
    size = {value.name: value for value in small_cnn().graph.input}
    feed = {name: np.zeros((1, 3, 8, 8), np.float32) for name in size}

    with pytest.raises(lowbit.LowbitError):
        lowbit.quantize(_transposed(perm), data=[feed])


def test_an_attribute_that_cannot_be_written_is_refused() -> None:
    model = small_cnn()
    model.graph.node[0].attribute.append(onnx.AttributeProto(name="odd"))

    with pytest.raises(ModelError):
        lowbit.plan(model)


def test_weights_that_are_not_finite_are_named_before_calibration() -> None:
    for value in (np.nan, np.inf):
        model = small_cnn()
        array = numpy_helper.to_array(model.graph.initializer[0]).copy()
        array.flat[3] = value
        name = model.graph.initializer[0].name
        model.graph.initializer[0].CopyFrom(numpy_helper.from_array(array, name))

        with pytest.raises(lowbit.LowbitError, match=f"{name}.*NaN or infinite"):
            lowbit.quantize(model, data=iter(_one_feed(model)))


def _one_feed(model: onnx.ModelProto) -> list[dict[str, np.ndarray]]:
    value = model.graph.input[0]
    sizes = [d.dim_value or 1 for d in value.type.tensor_type.shape.dim]
    return [{value.name: np.ones(sizes, np.float32)}]


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"PK\x03\x04 data.pkl", "zip archive, as PyTorch"),
        (b"\x89HDF\r\n", "HDF5"),
        (b"\x1c\0\0\0TFL3", "TensorFlow Lite"),
        (b'\x40\0\0\0\0\0\0\0{"weight"', "safetensors"),
        (b"version https://git-lfs.github.com/spec/v1", "Git LFS"),
        (b"<!DOCTYPE html><html>", "web page"),
        (b"GIF89a", "may be truncated, or another kind of file"),
    ],
)
def test_another_kind_of_file_is_told_by_its_first_bytes(
    tmp_path, content: bytes, kind: str
) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)

    with pytest.raises(ModelError, match=kind):
        io.load(path)
