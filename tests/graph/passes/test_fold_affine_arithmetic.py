from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from lowbit.graph import io
from lowbit.graph.naming import names_of
from lowbit.normalize.normalize import normalize


def ops(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


@pytest.mark.parametrize(
    "expression",
    ["Mul(c, k)", "Mul(k, c)", "Div(c, k)", "Add(c, k)", "Add(k, c)", "Sub(c, k)", "Sub(k, c)"],
)
@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1, 1), (1, 4, 1, 1), (4, 1, 1)])
@pytest.mark.parametrize("bias", [True, False])
def test_arithmetic_by_a_constant_folds_into_a_convolution(
    parse, floats, assert_same, expression: str, shape: tuple[int, ...], *, bias: bool
) -> None:
    original = parse(
        f"""g (float[1,3,8,8] x) => (float[1,4,6,6] y) {{
          [conv] c = Conv(x, w{", b" if bias else ""})
          [affine] y = {expression}
        }}""",
        {"w": floats(4, 3, 3, 3), "b": floats(4), "k": np.asarray(floats(*shape))},
    )

    normal = normalize(io.load(original))

    assert ops(normal) == ["Conv"]
    assert {"conv", "affine", "y"} <= set(names_of(normal.graph[0]))
    assert_same(original, normal, {"x": floats(1, 3, 8, 8)}, tolerance=1e-4)


@pytest.mark.parametrize("op", ["Mul", "Div", "Add", "Sub"])
@pytest.mark.parametrize("shape", [(), (4,), (1, 4), (1, 1)])
def test_arithmetic_by_a_constant_folds_into_gemm(
    parse, floats, assert_same, op: str, shape: tuple[int, ...]
) -> None:
    original = parse(
        f"""g (float[2,3] x) => (float[2,4] y) {{
          c = Gemm<alpha=0.5, beta=0.25>(x, w, b)
          y = {op}(c, k)
        }}""",
        {"w": floats(3, 4), "b": floats(4), "k": np.asarray(floats(*shape))},
    )

    normal = normalize(io.load(original))

    assert ops(normal) == ["Gemm"]
    assert_same(original, normal, {"x": floats(2, 3)}, tolerance=1e-4)


@pytest.mark.parametrize(
    "shape",
    [(6,), (6, 6), (1, 4, 6, 6), (2, 1, 1, 1), (1, 1, 1, 1, 1)],
    ids=["width", "picture", "whole", "batch", "rank"],
)
def test_a_constant_along_another_axis_is_not_folded(
    parse, floats, assert_same, shape: tuple[int, ...]
) -> None:
    rank = ",".join("abcde"[: max(4, len(shape))])
    original = parse(
        f"""g (float[1,3,8,8] x) => (float[{rank}] y) {{
          c = Conv(x, w)
          y = Add(c, k)
        }}""",
        {"w": floats(4, 3, 3, 3), "k": floats(*shape)},
    )

    normal = normalize(io.load(original))

    assert ops(normal) == ["Conv", "Add"]
    assert_same(original, normal, {"x": floats(1, 3, 8, 8)})


def test_a_constant_that_widens_a_single_channel_is_not_folded(parse, floats, assert_same) -> None:
    original = parse(
        """g (float[1,3,8,8] x) => (float[1,4,6,6] y) {
          c = Conv(x, w)
          y = Mul(c, k)
        }""",
        {"w": floats(1, 3, 3, 3), "k": floats(1, 4, 1, 1)},
    )

    normal = normalize(io.load(original))

    assert ops(normal) == ["Conv", "Mul"]
    assert_same(original, normal, {"x": floats(1, 3, 8, 8)})


@pytest.mark.parametrize("expression", ["Div(k, c)", "Div(c, zero)"])
def test_a_division_that_is_not_linear_is_not_folded(parse, floats, expression: str) -> None:
    original = parse(
        f"""g (float[1,3,8,8] x) => (float[1,4,6,6] y) {{
          c = Conv(x, w)
          y = {expression}
        }}""",
        {"w": floats(4, 3, 3, 3), "k": floats(1), "zero": np.zeros(1, np.float32)},
    )

    assert ops(normalize(io.load(original))) == ["Conv", "Div"]


@pytest.mark.parametrize("residual", ["Add(c, x)", "Add(x, c)", "Mul(c, c)", "Mul(c, d)"])
def test_what_depends_on_another_activation_stays(
    parse, floats, assert_same, residual: str
) -> None:
    original = parse(
        f"""g (float[1,4,8,8] x) => (float[1,4,8,8] y) {{
          c = Conv<pads=[1,1,1,1]>(x, w)
          d = Conv<pads=[1,1,1,1]>(x, v)
          s = {residual}
          y = Add(s, d)
        }}""",
        {"w": floats(4, 4, 3, 3), "v": floats(4, 4, 3, 3)},
    )

    normal = normalize(io.load(original))

    assert sorted(ops(normal)) == sorted(
        ["Conv", "Conv", residual.split("(", maxsplit=1)[0], "Add"]
    )
    assert_same(original, normal, {"x": floats(1, 4, 8, 8)})


def test_a_chain_folds_as_a_whole(parse, floats, norm, assert_same) -> None:
    original = parse(
        """g (float[1,3,5,5] x) => (float[1,4,n,n] y) {
          [up] a = ConvTranspose<strides=[2,2]>(x, w)
          [shift] b = Add(a, k)
          [bn] c = BatchNormalization(b, gamma, beta, mean, var)
          [scale] d = Mul(c, s)
          [flip] e = Sub(one, d)
          y = Relu(e)
        }""",
        {
            "w": floats(3, 4, 2, 2),
            "k": floats(1, 4, 1, 1),
            "s": floats(4, 1, 1),
            "one": np.ones(1, np.float32),
            **norm(4),
        },
    )

    normal = normalize(io.load(original))

    assert ops(normal) == ["ConvTranspose", "Relu"]
    assert {"up", "shift", "bn", "scale", "flip"} <= set(names_of(normal.graph[0]))
    assert_same(original, normal, {"x": floats(1, 3, 5, 5)})


def test_a_factor_alone_adds_no_bias(parse, floats) -> None:
    original = parse(
        """g (float[1,3,8,8] x) => (float[1,4,6,6] y) {
          c = Conv(x, w)
          y = Mul(c, k)
        }""",
        {"w": floats(4, 3, 3, 3), "k": floats(1)},
    )

    assert len(normalize(io.load(original)).graph[0].inputs) == 2


def test_an_offset_leaves_a_shared_weight_shared(parse, floats, assert_same) -> None:
    original = parse(
        """g (float[1,3,8,8] x) => (float[1,4,6,6] y, float[1,4,6,6] z) {
          c = Conv(x, w)
          y = Add(c, k)
          h = Relu(x)
          z = Conv(h, w)
        }""",
        {"w": floats(4, 3, 3, 3), "k": floats(1, 4, 1, 1)},
    )

    normal = normalize(io.load(original))

    assert len({n.inputs[1] for n in normal.graph if n.op_type == "Conv"}) == 1
    assert_same(original, normal, {"x": floats(1, 3, 8, 8)})
