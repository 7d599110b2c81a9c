"""The bodies of block operators give, in onnxruntime, what ``lowbit.numerics.blocks`` gives."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from lowbit.config.specs import BLOCKS, BfpSpec, MxSpec
from lowbit.emit.block_functions import block_body, block_shape
from lowbit.numerics.blocks import Element, Rounding
from lowbit.scales.floats import round_as

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

    np.testing.assert_array_equal(got, round_as(x, spec, 1))


@pytest.mark.parametrize("name", ["BFP16", "MX6", "MXINT8", "MXFP4E2M1"])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((7,), 0), ((40,), -1), ((3, 5), 0), ((2, 37, 4), 1), ((2, 3, 33), -1), ((1, 16, 5, 5), 1)],
)
def test_any_shape_and_axis(name: str, shape: tuple[int, ...], axis: int) -> None:
    x = np.random.default_rng(7).normal(size=shape).astype(np.float32)

    (got,) = _session(SPECS[name], axis, len(shape)).run(None, {"x": x})

    np.testing.assert_array_equal(got, round_as(x, SPECS[name], axis))


@pytest.mark.parametrize("opset", [13, 18, 21])
@pytest.mark.parametrize("name", ["BFP16", "MX9", "MXFP8E4M3"])
def test_every_operator_set(name: str, opset: int) -> None:
    x = np.random.default_rng(8).normal(size=(2, 20, 3)).astype(np.float32)

    (got,) = _session(SPECS[name], 1, 3, opset).run(None, {"x": x})

    np.testing.assert_array_equal(got, round_as(x, SPECS[name], 1))


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

    np.testing.assert_array_equal(session.run(None, {"x": x})[0], round_as(x, spec, axis))


def test_a_length_that_is_no_multiple_is_padded() -> None:
    assert block_shape(SPECS["BFP16"], 1, 3, 20) is None
    assert block_shape(SPECS["BFP16"], 1, 3, 24) == [0, 3, 8, -1]
    assert block_shape(SPECS["MX6"], 2, 3, 32) == [0, 0, 2, 8, 2, 1]
