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


def test_two_norms_behind_convolutions_of_one_weight_fold_apart(
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
