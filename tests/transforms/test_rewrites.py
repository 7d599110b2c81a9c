from __future__ import annotations

import fractions
import math

import numpy as np
import onnx_ir as ir
import pytest

from lowbit.errors import ConfigError
from lowbit.graph.naming import names_of
from lowbit.targets.builtin import BUILTIN
from lowbit.transforms.rewrites import REWRITES, pool_factor, reciprocal_factor, rewrite

EVERYTHING = """g (float[1,4,26,26] x) => (float[1,2,1,1] a, float[1,2,1,1] y, float[1,4,1,1] z) {
  [act] l = LeakyRelu<alpha=0.1>(x)
  [bn] b = BatchNormalization(l, gamma, beta, mean, var)
  [clip] c = Clip(b, zero)
  [mean] p = ReduceMean<axes=[2,3]>(c)
  [gate] s = Sigmoid(p)
  [split] a, d = Split<axis=1>(s)
  [other] y = HardSigmoid<alpha=0.16666667, beta=0.5>(d)
  [pool] z = GlobalAveragePool(l)
}"""


@pytest.fixture
def everything(normal, floats) -> ir.Model:
    weights = {name: floats(4) for name in ("gamma", "beta", "mean")}
    weights["var"] = np.abs(floats(4)) + 0.5
    return normal(EVERYTHING, {**weights, "zero": np.array(0, np.float32)})


def ops(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def test_all_rewrites_together_give_a_sound_model(everything, run, floats, assert_sound) -> None:
    after = rewrite(everything, list(REWRITES))

    assert_sound(everything, after)
    assert not {"Sigmoid", "Split", "ReduceMean", "BatchNormalization", "Clip"} & set(ops(after))
    outputs = run(after, {"x": floats(1, 4, 26, 26)})
    expected = run(everything, {"x": floats(1, 4, 26, 26)})
    assert {name: data.shape for name, data in outputs.items()} == {
        name: data.shape for name, data in expected.items()
    }


def test_the_given_model_is_left_as_it_was(everything) -> None:
    before = ir.to_proto(everything).SerializeToString(deterministic=True)

    rewrite(everything, list(REWRITES))

    assert ir.to_proto(everything).SerializeToString(deterministic=True) == before


def test_a_model_that_nothing_concerns_is_not_copied(normal) -> None:
    model = normal("g (float[1,4] x) => (float[1,4] y) { [act] r = Relu(x) [end] y = Exp(r) }")

    assert rewrite(model, list(REWRITES)) is model


def test_a_model_whose_nodes_are_all_kept_is_not_copied(everything) -> None:
    kept = {node.name for node in everything.graph}

    assert rewrite(everything, list(REWRITES), keep=kept) is everything


def test_every_rewrite_names_the_operators_that_it_changes(everything) -> None:
    for name, each in REWRITES.items():
        nodes = [n for n in everything.graph if n.op_type in each.operators]
        kept = {n.name for n in everything.graph} - {n.name for n in nodes}

        after = rewrite(everything, [name], keep={n.name for n in nodes})

        assert ops(after) == ops(everything), name
        assert rewrite(everything, [name], keep=kept) is not everything or not nodes


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("sigmoid_to_hardsigmoid", "Sigmoid"),
        ("split_to_slice", "Split"),
        ("reduce_mean_to_pool", "ReduceMean"),
        ("batchnorm_to_conv", "BatchNormalization"),
        ("clip_to_relu", "Clip"),
    ],
)
def test_a_rewrite_can_be_skipped(everything, name: str, op: str) -> None:
    assert op in ops(rewrite(everything, list(REWRITES), skip=[name]))


def test_no_rewrites_change_nothing(everything) -> None:
    assert ops(rewrite(everything, [])) == ops(everything)


def test_skipping_what_was_not_asked_for_is_fine(everything) -> None:
    assert "Sigmoid" in ops(rewrite(everything, ["split_to_slice"], skip=["clip_to_relu"]))


def test_nodes_to_keep_stay_as_they_are(everything) -> None:
    after = rewrite(everything, list(REWRITES), keep={"gate", "clip"})

    assert {"Sigmoid", "Clip"} <= set(ops(after))
    assert "Split" not in ops(after)


@pytest.mark.parametrize("where", ["names", "skip"])
def test_an_unknown_rewrite_names_the_nearest(everything, where: str) -> None:
    given = {"names": ["split_to_slice"], "skip": [], where: ["split_to_slices"]}

    with pytest.raises(
        ConfigError, match="unknown rewrite 'split_to_slices'; did you mean 'split_to_slice'"
    ):
        rewrite(everything, **given)


def test_every_rewrite_a_target_names_exists() -> None:
    for target in BUILTIN.values():
        assert {*target.transforms, *target.arithmetic} <= set(REWRITES)


@pytest.fixture
def same(run, assert_sound):
    """Check that a rewrite kept the function."""

    def check(before: ir.Model, after: ir.Model, feed: dict[str, np.ndarray]) -> None:
        assert_sound(before, after)
        expected, actual = run(before, feed), run(after, feed)
        assert list(expected) == list(actual)
        for name, data in expected.items():
            assert np.abs(data).max() > 0.001
            np.testing.assert_allclose(actual[name], data, rtol=1e-5, atol=1e-5)

    return check


@pytest.mark.parametrize(
    ("opset", "split", "shapes"),
    [
        (17, "Split<axis=1>(h, sizes)", "1,1 1,2 1,4"),
        (17, "Split<axis=-1>(h, sizes)", "1,1 1,2 1,4"),
        (18, "Split<axis=1, num_outputs=3>(h)", "1,3 1,3 1,1"),
        (18, "Split<axis=1>(h, sizes)", "1,1 1,2 1,4"),
    ],
    ids=["sizes", "negative axis", "uneven", "sizes at 18"],
)
def test_split_becomes_slices(normal, floats, same, opset: int, split: str, shapes: str) -> None:
    first, second, third = shapes.split()
    before = normal(
        f"""g (float[1,7] x) => (float[{first}] a, float[{second}] b, float[{third}] c) {{
          h = Neg(x)
          [split] a, m, c = {split}
          b = Abs(m)
        }}""",
        {"sizes": np.int64([1, 2, 4])},
        opset=opset,
    )

    after = rewrite(before, ["split_to_slice"])

    assert ops(after) == ["Neg", "Slice", "Slice", "Slice", "Abs"]
    assert all("split" in names_of(n) for n in after.graph if n.op_type == "Slice")
    same(before, after, {"x": floats(1, 7)})


def test_an_even_split_needs_no_sizes(normal, floats, same) -> None:
    before = normal(
        "g (float[2,6,3] x) => (float[2,3,3] a, float[2,3,3] b) { a, b = Split<axis=1>(x) }"
    )

    after = rewrite(before, ["split_to_slice"])

    assert ops(after) == ["Slice", "Slice"]
    same(before, after, {"x": floats(2, 6, 3)})


def test_the_parts_nobody_reads_are_not_cut(normal) -> None:
    before = normal(
        "g (float[2,6] x) => (float[2,2] b) { a, b, c = Split<axis=1>(x) }",
    )

    after = rewrite(before, ["split_to_slice"])

    assert ops(after) == ["Slice"]
    assert after.graph[0].outputs[0].name == "b"


def test_a_split_of_unknown_size_stays(normal, floats, same) -> None:
    before = normal("g (float[n,4] x) => (float[m,4] a, float[m,4] b) { a, b = Split<axis=0>(x) }")

    after = rewrite(before, ["split_to_slice"])

    assert ops(after) == ["Split"]
    same(before, after, {"x": floats(6, 4)})


def test_a_split_with_sizes_works_on_an_open_axis(normal, floats, same) -> None:
    before = normal(
        "g (float[n,4] x) => (float[2,4] a, float[4,4] b) { a, b = Split<axis=0>(x, sizes) }",
        {"sizes": np.int64([2, 4])},
    )

    after = rewrite(before, ["split_to_slice"])

    assert ops(after) == ["Slice", "Slice"]
    same(before, after, {"x": floats(6, 4)})


@pytest.mark.parametrize(
    ("opset", "mean"),
    [
        (13, "ReduceMean<axes=[2,3]>(x)"),
        (13, "ReduceMean<axes=[-1,-2]>(x)"),
        (13, "ReduceMean<axes=[3,2], keepdims=1>(x)"),
        (18, "ReduceMean(x, axes)"),
        (18, "ReduceMean<keepdims=1>(x, axes)"),
    ],
)
def test_a_mean_over_the_picture_becomes_a_pool(
    normal, floats, same, opset: int, mean: str
) -> None:
    before = normal(
        f"g (float[2,3,4,5] x) => (float[2,3,1,1] y) {{ [mean] y = {mean} }}",
        {"axes": np.int64([2, 3])},
        opset=opset,
    )

    after = rewrite(before, ["reduce_mean_to_pool"])

    assert ops(after) == ["GlobalAveragePool"]
    assert after.graph[0].name == "mean"
    same(before, after, {"x": floats(2, 3, 4, 5)})


@pytest.mark.parametrize(
    ("mean", "shape"),
    [
        ("ReduceMean<axes=[2,3], keepdims=0>(x)", "2,3"),
        ("ReduceMean<axes=[1]>(x)", "2,1,4,5"),
        ("ReduceMean<axes=[1,2]>(x)", "2,1,1,5"),
        ("ReduceMean(x)", "1,1,1,1"),
    ],
    ids=["dimensions dropped", "one axis", "other axes", "all axes"],
)
def test_another_mean_stays(normal, floats, same, mean: str, shape: str) -> None:
    before = normal(f"g (float[2,3,4,5] x) => (float[{shape}] y) {{ y = {mean} }}")

    after = rewrite(before, ["reduce_mean_to_pool"])

    assert ops(after) == ["ReduceMean"]
    same(before, after, {"x": floats(2, 3, 4, 5)})


@pytest.mark.parametrize(
    ("height", "width", "steps"),
    [
        (32, 32, 2),
        (24, 40, 2),
        (31, 32, 2),
        (64, 9, 2),
        (100, 100, 2),
        (16, 32, 1),
        (23, 23, 1),
        (37, 41, 1),
        (7, 7, 1),
    ],
)
def test_a_large_pool_is_done_in_two_steps(
    normal, floats, same, height: int, width: int, steps: int
) -> None:
    before = normal(
        f"""g (float[1,2,{height},{width}] x) => (float[1,2,1,1] y) {{
          h = Relu(x)
          [pool] y = GlobalAveragePool(h)
        }}"""
    )

    after = rewrite(before, ["split_large_pool"])

    assert len(ops(after)) == 1 + steps
    for node in after.graph:
        size = node.inputs[0].shape.numpy()[2:] if node.op_type == "GlobalAveragePool" else (1,)
        kernel = node.attributes.get_ints("kernel_shape", size)
        assert steps == 1 or np.prod(kernel) <= 512
    same(before, after, {"x": floats(1, 2, height, width)})


def test_a_pool_of_unknown_size_stays(normal, floats, same) -> None:
    before = normal("g (float[1,2,h,w] x) => (float[1,2,1,1] y) { y = GlobalAveragePool(x) }")

    after = rewrite(before, ["split_large_pool"])

    assert ops(after) == ["GlobalAveragePool"]
    same(before, after, {"x": floats(1, 2, 40, 40)})


NORM = "BatchNormalization<epsilon=0.01>(h, gamma, beta, mean, var)"


@pytest.fixture
def statistics(rng) -> dict[str, np.ndarray]:
    drawn = {name: rng.normal(size=4) for name in ("gamma", "beta", "mean")}
    drawn["var"] = rng.uniform(0.2, 2, 4)
    return {name: data.astype(np.float32) for name, data in drawn.items()}


def test_a_lone_batchnorm_becomes_a_depthwise_convolution(normal, floats, same, statistics) -> None:
    before = normal(
        f"g (float[1,4,5,5] x) => (float[1,4,5,5] y) {{ h = Relu(x) [bn] y = {NORM} }}", statistics
    )

    after = rewrite(before, ["batchnorm_to_conv"])

    assert ops(after) == ["Relu", "Conv"]
    assert after.graph[1].name == "bn"
    assert after.graph[1].attributes.get_int("group", 0) == 4
    same(before, after, {"x": floats(1, 4, 5, 5)})


def test_a_batchnorm_of_vectors_stays(normal, floats, same, statistics) -> None:
    before = normal(f"g (float[2,4] x) => (float[2,4] y) {{ h = Relu(x) y = {NORM} }}", statistics)

    after = rewrite(before, ["batchnorm_to_conv"])

    assert ops(after) == ["Relu", "BatchNormalization"]
    same(before, after, {"x": floats(2, 4)})


def test_a_batchnorm_that_trains_stays(normal, statistics) -> None:
    before = normal(
        f"""g (float[1,4,5,5] x) => (float[1,4,5,5] y, float[4] m, float[4] v) {{
          h = Relu(x)
          y, m, v = {NORM.replace("epsilon", "training_mode=1, epsilon")}
        }}""",
        statistics,
    )

    assert ops(rewrite(before, ["batchnorm_to_conv"])) == ["Relu", "BatchNormalization"]


def test_operators_of_another_domain_are_left_alone(normal) -> None:
    before = normal("g (float[1,2,4,4] x) => (float[1,2,1,1] y) { y = GlobalAveragePool(x) }")
    before.graph[0].domain = "com.example"

    after = rewrite(before, ["split_large_pool", "reduce_mean_to_pool", "split_to_slice"])

    assert [(n.domain, n.op_type) for n in after.graph] == [("com.example", "GlobalAveragePool")]


# What the datapath computes, worked out here without lowbit: an average of N numbers is their
# sum times k / 2**n with n < 7 + ceil(log2 N), and these kernels have constants of their own.
OWN = {3: (63, 64), 5: (250, 256), 6: (252, 256), 7: (1029, 1024), 14: (4116, 4096)}


def device_ratio(count: int) -> float:
    """Return the nearest k / 2**n to 1 / count, times count, in exact arithmetic."""
    bits = (count - 1).bit_length()
    candidates = [
        fractions.Fraction(round(fractions.Fraction(2**n, count)), 2**n) for n in range(7 + bits)
    ]
    wanted = fractions.Fraction(1, count)
    return float(min(candidates, key=lambda c: abs(c - wanted)) * count)


def pool_ratio(size: int) -> float:
    return OWN[size][0] / OWN[size][1] if size in OWN else device_ratio(size * size)


@pytest.mark.parametrize(
    ("alpha", "expected"), [(0.1, 0.1015625), (0.01, 3 / 256), (0.25, 0.25), (0.2, 51 / 256)]
)
def test_the_slope_of_a_leaky_relu_is_a_multiple_of_a_256th(
    normal, floats, run, assert_sound, alpha: float, expected: float
) -> None:
    before = normal(f"g (float[64] x) => (float[64] y) {{ y = LeakyRelu<alpha={alpha}>(x) }}")
    x = floats(64)

    after = rewrite(before, ["leaky_relu_slope"])

    assert_sound(before, after)
    np.testing.assert_allclose(run(after, {"x": x})["y"], np.where(x < 0, x * expected, x), 1e-6)


def test_a_leaky_relu_has_the_standard_slope_if_none_is_given(normal) -> None:
    before = normal("g (float[64] x) => (float[64] y) { y = LeakyRelu(x) }")

    after = rewrite(before, ["leaky_relu_slope"])

    assert after.graph[0].attributes.get_float("alpha", 0.0) == 3 / 256


def test_sigmoid_becomes_the_devices_gate(normal, floats, run, assert_sound) -> None:
    before = normal("g (float[64] x) => (float[64] y) { [gate] h = Sigmoid(x) y = Mul(x, h) }")
    x = 3 * floats(64)

    after = rewrite(before, ["sigmoid_to_hardsigmoid", "hardsigmoid_factor"])

    assert_sound(before, after)
    assert ops(after) == ["HardSigmoid", "Mul", "Mul"]
    assert after.graph[0].name == "gate"
    expected = x * (x / 6 + 0.5).clip(0, 1) * (2731 / 16384 * 6)
    np.testing.assert_allclose(run(after, {"x": x})["y"], expected, rtol=1e-5, atol=1e-6)


def test_the_factor_of_the_gate_is_the_devices(normal) -> None:
    before = normal(
        "g (float[4] x) => (float[4] y) { y = HardSigmoid<alpha=0.16666667, beta=0.5>(x) }"
    )

    after = rewrite(before, ["hardsigmoid_factor"])

    assert after.graph[1].inputs[1].const_value.numpy() == np.float32(1.0001220703125)


def test_another_gate_has_no_counterpart(normal) -> None:
    before = normal("g (float[4] x) => (float[4] y) { y = HardSigmoid<alpha=0.2>(x) }")

    assert ops(rewrite(before, ["hardsigmoid_factor"])) == ["HardSigmoid"]


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 14, 16, 20])
@pytest.mark.parametrize("kind", ["AveragePool", "GlobalAveragePool"])
def test_averages_of_squares_are_the_devices(
    normal, floats, run, assert_sound, kind: str, size: int
) -> None:
    kernel = f"<kernel_shape=[{size},{size}]>" if kind == "AveragePool" else ""
    before = normal(
        f"g (float[1,2,{size},{size}] x) => (float[1,2,1,1] y) {{ y = {kind}{kernel}(x) }}"
    )
    x = floats(1, 2, size, size) + 1

    after = rewrite(before, ["average_pool_factor"])

    assert_sound(before, after)
    expected = x.mean((2, 3), keepdims=True) * pool_ratio(size)
    np.testing.assert_allclose(run(after, {"x": x})["y"], expected, rtol=1e-5)
    assert (len(ops(after)) == 1) is (pool_ratio(size) == 1)


@pytest.mark.parametrize(
    ("height", "width"), [(3, 5), (7, 8), (256, 256)], ids=["oblong", "oblong too", "too large"]
)
def test_other_averages_are_left_alone(normal, height: int, width: int) -> None:
    before = normal(
        f"g (float[1,2,{height},{width}] x) => (float[1,2,1,1] y) {{ y = GlobalAveragePool(x) }}"
    )

    assert ops(rewrite(before, ["average_pool_factor"])) == ["GlobalAveragePool"]


def test_an_average_of_unknown_size_is_left_alone(normal) -> None:
    before = normal("g (float[1,2,h,w] x) => (float[1,2,1,1] y) { y = GlobalAveragePool(x) }")

    assert ops(rewrite(before, ["average_pool_factor"])) == ["GlobalAveragePool"]


def test_the_largest_kernel_with_a_factor_has_255_rows(normal) -> None:
    before = normal("g (float[1,1,255,255] x) => (float[1,1,1,1] y) { y = GlobalAveragePool(x) }")

    factor = rewrite(before, ["average_pool_factor"]).graph[1].inputs[1].const_value.numpy()

    assert factor == np.float32(device_ratio(255 * 255))


@pytest.mark.parametrize(
    ("opset", "mean", "count"),
    [
        (13, "ReduceMean<axes=[1]>(x)", 3),
        (13, "ReduceMean<axes=[-1]>(x)", 7),
        (13, "ReduceMean<axes=[2,3]>(x)", 35),
        (18, "ReduceMean(x, axes)", 21),
    ],
)
def test_means_are_the_devices(
    normal, floats, run, assert_sound, opset: int, mean: str, count: int
) -> None:
    before = normal(
        f"g (float[2,3,5,7] x) => (float[a,b,c,d] y) {{ y = {mean} }}",
        {"axes": np.int64([1, 3])},
        opset=opset,
    )
    x = floats(2, 3, 5, 7) + 1

    after = rewrite(before, ["reduce_mean_factor"])

    assert_sound(before, after)
    expected = run(before, {"x": x})["y"] * np.float32(device_ratio(count))
    np.testing.assert_allclose(run(after, {"x": x})["y"], expected, rtol=1e-5)


def test_a_mean_over_a_power_of_two_is_exact(normal) -> None:
    before = normal("g (float[2,16] x) => (float[2,1] y) { y = ReduceMean<axes=[1]>(x) }")

    assert ops(rewrite(before, ["reduce_mean_factor"])) == ["ReduceMean"]


def test_a_mean_over_an_open_axis_is_left_alone(normal) -> None:
    before = normal("g (float[2,n] x) => (float[2,1] y) { y = ReduceMean<axes=[1]>(x) }")

    assert ops(rewrite(before, ["reduce_mean_factor"])) == ["ReduceMean"]


@pytest.mark.parametrize(("low", "expected"), [(0.0, "Relu"), (1.0, "Relu"), (-1.0, "Clip")])
def test_clip_from_zero_becomes_relu(
    normal, floats, run, assert_sound, low: float, expected: str
) -> None:
    before = normal(
        "g (float[64] x) => (float[64] y) { [act] y = Clip(x, low, high) }",
        {"low": np.array(low, np.float32), "high": np.array(6, np.float32)},
    )
    x = floats(64)

    after = rewrite(before, ["clip_to_relu"])

    assert_sound(before, after)
    assert ops(after) == [expected]
    assert after.graph[0].name == "act"
    if low == 0:
        np.testing.assert_array_equal(run(after, {"x": x})["y"], np.maximum(x, 0))


def test_a_clip_whose_bound_varies_stays(normal) -> None:
    before = normal("g (float[64] x, float low) => (float[64] y) { y = Clip(x, low) }")

    assert ops(rewrite(before, ["clip_to_relu"])) == ["Clip"]


def test_a_factor_reaches_every_consumer_and_the_output(normal, floats, run, assert_sound) -> None:
    before = normal(
        """g (float[1,2,3,3] x) => (float[1,2,1,1] p, float[1,2,1,1] y) {
          p = GlobalAveragePool(x)
          n = Neg(p)
          y = Mul(n, p)
        }"""
    )
    x = floats(1, 2, 3, 3) + 1

    after = rewrite(before, ["average_pool_factor"])

    assert_sound(before, after)
    pooled = x.mean((2, 3), keepdims=True) * 63 / 64
    outputs = run(after, {"x": x})
    np.testing.assert_allclose(outputs["p"], pooled, rtol=1e-5)
    np.testing.assert_allclose(outputs["y"], -(pooled**2), rtol=1e-5)


@pytest.mark.parametrize("count", [3, 10, 49, 196, 1000])
def test_the_devices_ratio_is_near_one(count: int) -> None:
    assert math.isclose(device_ratio(count), 1, abs_tol=1 / 64)


def test_a_split_whose_sizes_are_computed_stays(normal) -> None:
    before = normal(
        """g (float[1,6] x, int64[2] sizes) => (float[1,n] a, float[1,m] b) {
          a, b = Split<axis=1>(x, sizes)
        }"""
    )

    assert ops(rewrite(before, ["split_to_slice"])) == ["Split"]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 9, 25, 100, 196, 1000])
def test_the_reciprocal_is_the_nearest_of_the_datapath(count: int) -> None:
    assert reciprocal_factor(count) == pytest.approx(device_ratio(count), rel=1e-12)


def test_factors_of_pools() -> None:
    assert [pool_factor(n, n) for n in OWN] == [k / n for k, n in OWN.values()]
    assert pool_factor(4, 8) == 1
    assert pool_factor(3, 5) == device_ratio(15)
    assert pool_factor(256, 256) == pool_factor(1, 300) == 1


def test_pools_that_are_no_images_are_left_alone(normal) -> None:
    before = normal(
        "g (float[1,2,9] x) => (float[1,2,7] y) { y = AveragePool<kernel_shape=[3]>(x) }"
    )

    assert ops(rewrite(before, ["average_pool_factor"])) == ["AveragePool"]
