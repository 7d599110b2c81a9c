from collections import Counter

import msgspec
import numpy as np
import onnx
import pytest
from helpers.token_models import run_tokens, token_feeds, token_model

import lowbit
from lowbit.config.config import QuantConfig
from lowbit.config.presets import find_preset
from lowbit.emit.packed import as_bytes


def _config(preset: str, **changes: object) -> QuantConfig:
    fields = {"target": "onnxruntime-nbits", **changes}
    return msgspec.structs.replace(find_preset(preset), **fields)


@pytest.mark.parametrize("preset", ["W8", "W4"])
@pytest.mark.parametrize("group_size", [None, 16, 32])
@pytest.mark.parametrize("symmetric", [False, True])
def test_packed_weights_are_those_before_a_dequantizer(
    preset: str, group_size: int | None, *, symmetric: bool
) -> None:
    config = _config(preset)
    if symmetric and preset == "W4":
        weight = lowbit.IntegerSpec(format=lowbit.IntegerFormat.INT4, group_size=32)
        config = msgspec.structs.replace(config, weight=weight)
    if group_size is not None:
        config = config.with_group_size(group_size)

    packed = lowbit.quantize(token_model(), config=config).model
    plain = lowbit.quantize(
        token_model(), config=msgspec.structs.replace(config, domain="ai.onnx")
    ).model

    counts = Counter(node.op_type for node in packed.graph.node)
    assert (counts["MatMulNBits"], counts["MatMul"]) == (3, 0)
    for feed in token_feeds():
        expected = run_tokens(plain, feed, exact=True)
        # The operator rounds what it multiplies to 8 bits, block by block.
        noise = run_tokens(packed, feed) - expected
        assert (noise**2).mean() < 1e-3 * (expected**2).mean()


def test_a_group_that_the_operator_does_not_know_is_written_as_a_dequantizer() -> None:
    config = _config("W4", final_weight=None).with_group_size(24)
    model = lowbit.quantize(token_model(), config=config).model

    assert "MatMulNBits" not in {node.op_type for node in model.graph.node}
    onnx.checker.check_model(model, full_check=True)


def test_refined_weights_are_packed_too() -> None:
    config = _config("W4_GPTQ")

    result = lowbit.quantize(token_model(), data=token_feeds(8), config=config)

    plain = lowbit.quantize(token_model(), config=_config("W8", weight=config.weight))
    assert Counter(n.op_type for n in result.model.graph.node)["MatMulNBits"] == 3
    stored = [
        {c.name: c.raw_data for c in made.graph.initializer}["up_quantized"]
        for made in (result.model, plain.model)
    ]
    assert stored[0] != stored[1]


def test_two_codes_are_a_byte_the_first_one_low() -> None:
    codes = np.array([[1, 2, 3]])

    assert as_bytes(codes, 4).tolist() == [[0x21, 0x03]]
    assert as_bytes(codes, 8).tolist() == [[1, 2, 3]]
