"""Functions in the file: their bodies give, in onnxruntime, what ``lowbit.numerics.blocks`` gives."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from lowbit.config.specs import BLOCKS, BfpSpec, MxSpec
from lowbit.emit.functions import STORED, Functions, block_body, block_shape, number
from lowbit.graph.editing import GraphEditor
from lowbit.numerics.blocks import Element, Rounding
from lowbit.ops.quantizing import AMD_DOMAIN
from lowbit.scales.formats import rounded_values

SPECS = {
    **BLOCKS,
    "BFP16_AWAY": BfpSpec(rounding=Rounding.AWAY),
    "BFP16_UP": BfpSpec(rounding=Rounding.UP),
    "MXINT8_AWAY": MxSpec(element=Element.INT8, rounding=Rounding.AWAY),
}


def _session(spec: BfpSpec | MxSpec, axis: int, rank: int, opset: int = 17) -> ort.InferenceSession:
    return _run_body(f"axis = {axis}", "axis", block_body(spec, opset), rank, opset)


def _run_body(call: str, attribute: str, body: str, rank: int, opset: int) -> ort.InferenceSession:
    dims = ", ".join(f"d{i}" for i in range(rank))
    text = f"""<ir_version: 8, opset_import: ["" : {opset}, "test" : 1]>
        graph (float[{dims}] x) => (float[{dims}] y) {{ y = test.Block <{call}> (x) }}
        <domain: "test", opset_import: ["" : {opset}]>
        Block <{attribute}> (x) => (y) {{ {body} }}"""
    model = onnx.parser.parse_model(text)
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

    session = _run_body(
        f"block_shape = {cut}", "block_shape", block_body(spec, 17, whole=True), rank, 17
    )

    np.testing.assert_array_equal(session.run(None, {"x": x})[0], rounded_values(x, spec, axis))


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

    calls = [
        functions.define("Twice", "(x) => (y)", "y = Add(x, x)"),
        functions.define("Twice", "(x) => (y)", "y = Add(x, x)"),
        functions.define("Twice", "<n> (x) => (y)", "y = Sum(x, x)"),
        functions.define("Other", "(x) => (y)", "y = Neg(x)"),
        functions.define("Twice", "(x) => (y)", "z = Neg(x) y = Sub(x, z)"),
    ]

    second, third = f"{AMD_DOMAIN}.v2", f"{AMD_DOMAIN}.v3"
    assert [call.domain for call in calls] == [AMD_DOMAIN, AMD_DOMAIN, second, AMD_DOMAIN, third]
    assert {call.overload for call in calls} == {""}
    assert {(f.domain, f.name) for f in editor.model.functions.values()} == {
        (AMD_DOMAIN, "Twice"),
        (second, "Twice"),
        (AMD_DOMAIN, "Other"),
        (third, "Twice"),
    }
    assert set(editor.model.opset_imports) == {"", AMD_DOMAIN, second, third}
    assert editor.model.ir_version == 8


def test_bodies_with_a_general_one_in_common_are_overloads_and_it_is_the_last() -> None:
    """Up to 1.26 onnxruntime runs the last one for all."""
    editor = _editor()
    functions = Functions(editor)
    general = "z = Neg(x) y = Sub(x, z)"

    calls = [
        functions.define("Twice", "(x) => (y)", "y = Add(x, x)", general),
        functions.define("Twice", "(x) => (y)", general, general),
        functions.define("Twice", "(x) => (y)", "y = Sum(x, x)", general),
        functions.define("Twice", "(x) => (y)", "y = Add(x, x)", "y = Other(x)"),
    ]

    assert [call.domain for call in calls] == [
        AMD_DOMAIN,
        AMD_DOMAIN,
        AMD_DOMAIN,
        f"{AMD_DOMAIN}.v2",
    ]
    assert [call.overload for call in calls] == ["", "v2", "v3", ""]
    last = [f for f in editor.model.functions.values() if f.domain == AMD_DOMAIN][-1]
    assert (last.overload, [node.op_type for node in last]) == ("v2", ["Neg", "Sub"])
    # Overloads came with this version of the file format.
    assert editor.model.ir_version == 10


def test_a_runtime_that_runs_the_last_overload_for_all_gives_the_same() -> None:
    spec = SPECS["MX6"]
    general = block_body(spec, 17)
    x = np.random.default_rng(9).normal(size=(3, 64)).astype(np.float32)
    editor = _editor()
    functions = Functions(editor)
    for body in (STORED, block_body(spec, 17, whole=True)):
        functions.define("Block", "<axis, block_shape> (x) => (y)", body, general)
    *_, last = editor.model.functions.values()
    steps = [node.op_type for node in last]

    (got,) = _session(spec, 1, 2).run(None, {"x": x})
    (again,) = _session(spec, 1, 2).run(None, {"x": got})

    assert "Pad" in steps
    np.testing.assert_array_equal(got, rounded_values(x, spec, 1))
    # So it is right after constants too, which hold values of the format.
    np.testing.assert_array_equal(again, got)


def test_nodes_run_their_own_body() -> None:
    editor = _editor()
    functions = Functions(editor)
    calls = [
        functions.define("F", "(x) => (y)", "y = Add(x, x)"),
        functions.define("F", "(x) => (y)", "y = Mul(x, x)"),
    ]
    x = editor.values["x"]
    nodes = [editor.node("F", [x], f"n{i}", domain=call.domain) for i, call in enumerate(calls)]
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
