from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from helpers.runtime_versions import skip_before_opset
from onnx import TensorProto

from lowbit.errors import ModelError
from lowbit.graph import io
from lowbit.graph.session import session
from lowbit.normalize.normalize import normalize
from lowbit.normalize.precision import full_precision

# The parser reads halves by their bits: 16384 is 2.0.
OTHER = {ir.DataType.FLOAT16, ir.DataType.DOUBLE, ir.DataType.BFLOAT16}


def inner_types(model: ir.Model) -> set[ir.DataType]:
    boundary = {*model.graph.inputs, *model.graph.outputs}
    values = {v for node in model.graph.all_nodes() for v in (*node.outputs, *node.inputs) if v}
    types = {v.dtype for v in values - boundary}
    tensors = {v.const_value.dtype for v in model.graph.initializers.values()}
    return types | tensors


def test_a_half_precision_model_computes_in_single_and_keeps_its_boundary(
    parse, floats, norm, assert_same
) -> None:
    halves = {name: data.astype(np.float16) for name, data in norm(4).items()}
    original = parse(
        """g (float16[1,3,8,8] x) => (float16[1,4,6,6] y) {
          c = Conv(x, w)
          n = BatchNormalization(c, gamma, beta, mean, var)
          k = Constant<value_float=0.5>()
          h = Cast<to=10>(k)
          m = Mul(n, h)
          y = Relu(m)
        }""",
        {"w": floats(4, 3, 3, 3).astype(np.float16), **halves},
    )

    normal = normalize(io.load(original))

    assert [n.op_type for n in normal.graph] == ["Cast", "Conv", "Relu", "Cast"]
    assert not inner_types(normal) & OTHER
    assert normal.graph.inputs[0].dtype == normal.graph.outputs[0].dtype == ir.DataType.FLOAT16
    assert_same(original, normal, {"x": floats(1, 3, 8, 8).astype(np.float16)}, tolerance=0.03)


def test_islands_of_single_precision_are_joined(parse, floats, assert_same) -> None:
    original = parse(
        """g (float16[2,4] x) => (float16[2,4] y) {
          m = MatMul(x, w)
          up = Cast<to=1>(m)
          s = Softmax(up)
          k = Constant<value = float16[1] {16384}>()
          down = Cast<to=10>(s)
          y = Mul(down, k)
        }""",
        {"w": floats(4, 4).astype(np.float16)},
    )

    normal = normalize(io.load(original))

    assert [n.op_type for n in normal.graph] == ["Cast", "MatMul", "Softmax", "Mul", "Cast"]
    assert not inner_types(normal) & OTHER
    assert_same(original, normal, {"x": floats(2, 4).astype(np.float16)}, tolerance=0.01)


def test_half_precision_between_casts_of_a_single_precision_model_goes(
    parse, floats, assert_same
) -> None:
    original = parse(
        """g (float[2,4] x) => (float[2,4] y) {
          h = Cast<to=10>(x)
          r = Relu(h)
          y = Cast<to=1>(r)
        }"""
    )

    normal = normalize(io.load(original))

    assert [n.op_type for n in normal.graph] == ["Relu"]
    assert_same(original, normal, {"x": floats(2, 4)}, tolerance=0.01)


def test_a_cast_to_an_integer_stays(parse, floats, assert_same) -> None:
    original = parse(
        """g (float16[2,4] x) => (float16[2,4] y) {
          i = Cast<to=6>(x)
          y = Cast<to=10>(i)
        }"""
    )

    normal = normalize(io.load(original))

    assert_same(original, normal, {"x": (3 * floats(2, 4)).astype(np.float16)})


def test_a_double_precision_model_keeps_its_boundary(parse, rng, assert_same) -> None:
    original = parse(
        """g (double[2,4] x) => (double[2,3] y) {
          m = Gemm(x, w, b)
          y = Relu(m)
        }""",
        {"w": rng.normal(size=(4, 3)), "b": rng.normal(size=3)},
    )

    normal = normalize(io.load(original))

    assert not inner_types(normal) & OTHER
    assert_same(original, normal, {"x": rng.normal(size=(2, 4))}, tolerance=1e-5)


def test_weights_in_bfloat16_become_weights(parse, floats, run) -> None:
    weight = floats(4, 3, 3, 3).astype(ml_dtypes.bfloat16)
    text = "g (float[1,3,8,8] x) => (float[1,4,6,6] y) {{ {cast} y = Conv(x, w) }}"
    original = parse(text.format(cast="w = Cast<to=1>(v)"))
    original.graph.initializer.append(ir.to_proto(ir.tensor(weight, name="v")))
    assert original.graph.initializer[0].data_type == TensorProto.BFLOAT16
    reference = parse(text.format(cast=""), {"w": weight.astype(np.float32)})
    feed = {"x": floats(1, 3, 8, 8)}

    normal = normalize(io.load(original))

    assert [n.op_type for n in normal.graph] == ["Conv"]
    np.testing.assert_array_equal(run(normal, feed)[0], run(reference, feed)[0])


def test_branches_and_loops_are_converted_too(parse, floats, assert_same) -> None:
    original = parse(
        """g (float16[2] x, bool p, int64 n, bool go) => (float16[2] y) {
          h = If(p) <
            then_branch = t () => (float16[2] a) {
              k = Constant<value = float16[1] {16384}>()
              a = Mul(x, k)
            },
            else_branch = e () => (float16[2] b) { b = Neg(x) }
          >
          y = Loop(n, go, h) <
            body = l (int64 i, bool c, float16[2] s) => (bool d, float16[2] r) {
              d = Identity(c)
              r = Add(s, w)
            }
          >
        }""",
        {"w": floats(2).astype(np.float16)},
    )

    normal = normalize(io.load(original))

    for branch in (True, False):
        feed = {
            "x": floats(2).astype(np.float16),
            "p": np.array(branch),
            "n": np.array(3, np.int64),
            "go": np.array(True),
        }
        assert_same(original, normal, feed, tolerance=0.01)


def test_a_sequence_of_halves_inside_is_converted(parse, floats, assert_same) -> None:
    original = parse(
        """g (float16[2] x, int64 i) => (float16[2] y) {
          s = SequenceConstruct(x, w)
          y = SequenceAt(s, i)
        }""",
        {"w": floats(2).astype(np.float16)},
    )

    normal = normalize(io.load(original))

    feed = {"x": floats(2).astype(np.float16), "i": np.array(0, np.int64)}
    assert_same(original, normal, feed, tolerance=0.01)


def test_a_sequence_of_halves_at_the_boundary_is_refused(parse) -> None:
    original = parse("g (seq(float16[2]) s, int64 i) => (float16[2] y) { y = SequenceAt(s, i) }")

    with pytest.raises(ModelError, match=r"'s' is .* export the model in float32"):
        normalize(io.load(original))


def test_an_input_that_is_an_output_keeps_its_type(parse, floats, run) -> None:
    original = parse("g (float16[2] x) => (float16[2] x, float16[2] y) { y = Relu(x) }")
    feed = {"x": floats(2).astype(np.float16)}

    normal = normalize(io.load(original))

    for expected, actual in zip(run(original, feed), run(normal, feed), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_weights_are_converted_only_when_read(parse, floats) -> None:
    original = parse(
        "g (float16[2,4] x) => (float16[2,3] y) { y = MatMul(x, w) }",
        {"w": floats(4, 3).astype(np.float16)},
    )

    normal = normalize(io.load(original))

    weight = next(v.const_value for v in normal.graph.initializers.values())
    assert isinstance(weight, ir.LazyTensor)
    assert weight.numpy().dtype == np.float32


def test_a_single_precision_model_is_left_alone(parse, floats) -> None:
    original = parse("g (float[2,4] x) => (float[2,3] y) { y = MatMul(x, w) }", {"w": floats(4, 3)})

    assert [n.op_type for n in normalize(io.load(original)).graph] == ["MatMul"]


def full(proto: onnx.ModelProto) -> ir.Model:
    proto.opset_import.append(onnx.helper.make_opsetid("com.amd.quark", 1))
    model = io.load(proto)
    full_precision(model)
    return model


def ops(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


@pytest.mark.parametrize("to", [TensorProto.FLOAT16, TensorProto.BFLOAT16], ids=["half", "brain"])
def test_pairs_of_casts_are_taken_out(parse, floats, run, to: int) -> None:
    model = full(
        parse(
            f"""g (float[2,3] x) => (float[2,3] y) {{
              h = Cast<to={to}>(x)
              f = Cast<to=1>(h)
              n = Neg(f)
              k = Cast<to={to}>(n)
              y = Cast<to=1>(k)
            }}"""
        )
    )

    assert ops(model) == ["Neg"]
    assert [value.name for value in model.graph.outputs] == ["y"]
    x = floats(2, 3)
    np.testing.assert_array_equal(run(model, {"x": x})[0], -x)


def test_casts_to_and_from_integers_stay(parse, run) -> None:
    """Also of values whose type the file does not say."""
    model = full(
        parse(
            """g (float[2] x) => (float[2] y) {
              i = Cast<to=7>(x)
              f = Cast<to=1>(i)
              s = Shape(x)
              n = Cast<to=1>(s)
              y = Mul(f, n)
            }"""
        )
    )

    assert ops(model) == ["Cast", "Cast", "Shape", "Cast", "Mul"]
    assert run(model, {"x": np.float32([1.7, -2.2])})[0].tolist() == [2, -4]


def test_stored_halves_become_the_values_they_were_rounded_to(parse, floats, run) -> None:
    weight = floats(3, 3)
    model = full(
        parse(
            "g (float[2,3] x) => (float[2,3] y) { f = Cast<to=1>(w) y = MatMul(x, f) }",
            {"w": weight.astype(np.float16)},
        )
    )

    assert ops(model) == ["MatMul"]
    (stored,) = model.graph.initializers.values()
    assert stored.const_value.dtype == ir.DataType.FLOAT
    rounded = weight.astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(stored.const_value.numpy(), rounded)
    x = floats(2, 3)
    np.testing.assert_allclose(run(model, {"x": x})[0], x @ rounded, rtol=1e-5, atol=1e-6)


def test_a_constant_that_is_cast_twice_is_rounded_once(parse) -> None:
    number = np.float32([1 + 2**-9, 3.14159])
    model = full(
        parse(
            f"""g (float[2] x) => (float[2] y) {{
              h = Cast<to={TensorProto.BFLOAT16}>(w)
              f = Cast<to=1>(h)
              y = Mul(x, f)
            }}""",
            {"w": number},
        )
    )

    (stored,) = model.graph.initializers.values()
    expected = number.astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(stored.const_value.numpy(), expected)
    assert (expected != number).all()


def test_the_ends_of_a_half_model_become_single(parse, floats, run) -> None:
    weight = floats(3, 3).astype(np.float16)
    model = full(
        parse("g (float16[2,3] x) => (float16[2,3] y) { y = MatMul(x, w) }", {"w": weight})
    )

    types = {v.dtype for v in (*model.graph.inputs, *model.graph.outputs)}
    assert types == {ir.DataType.FLOAT}
    x = floats(2, 3)
    expected = x @ weight.astype(np.float32)
    np.testing.assert_allclose(run(model, {"x": x})[0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("low", "high", "left"),
    [(-65504, 65504, []), (-65504, 6, ["Clip"]), (-3.3895314e38, 3.3895314e38, [])],
    ids=["half", "another", "brain"],
)
def test_clips_at_the_largest_half_are_taken_out(
    parse, low: float, high: float, left: list[str]
) -> None:
    model = full(
        parse(
            "g (float[2] x) => (float[2] y) { c = Clip(x, a, b) y = Neg(c) }",
            {"a": np.array(low, np.float32), "b": np.array(high, np.float32)},
        )
    )

    assert ops(model) == [*left, "Neg"]
    assert bool(model.graph.initializers) == bool(left)


SCALED = """g (float[2,2] x) => (float[2,2] y) {
  a = com.amd.quark.ExtendedQuantizeLinear(x, s, z)
  b = com.amd.quark.ExtendedDequantizeLinear(a, s, z)
  c = com.amd.quark.ExtendedQuantizeLinear(w, s, z)
  d = com.amd.quark.ExtendedDequantizeLinear(c, s, z)
  y = Mul(b, d)
}"""


def test_scaled_halves_are_scaled_back(parse, floats, run) -> None:
    weight, scale = floats(2, 2), np.array(0.25, np.float32)
    proto = parse(SCALED, {"w": weight, "s": scale})
    zero = np.array(0, ml_dtypes.bfloat16)
    proto.graph.initializer.append(ir.to_proto(ir.tensor(zero, name="z")))

    model = full(proto)

    assert ops(model) == ["Mul"]
    rounded = (weight / scale).astype(ml_dtypes.bfloat16).astype(np.float32) * scale
    x = floats(2, 2)
    np.testing.assert_array_equal(run(model, {"x": x})[0], x * rounded)


def test_integers_cannot_be_brought_back(parse, floats) -> None:
    proto = parse(
        SCALED,
        {"w": floats(2, 2), "s": np.array(0.25, np.float32), "z": np.array(0, np.int16)},
    )

    with pytest.raises(ModelError, match=r"node .* is in integers; only 16-bit floats and block"):
        full(proto)


# One block of eight numbers: the largest is 1, so that all are multiples of 1/64.
BLOCK = np.float32([[1.0, 0.02, -0.3, 0.0, 0.5, 0.008, 0.99, -1.0]])
ROUNDED = np.float32([[1.0, 1 / 64, -19 / 64, 0.0, 0.5, 1 / 64, 63 / 64, -1.0]])


@pytest.mark.parametrize(
    "operator",
    [
        "BFPQuantizeDequantize<axis=1, bit_width=16, block_size=8, rounding_mode=0>",
        'MXQuantizeDequantize<axis=1, element_dtype="int8", block_size=8, rounding_mode=0>',
    ],
    ids=["bfp", "mx"],
)
def test_constants_in_blocks_become_the_values_they_were_rounded_to(
    parse, floats, run, operator: str
) -> None:
    model = full(
        parse(
            f"""g (float[1,8] x) => (float[1,8] y) {{
              a = com.amd.quark.{operator}(x)
              b = com.amd.quark.{operator}(w)
              y = Mul(a, b)
            }}""",
            {"w": BLOCK},
        )
    )

    assert ops(model) == ["Mul"]
    x = floats(1, 8)
    np.testing.assert_array_equal(run(model, {"x": x})[0], x * ROUNDED)


def test_functions_of_blocks_go_with_their_calls() -> None:
    model = io.load(
        onnx.parser.parse_model(
            """<ir_version: 8, opset_import: ["": 17, "com.amd.quark": 1, "local": 1]>
            g (float[2] x) => (float[2] y) {
              a = com.amd.quark.BFPQuantizeDequantize(x)
              y = local.Double(a)
            }
            <domain: "com.amd.quark", opset_import: ["": 17]>
            BFPQuantizeDequantize (v) => (r) { r = Identity(v) }
            <domain: "local", opset_import: ["": 17]>
            Double (v) => (r) { r = Add(v, v) }"""
        )
    )

    full_precision(model)

    assert ops(model) == ["Double"]
    assert [key[0] for key in model.functions] == ["local"]


@pytest.mark.parametrize(
    ("source", "target", "to"), [("double", "int64", 7), ("int64", "double", 11)]
)
def test_operators_on_bits_keep_their_types(parse, source: str, target: str, to: int) -> None:
    graph = f"g ({source}[4] x) => ({target}[4] y) {{ y = BitCast<to={to}>(x) }}"
    skip_before_opset(26)
    original = parse(graph, opset=26, ir_version=12)
    numbers = np.array([1.5, -2.0, 3.25, 0.0])
    x = numbers if source == "double" else numbers.view(np.int64)

    normal = normalize(io.load(original))

    with session(normal) as running:
        (y,) = running.run(["y"], {"x": x})
    np.testing.assert_array_equal(y, x.view(y.dtype))
