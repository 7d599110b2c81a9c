"""High-bias absorption: exact on the data, and nothing where it could not be."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from helpers.chains import chain, node

from lowbit.config.transforms import CrossLayerEqualization
from lowbit.graph.session import session
from lowbit.transforms.cross_layer import CrossLayer
from lowbit.transforms.implementation import Context, TransformedModel

# Biases from far below to far above what the small weights before them reach.
_BIAS = np.float32([-9, -3, 0, 3, 9, 30])
_CONSTANTS = {
    "b": _BIAS,
    "w2": (4, 6, 3, 3),
    "b2": (4,),
    "d": (6, 1, 2, 2),
    "t": (6, 2, 2, 2),
}
_FIRST = [node("Conv", "x w b", "a"), node("Relu", "a", "r")]


def samples() -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(7)
    return [{"x": rng.normal(size=(1, 3, 8, 8)).astype(np.float32)} for _ in range(4)]


def make(*nodes: onnx.NodeProto) -> ir.Model:
    weight = np.random.default_rng(1).normal(size=(6, 3, 1, 1)).astype(np.float32)
    return chain(*nodes, w=weight, **_CONSTANTS)


def run(model: ir.Model, name: str) -> np.ndarray:
    with session(model, [name]) as running:
        return np.concatenate([running.run([name], feed)[0] for feed in samples()])


def equalize(model: ir.Model, data: list | None = None, **options: object) -> TransformedModel:
    return CrossLayer().apply(
        model, CrossLayerEqualization(**{"headroom": 1.0, **options}), Context(data=data)
    )


def absorbed(model: ir.Model, **changes: object) -> TransformedModel:
    return equalize(model, samples(), absorb=True, largest=1.0, **changes)


@pytest.mark.parametrize(
    "second",
    [
        node("Conv", "r w2 b2", "y"),
        node("Conv", "r w2", "y"),
        node("Conv", "r d", "y", group=6),
        node("Conv", "r w2 b2", "y", auto_pad="VALID", strides=[2, 2]),
    ],
    ids=["bias", "no bias", "depthwise", "valid"],
)
def test_channels_above_zero_give_their_bias_away(second: onnx.NodeProto) -> None:
    model = make(*_FIRST, second)
    least = run(model, "a").min(axis=(0, 2, 3))

    result = absorbed(model)

    count = int((least > 0).sum())
    assert count in (2, 3)
    assert f"absorbed the bias of {count} channels of 6" in result.notes[-1]
    np.testing.assert_allclose(
        run(result.model, "a").min(axis=(0, 2, 3)), np.minimum(least, 0), atol=1e-5
    )
    want = run(model, "y")
    np.testing.assert_allclose(run(result.model, "y"), want, atol=1e-5 * abs(want).max())


def test_layers_after_one_another_and_both_consumers_of_one() -> None:
    model = chain(
        node("Flatten", "x", "f"), node("Gemm", "f w1 c1", "a"), node("Relu", "a", "r"),
        node("Gemm", "r w2 c2", "b"), node("Relu", "b", "s"), node("Gemm", "s w3", "y1"),
        node("Gemm", "s w4 c4", "y2", transB=1), node("Add", "y1 y2", "y"),
        w1=(192, 5), c1=np.float32([900, -9, 9, 800, 700]), w2=(5, 5),
        c2=np.float32([9e4, -9e4, 9e4, 9e4, 0]), w3=(5, 2), w4=(2, 5), c4=(2,),
    )  # fmt: skip

    result = absorbed(model)

    count = sum(int((run(model, name).min(axis=0) > 0).sum()) for name in "ab")
    assert 5 <= count < 10
    assert f"absorbed the bias of {count} channels of 10" in result.notes[-1]
    want = run(model, "y")
    np.testing.assert_allclose(run(result.model, "y"), want, atol=1e-5 * abs(want).max())


@pytest.mark.parametrize(
    "nodes",
    [
        [*_FIRST, node("Conv", "r w2 b2", "y", pads=[1, 1, 1, 1])],
        [*_FIRST, node("Conv", "r w2 b2", "y", pads=[0, 0, 1, 1])],
        [*_FIRST, node("Conv", "r w2 b2", "y", auto_pad="SAME_UPPER")],
        [*_FIRST, node("ConvTranspose", "r t", "y", strides=[2, 2])],
        [*_FIRST, node("Conv", "r w2 b2", "z"), node("ReduceMax", "r", "m", keepdims=0),
         node("Add", "z m", "y")],
        [_FIRST[0], node("Sigmoid", "a", "r"), node("Conv", "r w2 b2", "y")],
        [node("Conv", "x w", "a"), _FIRST[1], node("Conv", "r w2 b2", "y")],
    ],
    ids=["padded", "padded at the end", "padded by itself", "transposed",
         "consumed by another", "no Relu", "no bias to take from"],
)  # fmt: skip
def test_what_cannot_be_exact_stays(nodes: list[onnx.NodeProto]) -> None:
    model = make(*nodes)

    result = absorbed(model)

    assert "0 channels of 0" in result.notes[-1]
    np.testing.assert_array_equal(run(result.model, "y"), run(model, "y"))


def test_headroom_leaves_part_of_the_bias() -> None:
    model = make(*_FIRST, node("Conv", "r w2 b2", "y"))
    least = run(model, "a").min(axis=(0, 2, 3))

    kept = run(absorbed(model, headroom=2.0).model, "a").min(axis=(0, 2, 3))

    np.testing.assert_allclose(kept[least > 0], least[least > 0] / 2, rtol=1e-4)


def test_not_unless_asked_for_and_not_without_data() -> None:
    model = make(*_FIRST, node("Conv", "r w2 b2", "y"))

    assert not any("absorbed" in note for note in equalize(model, samples()).notes)
    assert not any("absorbed" in note for note in equalize(model, absorb=True).notes)


def test_a_transposed_convolution_gives_its_bias_away() -> None:
    model = chain(
        node("ConvTranspose", "x w b", "a", strides=[2, 2]), node("Relu", "a", "r"),
        node("Conv", "r w2 b2", "y"), w=(3, 6, 2, 2), b=_BIAS * 3, w2=(4, 6, 3, 3), b2=(4,),
    )  # fmt: skip
    least = run(model, "a").min(axis=(0, 2, 3))

    result = absorbed(model)

    count = int((least > 0).sum())
    assert count > 0
    assert f"absorbed the bias of {count} channels of 6" in result.notes[-1]
    want = run(model, "y")
    np.testing.assert_allclose(run(result.model, "y"), want, atol=1e-5 * abs(want).max())


def test_a_gemm_with_factors_of_its_own_keeps_its_bias() -> None:
    model = chain(
        node("Flatten", "x", "f"), node("Gemm", "f w1 c1", "a", beta=2.0), node("Relu", "a", "r"),
        node("Gemm", "r w2", "y"), w1=(192, 5), c1=np.float32([900] * 5), w2=(5, 2),
    )  # fmt: skip

    result = absorbed(model)

    assert "0 channels of 0" in result.notes[-1]
    np.testing.assert_array_equal(run(result.model, "y"), run(model, "y"))
