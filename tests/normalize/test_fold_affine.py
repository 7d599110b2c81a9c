from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from lowbit.graph import io
from lowbit.graph.naming import names_of
from lowbit.normalize.normalize import normalize

CONV_BN = """g (float[1,3,8,8] x) => (float[1,4,8,8] y) {
  [conv] c = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(x, w)
  [bn] y = BatchNormalization<epsilon=0.01>(c, gamma, beta, mean, var)
}"""


def ops(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def test_batchnorm_folds_into_a_convolution_without_bias(parse, floats, norm, assert_same) -> None:
    original = parse(CONV_BN, {"w": floats(4, 3, 3, 3), **norm(4)})

    normal = normalize(io.load(original))

    assert ops(normal) == ["Conv"]
    assert_same(original, normal, {"x": floats(1, 3, 8, 8)})


def test_the_convolution_keeps_its_name_and_answers_to_the_norms(parse, floats, norm) -> None:
    original = parse(CONV_BN, {"w": floats(4, 3, 3, 3), **norm(4)})

    node = normalize(io.load(original)).graph[0]

    assert node.name == "conv"
    assert set(names_of(node)) == {"conv", "bn", "y", "c"}


@pytest.mark.parametrize("group", [1, 2, 4])
def test_batchnorm_folds_into_grouped_convolutions(
    parse, floats, norm, assert_same, group: int
) -> None:
    original = parse(
        f"""g (float[1,4,8,8] x) => (float[1,4,6,6] y) {{
          c = Conv<group={group}>(x, w, b)
          y = BatchNormalization(c, gamma, beta, mean, var)
        }}""",
        {"w": floats(4, 4 // group, 3, 3), "b": floats(4), **norm(4)},
    )

    normal = normalize(io.load(original))

    assert ops(normal) == ["Conv"]
    assert_same(original, normal, {"x": floats(1, 4, 8, 8)})


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("group", [1, 2, 4])
def test_batchnorm_folds_into_transposed_convolutions(
    parse, floats, norm, assert_same, group: int, *, bias: bool
) -> None:
    original = parse(
        f"""g (float[1,4,5,5] x) => (float[1,8,n,n] y) {{
          c = ConvTranspose<group={group}, strides=[2,2]>(x, w{", b" if bias else ""})
          y = BatchNormalization(c, gamma, beta, mean, var)
        }}""",
        {"w": floats(4, 8 // group, 3, 3), "b": floats(8), **norm(8)},
    )

    normal = normalize(io.load(original))

    assert ops(normal) == ["ConvTranspose"]
    assert_same(original, normal, {"x": floats(1, 4, 5, 5)})


@pytest.mark.parametrize("shape", [None, (4,), (1, 4), (2, 4), (2, 1), (1,), ()])
@pytest.mark.parametrize(
    "attributes", ["", "transB=1", "alpha=0.5, beta=2.0, transB=1", "beta=0.0"]
)
def test_batchnorm_folds_into_gemm(
    parse, floats, norm, assert_same, attributes: str, shape: tuple[int, ...] | None
) -> None:
    weight = floats(4, 3) if "transB" in attributes else floats(3, 4)
    bias = {} if shape is None else {"b": np.asarray(floats(*shape))}
    original = parse(
        f"""g (float[2,3] x) => (float[2,4] y) {{
          c = Gemm<{attributes}>(x, w{", b" if bias else ""})
          y = BatchNormalization(c, gamma, beta, mean, var)
        }}""".replace("<>", ""),
        {"w": weight, **bias, **norm(4)},
    )

    normal = normalize(io.load(original))

    assert ops(normal) == ["Gemm"]
    assert_same(original, normal, {"x": floats(2, 3)})


def test_the_folded_bias_of_gemm_is_a_vector(parse, floats, norm) -> None:
    original = parse(
        """g (float[2,3] x) => (float[2,4] y) {
          c = Gemm(x, w, b)
          y = BatchNormalization(c, gamma, beta, mean, var)
        }""",
        {"w": floats(3, 4), "b": floats(1, 4), **norm(4)},
    )

    bias = normalize(io.load(original)).graph[0].inputs[2]

    assert bias.const_value.shape.numpy() == (4,)


def test_a_shared_weight_keeps_its_value_for_the_other_user(
    parse, floats, norm, assert_same
) -> None:
    original = parse(
        """g (float[1,3,8,8] x) => (float[1,4,6,6] y, float[1,4,6,6] z) {
          [first] c = Conv(x, w, b)
          y = BatchNormalization(c, gamma, beta, mean, var)
          h = Relu(x)
          [second] z = Conv(h, w, b)
        }""",
        {"w": floats(4, 3, 3, 3), "b": floats(4), **norm(4)},
    )

    normal = normalize(io.load(original))

    assert sorted(ops(normal)) == ["Conv", "Conv", "Relu"]
    assert_same(original, normal, {"x": floats(1, 3, 8, 8)})


def test_two_norms_after_convolutions_of_one_weight_fold_apart(
    parse, floats, norm, assert_same
) -> None:
    other = {f"{name}2": data for name, data in norm(4).items()}
    original = parse(
        """g (float[1,3,8,8] x) => (float[1,4,6,6] y) {
          c = Conv(x, w)
          p = BatchNormalization(c, gamma, beta, mean, var)
          h = Relu(x)
          d = Conv(h, w)
          q = BatchNormalization(d, gamma2, beta2, mean2, var2)
          y = Add(p, q)
        }""",
        {"w": floats(4, 3, 3, 3), **norm(4), **other},
    )

    normal = normalize(io.load(original))

    assert "BatchNormalization" not in ops(normal)
    assert_same(original, normal, {"x": floats(1, 3, 8, 8)})


@pytest.mark.parametrize("after", ["Relu(c)", "Identity(c)"])
def test_batchnorm_stays_when_its_input_has_another_use(
    parse, floats, norm, assert_same, after: str
) -> None:
    original = parse(
        f"""g (float[1,3,8,8] x) => (float[1,4,6,6] y, float[1,4,6,6] z) {{
          c = Conv(x, w)
          y = BatchNormalization(c, gamma, beta, mean, var)
          z = {after}
        }}""",
        {"w": floats(4, 3, 3, 3), **norm(4)},
    )

    normal = normalize(io.load(original))

    assert "BatchNormalization" in ops(normal)
    assert_same(original, normal, {"x": floats(1, 3, 8, 8)})


def test_batchnorm_stays_when_its_input_is_read_by_a_branch(
    parse, floats, norm, assert_same
) -> None:
    original = parse(
        """g (float[1,3,8,8] x, bool p) => (float[1,4,6,6] y, float[1,4,6,6] z) {
          c = Conv(x, w)
          y = BatchNormalization(c, gamma, beta, mean, var)
          z = If(p) <
            then_branch = t () => (float[1,4,6,6] a) { a = Relu(c) },
            else_branch = e () => (float[1,4,6,6] b) { b = Neg(c) }
          >
        }""",
        {"w": floats(4, 3, 3, 3), **norm(4)},
    )

    normal = normalize(io.load(original))

    assert "BatchNormalization" in ops(normal)
    assert_same(original, normal, {"x": floats(1, 3, 8, 8), "p": np.array(True)})


def test_batchnorm_with_a_varying_statistic_stays(parse, floats, norm, assert_same) -> None:
    weights = {"w": floats(4, 3, 3, 3), **norm(4)}
    mean = weights.pop("mean")
    original = parse(
        """g (float[1,3,8,8] x, float[4] mean) => (float[1,4,6,6] y) {
          c = Conv(x, w)
          y = BatchNormalization(c, gamma, beta, mean, var)
        }""",
        weights,
    )

    normal = normalize(io.load(original))

    assert ops(normal) == ["Conv", "BatchNormalization"]
    assert_same(original, normal, {"x": floats(1, 3, 8, 8), "mean": mean})


def test_a_convolution_whose_weight_is_fed_is_left_alone(parse, floats, norm, assert_same) -> None:
    original = parse(
        """g (float[1,3,8,8] x, float[4,3,3,3] w) => (float[1,4,6,6] y) {
          c = Conv(x, w)
          y = BatchNormalization(c, gamma, beta, mean, var)
        }""",
        norm(4),
    )

    normal = normalize(io.load(original))

    assert ops(normal) == ["Conv", "BatchNormalization"]
    assert_same(original, normal, {"x": floats(1, 3, 8, 8), "w": floats(4, 3, 3, 3)})


def test_a_made_up_bias_takes_no_activations_name(parse, floats, norm, assert_same) -> None:
    original = parse(
        """g (float[1,3,8,8] x) => (float[1,4,6,6] z) {
          a = Conv(x, w)
          y = BatchNormalization(a, gamma, beta, mean, var)
          a_bias = Sigmoid(y)
          z = Mul(a_bias, y)
        }""",
        {"w": floats(4, 3, 3, 3), **norm(4)},
    )

    normal = normalize(io.load(original))

    assert "a_bias" in {v.name for n in normal.graph for v in n.outputs}
    assert_same(original, normal, {"x": floats(1, 3, 8, 8)})


def test_a_variance_below_zero_is_left_to_the_runtime(parse, floats, norm) -> None:
    weights = {**norm(4), "var": np.float32([1, 1, -1, 1])}
    original = parse(CONV_BN, {"w": floats(4, 3, 3, 3), **weights})

    assert ops(normalize(io.load(original))) == ["Conv", "BatchNormalization"]


def test_the_folded_numbers_are_those_of_single_precision(parse, floats, norm) -> None:
    """Other tools fold in float32 and in this order; users compare weights bit by bit."""
    weights = {"w": floats(4, 3, 3, 3), "b": floats(4), **norm(4)}
    original = parse(CONV_BN.replace("(x, w)", "(x, w, b)"), weights)
    factor = weights["gamma"] / np.sqrt(weights["var"] + np.float32(0.01))

    conv = normalize(io.load(original)).graph[0]

    weight, bias = (value.const_value.numpy() for value in conv.inputs[1:])
    np.testing.assert_array_equal(weight, weights["w"] * factor.reshape(4, 1, 1, 1))
    np.testing.assert_array_equal(bias, (weights["b"] - weights["mean"]) * factor + weights["beta"])


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
    ids=["width", "image", "whole", "batch", "rank"],
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


@pytest.mark.parametrize("attributes", ["alpha=0.5", "alpha=-1.5, beta=2.0, transB=1"])
def test_the_factor_of_a_gemm_is_part_of_its_weights(
    parse, floats, assert_same, attributes
) -> None:
    original = parse(
        f"""g (float[2,4] x) => (float[2,4] y, float[2,4] z) {{
          y = Gemm<{attributes}>(x, w, b)
          z = Gemm(x, w, b)
        }}""",
        {"w": floats(4, 4), "b": floats(4)},
    )

    normal = normalize(io.load(original))

    assert [node.attributes.get_float("alpha", 1.0) for node in normal.graph] == [1.0, 1.0]
    assert_same(original, normal, {"x": floats(2, 4)})


def test_the_factor_of_a_gemm_stays_beside_weights_that_vary(parse, floats, assert_same) -> None:
    original = parse(
        "g (float[2,4] x, float[4,4] w) => (float[2,4] y) { y = Gemm<alpha=0.5>(x, w, b) }",
        {"b": floats(4)},
    )

    normal = normalize(io.load(original))

    assert normal.graph[0].attributes.get_float("alpha", 1.0) == 0.5
    assert_same(original, normal, {"x": floats(2, 4), "w": floats(4, 4)})
