import msgspec
import numpy as np
import onnx
import pytest
from helpers.token_models import run_tokens, token_feeds, token_model
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

import lowbit
from lowbit.config.presets import find_preset
from lowbit.config.specs import DynamicSpec, Rule
from lowbit.emit.dynamic import DynamicNodes
from lowbit.planning.plan import TensorPlan


def test_the_model_is_standard_onnx_and_fused_kernels_agree_with_the_reference() -> None:
    made = lowbit.quantize(token_model(opset=19), preset="DYNAMIC8").model

    onnx.checker.check_model(made, full_check=True)
    assert {node.domain for node in made.graph.node} == {""}
    for feed in token_feeds():
        reference = ReferenceEvaluator(made).run(None, feed)[0]
        np.testing.assert_allclose(
            run_tokens(made, feed, exact=True), reference, rtol=1e-4, atol=1e-4
        )
        # Another order of sums may move an activation to the next integer.
        np.testing.assert_allclose(run_tokens(made, feed), reference, atol=0.05)


def test_residual_sums_read_the_float_value() -> None:
    made = lowbit.quantize(token_model(), preset="DYNAMIC8").model

    reads = {node.name: list(node.input) for node in made.graph.node}
    assert "n" in reads["residual"]
    assert reads["up_proj_MatMulInteger"] == [
        "n_DynamicQuantizeLinear_Output",
        "up_quantized",
        "n_DynamicQuantizeLinear_ZeroPoint",
    ]
    assert "DequantizeLinear" not in {node.op_type for node in made.graph.node}


def test_a_product_with_weights_of_another_kind_reads_a_dequantizer() -> None:
    weight = lowbit.IntegerSpec(format=lowbit.IntegerFormat.UINT8, symmetric=False)
    config = msgspec.structs.replace(
        find_preset("DYNAMIC8"), rules=(Rule(name="up_proj", weight=weight),)
    )

    made = lowbit.quantize(token_model(), config=config).model

    reads = {node.name: list(node.input) for node in made.graph.node}
    assert reads["up_proj"] == ["n_DequantizeLinear_Output", "up_DequantizeLinear_Output"]
    feed, floats = token_feeds()[0], token_model()
    noise = run_tokens(made, feed) - run_tokens(floats, feed)
    assert (noise**2).mean() < 1e-3 * (run_tokens(floats, feed) ** 2).mean()


def test_no_product_saturates_in_16_bits() -> None:
    """Whatever the activations are: the worst are 255 beside weights of one sign."""
    made = lowbit.quantize(token_model(), preset="DYNAMIC8").model

    constants = {c.name: numpy_helper.to_array(c) for c in made.graph.initializer}
    for name in ("up", "down", "head.weight"):
        codes = constants[f"{name}_quantized"].astype(np.int64)
        pairs = codes.reshape(len(codes) // 2, 2, -1)
        for sign in (1, -1):
            assert 255 * np.maximum(sign * pairs, 0).sum(axis=1).max() <= 2**15 - 1


def test_constants_have_no_dynamic_scale() -> None:
    tensor = TensorPlan(
        name="w", role="weight", spec=DynamicSpec(), leader="w", observe="w", why="test"
    )
    with pytest.raises(TypeError, match="'w' is a constant"):
        DynamicNodes.weight(object(), tensor, lambda: np.zeros(1))
