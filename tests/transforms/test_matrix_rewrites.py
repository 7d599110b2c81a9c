from collections.abc import Callable

import numpy as np
import pytest

from lowbit.transforms.rewrites import rewrite

_RANDOM = np.random.default_rng(0)
_X = _RANDOM.normal(size=(3, 4)).astype(np.float32)
_W = _RANDOM.normal(size=(4, 5)).astype(np.float32)
_B = _RANDOM.normal(size=5).astype(np.float32)


@pytest.mark.parametrize("attributes", ["", "<transB=1>", "<transB=1, alpha=0.5, beta=2.0>"])
@pytest.mark.parametrize("bias", [False, True])
def test_gemm_becomes_a_product_and_a_sum(
    normal: Callable, run: Callable, attributes: str, *, bias: bool
) -> None:
    inputs = "x, w, b" if bias else "x, w"
    weights = {"w": _W.T.copy() if "transB" in attributes else _W} | ({"b": _B} if bias else {})
    model = normal(
        f"g (float[3,4] x) => (float[3,5] y) {{ y = Gemm{attributes}({inputs}) }}", weights
    )
    expected = run(model, {"x": _X})["y"]

    made = rewrite(model, ["gemm_to_matmul"])

    assert [n.op_type for n in made.graph] == (["MatMul", "Add"] if bias else ["MatMul"])
    np.testing.assert_allclose(run(made, {"x": _X})["y"], expected, rtol=1e-5, atol=1e-6)


def test_a_gemm_of_two_computed_matrices_stays(normal: Callable) -> None:
    model = normal("g (float[3,4] x, float[4,5] w) => (float[3,5] y) { y = Gemm(x, w) }")

    made = rewrite(model, ["gemm_to_matmul"])

    assert [n.op_type for n in made.graph] == ["Gemm"]


def test_a_transposed_input_stays_with_gemm(normal: Callable) -> None:
    model = normal("g (float[4,3] x) => (float[3,5] y) { y = Gemm<transA=1>(x, w) }", {"w": _W})

    made = rewrite(model, ["gemm_to_matmul"])

    assert [n.op_type for n in made.graph] == ["Gemm"]
