from __future__ import annotations

import pytest

from lowbit.graph import io
from lowbit.normalize.normalize import normalize


def attributes(parse, floats, assert_same, node: str, opset: int = 17) -> dict[str, object]:
    original = parse(
        f"g (float[1,4,9,9] x) => (float[1,c,n,m] y) {{ y = {node} }}",
        {"w": floats(4, 4, 3, 3), "v": floats(4, 1, 3, 3)},
        opset=opset,
        ir_version=8 if opset < 19 else 9,
    )

    normal = normalize(io.load(original))

    assert_same(original, normal, {"x": floats(1, 4, 9, 9)})
    return {a.name: a.value for a in normal.graph[0].attributes.values()}


def test_a_convolution_gets_all_of_them(parse, floats, assert_same) -> None:
    assert attributes(parse, floats, assert_same, "Conv(x, w)") == {
        "kernel_shape": (3, 3),
        "strides": (1, 1),
        "dilations": (1, 1),
        "pads": (0, 0, 0, 0),
        "group": 1,
    }


def test_what_is_given_is_kept(parse, floats, assert_same) -> None:
    given = "Conv<group=4, strides=[2,2], pads=[1,1,0,0], dilations=[2,2]>(x, v)"

    assert attributes(parse, floats, assert_same, given) == {
        "kernel_shape": (3, 3),
        "strides": (2, 2),
        "dilations": (2, 2),
        "pads": (1, 1, 0, 0),
        "group": 4,
    }


def test_a_transposed_convolution_gets_them(parse, floats, assert_same) -> None:
    found = attributes(parse, floats, assert_same, "ConvTranspose<strides=[2,2]>(x, w)")

    assert found["kernel_shape"] == (3, 3)
    assert found["pads"] == (0, 0, 0, 0)


def test_a_fixed_output_shape_decides_the_padding_itself(parse, floats, assert_same) -> None:
    node = "ConvTranspose<strides=[2,2], output_shape=[18,18]>(x, w)"

    assert "pads" not in attributes(parse, floats, assert_same, node)


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("op", ["Conv{}(x, w)", "MaxPool{}(x)", "AveragePool{}(x)"])
def test_automatic_padding_to_the_same_size_is_left_alone(
    parse, floats, assert_same, mode: str, op: str
) -> None:
    node = op.format(f'<auto_pad="{mode}", kernel_shape=[3,3], strides=[2,2]>')

    found = attributes(parse, floats, assert_same, node)

    assert found["auto_pad"] == mode
    assert "pads" not in found


@pytest.mark.parametrize("op", ["Conv{}(x, w)", "MaxPool{}(x)"])
def test_no_padding_is_written_out(parse, floats, assert_same, op: str) -> None:
    node = op.format('<auto_pad="VALID", kernel_shape=[3,3]>')

    found = attributes(parse, floats, assert_same, node)

    assert "auto_pad" not in found
    assert found["pads"] == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("op", "opset", "dilations"),
    [
        ("MaxPool", 17, True),
        ("AveragePool", 17, False),
        ("AveragePool", 19, True),
        ("LpPool", 17, False),
        ("LpPool", 18, True),
    ],
)
def test_pools_get_dilations_where_the_operator_set_has_them(
    parse, floats, assert_same, op: str, opset: int, *, dilations: bool
) -> None:
    found = attributes(parse, floats, assert_same, f"{op}<kernel_shape=[2,3]>(x)", opset)

    assert ("dilations" in found) is dilations
    assert found["strides"] == (1, 1)


def test_a_weight_of_unknown_shape_is_left_alone(parse, floats, assert_same) -> None:
    original = parse(
        "g (float[1,4,9,9] x, float[a,b,c,d] w) => (float[1,e,n,m] y) { y = Conv(x, w) }"
    )

    normal = normalize(io.load(original))

    assert "kernel_shape" not in normal.graph[0].attributes
    assert_same(original, normal, {"x": floats(1, 4, 9, 9), "w": floats(4, 4, 3, 3)})
