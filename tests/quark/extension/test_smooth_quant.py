"""AMD Quark's SmoothQuant: its arithmetic, and the same function."""

from __future__ import annotations

import msgspec
import numpy as np
import onnx_ir as ir
import pytest
from helpers.chains import chain, node

from lowbit.config.config import QuantConfig
from lowbit.config.extensible import decode_json
from lowbit.config.files import config_json
from lowbit.config.presets import find_preset
from lowbit.errors import ConfigError
from lowbit.graph.session import session
from lowbit.quark.extension.smooth_quant import QuarkSmoothQuant, quark_factors
from lowbit.transforms.implementation import Context, TransformedModel

# Channels of very unlike sizes, as after the normalizations of transformers.
_UNEVEN = np.exp(np.linspace(-3, 3, 8)).astype(np.float32)
_CONSTANTS = {"gamma": _UNEVEN, "beta": _UNEVEN[::-1].copy(), "w": (8, 6)}


def samples(count: int = 4) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(7)
    return [{"x": rng.normal(size=(1, 3, 8, 8)).astype(np.float32)} for _ in range(count)]


def smooth(model: ir.Model, alpha: float) -> TransformedModel:
    config = QuarkSmoothQuant(alpha=alpha)
    return config.implementation().apply(model, config, Context(data=samples()))


def check_same(model: ir.Model, result: TransformedModel) -> None:
    with session(model) as before, session(result.model) as after:
        for feed in samples():
            want, got = before.run(["y"], feed)[0], after.run(["y"], feed)[0]
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * abs(want).max())


def test_quarks_is_a_mul_for_each_matmul_in_its_arithmetic() -> None:
    model = chain(
        node("LayerNormalization", "x gamma beta", "n"), node("MatMul", "n w", "q"), node("MatMul", "n u2", "k"),
        node("Add", "q k", "y"), u2=(8, 6), **_CONSTANTS,
    )  # fmt: skip
    with session(model, ["n"]) as running:
        x = np.concatenate([running.run(["n"], f)[0].reshape(-1, 8) for f in samples()])
    weight = model.graph.initializers["w"].const_value.numpy()

    result = smooth(model, 0.6)

    s = abs(x).max(axis=0) ** 0.6 / (abs(weight).max(axis=1) + 1e-9) ** 0.4
    constants = result.model.graph.initializers
    np.testing.assert_allclose(
        constants["n_q_node_smooth_scale"].const_value.numpy(), 1 / (s + 1e-9), rtol=1e-5
    )
    np.testing.assert_allclose(constants["w"].const_value.numpy(), weight * s[:, None], rtol=1e-5)
    assert sum(n.op_type == "Mul" for n in result.model.graph) == 2
    check_same(model, result)


def test_quarks_keeps_the_weights_of_a_channel_the_data_does_not_show() -> None:
    s = quark_factors(np.float32([0, 4]), np.float32([2, 1]), 0.5)

    np.testing.assert_allclose(s, [1, 2], rtol=1e-6)


def test_a_matmul_of_one_input_and_no_weights_stays() -> None:
    model = chain(node("MatMul", "x x", "a"), node("MatMul", "a w", "y"), w=(8, 6))

    result = smooth(model, 0.5)

    assert [n.op_type for n in result.model.graph] == ["MatMul", "Mul", "MatMul"]
    assert result.notes == ("smoothed like Quark: a Mul before 1 MatMul",)
    check_same(model, result)


def test_without_a_matmul_or_data_the_model_is_itself() -> None:
    plain = chain(node("Conv", "x k", "y"), k=(2, 3, 1, 1))
    matmul = chain(node("MatMul", "x w", "y"), w=(8, 6))
    config = QuarkSmoothQuant()
    does = config.implementation()

    assert not does.applies(plain, config)
    assert does.apply(plain, config, Context(data=samples())).model is plain
    assert does.applies(matmul, config)
    assert does.apply(matmul, config, Context()).model is matmul


@pytest.mark.parametrize("alpha", [-0.1, 1.5])
def test_an_alpha_out_of_range_is_refused(alpha: float) -> None:
    with pytest.raises(ConfigError, match=f"alpha is {alpha}; it must lie between 0 and 1"):
        QuarkSmoothQuant(alpha=alpha)


def test_a_configuration_keeps_it_in_a_file() -> None:
    config = msgspec.structs.replace(find_preset("A8W8"), smooth_quant=QuarkSmoothQuant(alpha=0.3))

    assert decode_json(config_json(config), QuantConfig) == config


def test_it_is_done_whether_it_helps_or_not() -> None:
    assert not QuarkSmoothQuant.is_optional
