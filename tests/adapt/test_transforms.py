from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from lowbit.graph.naming import names_of
from lowbit.transforms.rewrites import adapt


def ops(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


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

    after = adapt(before, ["split_to_slice"])

    assert ops(after) == ["Neg", "Slice", "Slice", "Slice", "Abs"]
    assert all("split" in names_of(n) for n in after.graph if n.op_type == "Slice")
    same(before, after, {"x": floats(1, 7)})


def test_an_even_split_needs_no_sizes(normal, floats, same) -> None:
    before = normal(
        "g (float[2,6,3] x) => (float[2,3,3] a, float[2,3,3] b) { a, b = Split<axis=1>(x) }"
    )

    after = adapt(before, ["split_to_slice"])

    assert ops(after) == ["Slice", "Slice"]
    same(before, after, {"x": floats(2, 6, 3)})


def test_the_parts_nobody_reads_are_not_cut(normal) -> None:
    before = normal(
        "g (float[2,6] x) => (float[2,2] b) { a, b, c = Split<axis=1>(x) }",
    )

    after = adapt(before, ["split_to_slice"])

    assert ops(after) == ["Slice"]
    assert after.graph[0].outputs[0].name == "b"


def test_a_split_of_unknown_size_stays(normal, floats, same) -> None:
    before = normal("g (float[n,4] x) => (float[m,4] a, float[m,4] b) { a, b = Split<axis=0>(x) }")

    after = adapt(before, ["split_to_slice"])

    assert ops(after) == ["Split"]
    same(before, after, {"x": floats(6, 4)})


def test_a_split_with_sizes_works_on_an_open_axis(normal, floats, same) -> None:
    before = normal(
        "g (float[n,4] x) => (float[2,4] a, float[4,4] b) { a, b = Split<axis=0>(x, sizes) }",
        {"sizes": np.int64([2, 4])},
    )

    after = adapt(before, ["split_to_slice"])

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

    after = adapt(before, ["reduce_mean_to_pool"])

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

    after = adapt(before, ["reduce_mean_to_pool"])

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

    after = adapt(before, ["split_large_pool"])

    assert len(ops(after)) == 1 + steps
    for node in after.graph:
        size = node.inputs[0].shape.numpy()[2:] if node.op_type == "GlobalAveragePool" else (1,)
        kernel = node.attributes.get_ints("kernel_shape", size)
        assert steps == 1 or np.prod(kernel) <= 512
    same(before, after, {"x": floats(1, 2, height, width)})


def test_a_pool_of_unknown_size_stays(normal, floats, same) -> None:
    before = normal("g (float[1,2,h,w] x) => (float[1,2,1,1] y) { y = GlobalAveragePool(x) }")

    after = adapt(before, ["split_large_pool"])

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

    after = adapt(before, ["batchnorm_to_conv"])

    assert ops(after) == ["Relu", "Conv"]
    assert after.graph[1].name == "bn"
    assert after.graph[1].attributes.get_int("group", 0) == 4
    same(before, after, {"x": floats(1, 4, 5, 5)})


def test_a_batchnorm_of_vectors_stays(normal, floats, same, statistics) -> None:
    before = normal(f"g (float[2,4] x) => (float[2,4] y) {{ h = Relu(x) y = {NORM} }}", statistics)

    after = adapt(before, ["batchnorm_to_conv"])

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

    assert ops(adapt(before, ["batchnorm_to_conv"])) == ["Relu", "BatchNormalization"]


def test_operators_of_another_domain_are_left_alone(normal) -> None:
    before = normal("g (float[1,2,4,4] x) => (float[1,2,1,1] y) { y = GlobalAveragePool(x) }")
    before.graph[0].domain = "com.example"

    after = adapt(before, ["split_large_pool", "reduce_mean_to_pool", "split_to_slice"])

    assert [(n.domain, n.op_type) for n in after.graph] == [("com.example", "GlobalAveragePool")]
