"""Functions in the file: their bodies give, in onnxruntime, what ``lowbit.numerics.blocks`` gives."""

from __future__ import annotations

import pathlib

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from lowbit.config.specs import BLOCKS, BfpSpec, MxSpec
from lowbit.emit.functions import (
    DOMAIN,
    Form,
    Functions,
    block_body,
    block_shape,
    form_attributes,
    number,
)
from lowbit.graph.editing import GraphEditor
from lowbit.numerics.blocks import Element, Rounding
from lowbit.scales.formats import rounded_values

SPECS = {
    **BLOCKS,
    "BFP16_AWAY": BfpSpec(rounding=Rounding.AWAY),
    "BFP16_UP": BfpSpec(rounding=Rounding.UP),
    "MXINT8_AWAY": MxSpec(element=Element.INT8, rounding=Rounding.AWAY),
}


def _session(spec: BfpSpec | MxSpec, axis: int, rank: int, opset: int = 17) -> ort.InferenceSession:
    return _run_form(spec, axis, rank, form_attributes(Form.PADDED), opset)


def _run_form(
    spec: BfpSpec | MxSpec, axis: int, rank: int, form: dict, opset: int = 17
) -> ort.InferenceSession:
    attributes = {"axis": axis, **form}
    call = ", ".join(f"{name} = {value}" for name, value in attributes.items())
    return _run_body(call, ", ".join(attributes), block_body(spec, opset), rank, opset)


def _calling(call: str, attribute: str, body: str, rank: int, opset: int) -> onnx.ModelProto:
    """Return a model that calls a function of this body once."""
    dims = ", ".join(f"d{i}" for i in range(rank))
    text = f"""<ir_version: 8, opset_import: ["" : {opset}, "test" : 1]>
        graph (float[{dims}] x) => (float[{dims}] y) {{ y = test.Block <{call}> (x) }}
        <domain: "test", opset_import: ["" : {opset}]>
        Block <{attribute}> (x) => (y) {{ {body} }}"""
    return onnx.parser.parse_model(text)


def _run_body(call: str, attribute: str, body: str, rank: int, opset: int) -> ort.InferenceSession:
    model = _calling(call, attribute, body, rank, opset)
    onnx.checker.check_model(model)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(model.SerializeToString(), options)


def _hard_numbers() -> np.ndarray:
    """Return numbers of all sizes: ties, powers of two and their neighbours, extremes."""
    rng = np.random.default_rng(5)
    any_float = rng.integers(0, 2**32, 6000, np.uint32).view(np.float32)
    powers = np.exp2(np.arange(-140, 128)).astype(np.float32)
    near = np.concatenate([np.nextafter(powers, np.float32(d)) for d in (0, np.inf)])
    ties = (rng.integers(-512, 512, 2000) / 4).astype(np.float32)
    usual = rng.normal(0, 3, 6000).astype(np.float32)
    scaled = usual * np.exp2(rng.integers(-100, 100, 6000)).astype(np.float32)
    special = np.array([0, -0.0, np.inf, -np.inf, np.nan, 3.4e38, 1e-45], np.float32)
    return np.concatenate([any_float, powers, -powers, near, ties, usual, scaled, special])


@pytest.mark.parametrize("name", SPECS)
def test_values_of_any_size_are_exact(name: str) -> None:
    spec = SPECS[name]
    alone = _hard_numbers()
    alone = np.pad(alone, (0, -len(alone) % 64)).reshape(-1, 64)
    alike = np.random.default_rng(6).normal(0, 1, (500, 64)).astype(np.float32)
    # Blocks whose numbers are of one size have more than one nonzero code.
    x = np.concatenate([alone, alike, alike * np.float32(2.0**-120), alike * np.float32(2.0**120)])

    (got,) = _session(spec, 1, 2).run(None, {"x": x})

    np.testing.assert_array_equal(got, rounded_values(x, spec, 1))


@pytest.mark.parametrize("name", ["BFP16", "MX6", "MXINT8", "MXFP4E2M1"])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((7,), 0), ((40,), -1), ((3, 5), 0), ((2, 37, 4), 1), ((2, 3, 33), -1), ((1, 16, 5, 5), 1)],
)
def test_any_shape_and_axis(name: str, shape: tuple[int, ...], axis: int) -> None:
    x = np.random.default_rng(7).normal(size=shape).astype(np.float32)

    (got,) = _session(SPECS[name], axis, len(shape)).run(None, {"x": x})

    np.testing.assert_array_equal(got, rounded_values(x, SPECS[name], axis))


@pytest.mark.parametrize("opset", [13, 18, 21])
@pytest.mark.parametrize("name", ["BFP16", "MX9", "MXFP8E4M3"])
def test_every_operator_set(name: str, opset: int) -> None:
    x = np.random.default_rng(8).normal(size=(2, 20, 3)).astype(np.float32)

    (got,) = _session(SPECS[name], 1, 3, opset).run(None, {"x": x})

    np.testing.assert_array_equal(got, rounded_values(x, SPECS[name], 1))


@pytest.mark.parametrize("name", ["BFP16", "MX6", "MXINT8", "MXFP4E2M1"])
@pytest.mark.parametrize(
    ("shape", "axis"), [((32,), 0), ((3, 64), 1), ((2, 32, 5), 1), ((2, 3, 96, 4), 2)]
)
def test_whole_blocks_need_no_padding(name: str, shape: tuple[int, ...], axis: int) -> None:
    spec, rank = SPECS[name], len(shape)
    x = np.random.default_rng(9).normal(size=shape).astype(np.float32)
    cut = block_shape(spec, axis, rank, shape[axis])

    session = _run_form(spec, axis, rank, form_attributes(Form.WHOLE, cut))

    np.testing.assert_array_equal(session.run(None, {"x": x})[0], rounded_values(x, spec, axis))


def test_what_is_stored_is_left_alone() -> None:
    x = np.random.default_rng(9).normal(size=(3, 5)).astype(np.float32)

    session = _run_form(SPECS["MX6"], 1, 2, form_attributes(Form.STORED))

    np.testing.assert_array_equal(session.run(None, {"x": x})[0], x)


@pytest.mark.parametrize("form", Form)
def test_a_loaded_model_has_no_branches_left(form: Form, tmp_path: pathlib.Path) -> None:
    """A form is chosen by a constant, so onnxruntime takes the branch once."""
    spec = SPECS["MXFP4E2M1"]
    shape = block_shape(spec, 1, 2, 64) if form is Form.WHOLE else None
    given = form_attributes(form) if shape is None else form_attributes(form, shape)
    attributes = {"axis": 1, **given}
    call = ", ".join(f"{name} = {value}" for name, value in attributes.items())
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "loaded.onnx")
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC

    model = _calling(call, ", ".join(attributes), block_body(spec, 17), 2, 17)
    ort.InferenceSession(model.SerializeToString(), options)

    left = {node.op_type for node in onnx.load(tmp_path / "loaded.onnx").graph.node}
    assert "If" not in left
    assert ("Pad" in left) == (form is Form.PADDED)


def test_a_length_that_is_no_multiple_is_padded() -> None:
    assert block_shape(SPECS["BFP16"], 1, 3, 20) is None
    assert block_shape(SPECS["BFP16"], 1, 3, 24) == [0, 3, 8, -1]
    assert block_shape(SPECS["MX6"], 2, 3, 32) == [0, 0, 2, 8, 2, 1]


def _editor() -> GraphEditor:
    return GraphEditor(
        ir.from_onnx_text(
            '<ir_version: 8, opset_import: ["" : 17]> '
            "g (float[3] x) => (float[3] y) { y = Identity(x) }"
        )
    )


def test_a_body_is_defined_once_and_another_one_is_in_a_domain_of_its_own() -> None:
    editor = _editor()
    functions = Functions(editor)

    domains = [
        functions.define("Twice", "(x) => (y)", "y = Add(x, x)"),
        functions.define("Twice", "(x) => (y)", "y = Add(x, x)"),
        functions.define("Twice", "<n> (x) => (y)", "y = Sum(x, x)"),
        functions.define("Other", "(x) => (y)", "y = Neg(x)"),
        functions.define("Twice", "(x) => (y)", "z = Neg(x) y = Sub(x, z)"),
    ]

    second, third = f"{DOMAIN}.v2", f"{DOMAIN}.v3"
    assert domains == [DOMAIN, DOMAIN, second, DOMAIN, third]
    names = [(f.domain, f.name) for f in editor.model.functions.values()]
    assert names == [(DOMAIN, "Twice"), (second, "Twice"), (DOMAIN, "Other"), (third, "Twice")]
    assert set(editor.model.opset_imports) == {"", DOMAIN, second, third}


def test_nodes_run_their_own_body() -> None:
    editor = _editor()
    functions = Functions(editor)
    first = functions.define("F", "(x) => (y)", "y = Add(x, x)")
    second = functions.define("F", "(x) => (y)", "y = Mul(x, x)")
    x = editor.values["x"]
    nodes = [
        editor.node("F", [x], f"n{i}", domain=domain) for i, domain in enumerate((first, second))
    ]
    for node in nodes:
        node.outputs[0].type, node.outputs[0].shape = x.type, x.shape
    editor.graph.extend(nodes)
    editor.graph.outputs.extend(node.outputs[0] for node in nodes)
    model = ir.to_proto(editor.finish())

    onnx.checker.check_model(model, full_check=True)
    session = ort.InferenceSession(model.SerializeToString())
    found = session.run(["n0_Output", "n1_Output"], {"x": np.array([1, 3, 5], np.float32)})

    assert [array.tolist() for array in found] == [[2, 6, 10], [1, 9, 25]]


def test_numbers_that_older_parsers_do_not_read_are_refused() -> None:
    with pytest.raises(ValueError, match="least normal"):
        number(2.0**-140)


@pytest.mark.parametrize("value", [0.1, -65504.0, 3.4028234663852886e38, 2.0**-126, 1e-7])
def test_numbers_in_bodies_are_exact(value: float) -> None:
    session = _run_body("a = 0", "a", f"k = {number(value)} z = Sub(x, x) y = Add(z, k)", 1, 17)

    (found,) = session.run(None, {"x": np.zeros(1, np.float32)})

    assert found[0] == np.float32(value)
