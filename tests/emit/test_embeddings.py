from collections import Counter

import msgspec
import numpy as np
import onnx
import pytest
from helpers.token_models import run_tokens, token_feeds, token_model
from onnx import numpy_helper

import lowbit
from lowbit.config.config import QuantConfig
from lowbit.config.presets import find_preset
from lowbit.numerics.affine import dequantize


def _made(config: QuantConfig, *, gemm: bool = False) -> tuple[onnx.ModelProto, np.ndarray]:
    """Return the model, and the table as its integers and scales stand for it."""
    result = lowbit.quantize(token_model(gemm=gemm), config=config)
    params = result.params.tensors["words"]
    codes = result.state.weights.tensors["words"]()
    return result.model, dequantize(codes, params)


def _embedding(model: onnx.ModelProto, feed: dict) -> np.ndarray:
    """Return the rows that the model computes for the tokens."""
    value = onnx.helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, None)
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    probe.graph.output.insert(0, value)
    return run_tokens(probe, feed, output="w")


@pytest.mark.parametrize("preset", ["DYNAMIC8", "W8", "W4"])
@pytest.mark.parametrize("group_size", [None, 16, 24, 48])
@pytest.mark.parametrize("domain", ["auto", "ai.onnx"])
def test_the_rows_are_those_of_the_table(preset: str, group_size: int | None, domain: str) -> None:
    config = msgspec.structs.replace(find_preset(preset), domain=domain)
    if group_size is not None and preset != "DYNAMIC8":
        config = config.with_group_size(group_size)

    model, table = _made(config)

    onnx.checker.check_model(model, full_check=True)
    for feed in token_feeds():
        np.testing.assert_allclose(_embedding(model, feed), table[feed["ids"]], rtol=1e-6)
    if domain == "ai.onnx":
        assert {node.domain for node in model.graph.node} == {""}


def test_rows_are_picked_before_they_are_dequantized() -> None:
    for preset, expected in (
        ("W8", {"Gather": 3, "Cast": 1, "GatherBlockQuantized": 0}),
        ("W4", {"Gather": 1, "GatherBlockQuantized": 1}),
    ):
        counts = Counter(n.op_type for n in _made(find_preset(preset))[0].graph.node)
        assert {name: counts[name] for name in expected} == expected
    counts = Counter(n.op_type for n in _made(find_preset("W8").with_group_size(16))[0].graph.node)
    assert (counts["Gather"], counts["Cast"]) == (3, 0)


@pytest.mark.parametrize("preset", ["W8", "W4"])
def test_a_head_that_shares_the_table_reads_the_same_integers(preset: str) -> None:
    config = msgspec.structs.replace(find_preset(preset), skip_rewrites=("gemm_to_matmul",))

    model, table = _made(config, gemm=True)

    stored = [c for c in model.graph.initializer if tuple(c.dims) == table.shape]
    assert [c.name for c in stored] == ["words_quantized"]
    assert numpy_helper.to_array(stored[0]).shape == table.shape
    feed = token_feeds()[0]
    floats = run_tokens(token_model(gemm=True), feed)
    noise = run_tokens(model, feed) - floats
    assert (noise**2).mean() < 0.02 * (floats**2).mean()
