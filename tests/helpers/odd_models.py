"""Small models with features that exporters produce and quantizers trip over, and feeds for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import onnx
import onnx.parser
from onnx import TensorProto, helper, numpy_helper

Feed = dict[str, np.ndarray]
Made = tuple[onnx.ModelProto, list[Feed]]

_RNG = np.random.default_rng(0)
_START = _RNG.bit_generator.state
_CHAIN = "{ a = MatMul(x, w) b = Relu(a) z = MatMul(b, v) }"


def _floats(*shape: int) -> np.ndarray:
    return _RNG.normal(size=shape).astype(np.float32)


def _model(graph: str, opset: int = 17, **weights: object) -> onnx.ModelProto:
    header = f'<ir_version: 8, opset_import: ["": {opset}]>'
    model = onnx.parser.parse_model(f"{header}\n{graph}")
    known = {"w": _floats(4, 4), "v": _floats(4, 4), "u": _floats(4, 4)} | weights
    used = {name for node in model.graph.node for name in node.input}
    for node in model.graph.node:
        used |= {n for a in node.attribute for inner in a.g.node for n in inner.input}
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(data), name)
        for name, data in known.items()
        if name in used
    )
    return model


def _rows(count: int = 4, **more: Callable[[int], np.ndarray]) -> list[Feed]:
    return [{"x": _floats(2, 4)} | {n: make(i) for n, make in more.items()} for i in range(count)]


def _chain(change: Callable[[onnx.ModelProto], None] = lambda _: None) -> onnx.ModelProto:
    model = _model(f"g (float[N,4] x) => (float[N,4] z) {_CHAIN}")
    change(model)
    return model


def _two(graph: str) -> Made:
    return _model(f"g (float[N,4] x, float[N,4] y) => {graph}"), _rows(y=lambda _: _floats(2, 4))


def _changed(change: Callable[[onnx.ModelProto], None]) -> Made:
    return _chain(change), _rows()


def _plain(graph: str, **weights: object) -> Made:
    return _model(f"g (float[N,4] x) => {graph}", **weights), _rows()


def _unet() -> Made:
    """A time-conditioned UNet: a scalar embedded and added between convolutions, and a skip."""
    graph = """g (float[N,4,8,8] x, float[N,1] t) => (float[N,4,8,8] z) {
        e = MatMul(t, embed) s = Sigmoid(e) f = Mul(e, s) c = Unsqueeze(f, axes)
        a = Conv<pads=[1,1,1,1], strides=[2,2]>(x, down) p = Add(a, c) r = Relu(p)
        m = Conv<pads=[1,1,1,1]>(r, middle) q = Add(m, c)
        o = Resize<mode="nearest">(q, "", scales) k = Concat<axis=1>(o, x)
        z = Conv<pads=[1,1,1,1]>(k, up) }"""
    weights = {
        "embed": _floats(1, 4),
        "axes": np.array([2, 3]),
        "down": _floats(4, 4, 3, 3),
        "middle": _floats(4, 4, 3, 3),
        "up": _floats(4, 8, 3, 3),
        "scales": np.array([1, 1, 2, 2], np.float32),
    }
    feeds = [{"x": _floats(1, 4, 8, 8), "t": _floats(1, 1)} for _ in range(4)]
    return _model(graph, **weights), feeds


def _encoder() -> Made:
    """Attention with a mask of zeros and ones, as tokenizers give it."""
    graph = """g (float[N,3,4] x, int64[N,3] mask) => (float[N,3,4] z) {
        q = MatMul(x, w) k = MatMul(x, v) t = Transpose<perm=[0,2,1]>(k) s = MatMul(q, t)
        f = Cast<to=1>(mask) i = Sub(one, f) b = Mul(i, low) c = Unsqueeze(b, axes)
        m = Add(s, c) p = Softmax<axis=-1>(m) d = MatMul(x, u) o = MatMul(p, d) z = MatMul(o, h) }"""
    weights = {
        "one": np.float32(1),
        "low": np.float32(-8),
        "axes": np.array([1]),
        "h": _floats(4, 4),
    }
    feeds = [{"x": _floats(2, 3, 4), "mask": np.array([[1, 1, 1], [1, 1, 0]])} for _ in range(4)]
    return _model(graph, **weights), feeds


def _set_shape(value: onnx.ValueInfoProto, *shape: int | str) -> None:
    value.CopyFrom(helper.make_tensor_value_info(value.name, TensorProto.FLOAT, list(shape)))


def _minus_one(model: onnx.ModelProto) -> None:
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = -1


def _functions() -> Made:
    """Functions that call each other, two of one name, as newer exporters write them."""
    text = """<ir_version: 10, opset_import: ["": 18, "own": 1]>
        g (float[N,4] x) => (float[N,4] z) { a = own.block:one(x, w) z = own.block:two(a, v) }
        <domain: "own", opset_import: ["": 18, "own": 1], overload: "one">
        block (p, q) => (r) { s = own.inner(p) r = MatMul(s, q) }
        <domain: "own", opset_import: ["": 18], overload: "two">
        block (p, q) => (r) { s = Tanh(p) r = MatMul(s, q) }
        <domain: "own", opset_import: ["": 18]> inner (p) => (r) { r = Relu(p) }"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(numpy_helper.from_array(_floats(4, 4), n) for n in "wv")
    return model, _rows()


_BRANCHES = """<then_branch = t () => (float[N,4] p) { p = MatMul(a, v) },
    else_branch = e () => (float[N,4] q) { q = Relu(a) }>"""

SEVERAL_INPUTS: Mapping[str, Callable[[], Made]] = MappingProxyType(
    {
        "first read late": lambda: _two(
            "(float[N,4] z) { a = MatMul(x, w) b = Add(a, y) z = MatMul(b, v) }"
        ),
        "two towers": lambda: _two(
            "(float[N,4] z) { a = MatMul(x, w) b = Relu(a) c = MatMul(y, v) d = Relu(c) "
            "e = Mul(b, d) z = MatMul(e, u) }"
        ),
        "read by the last node": lambda: _two(
            "(float[N,4] z) { a = MatMul(x, w) b = Relu(a) c = MatMul(b, v) z = Add(c, y) }"
        ),
        "an output as well": lambda: _changed(lambda m: m.graph.output.append(m.graph.input[0])),
        "read by nobody": lambda: _two(f"(float[N,4] z) {_CHAIN}"),
        "a scalar": lambda: (
            _model(
                "g (float[N,4] x, float t) => (float[N,4] z) "
                "{ a = MatMul(x, w) b = Mul(a, t) z = MatMul(b, v) }"
            ),
            _rows(t=lambda i: np.full((), 1 + i, np.float32)),
        ),
        "a cache that is empty": lambda: (
            _model(
                "g (float[N,4] x, float[M,4] y) => (float[K,4] z, float[M,4] r) "
                "{ a = MatMul(x, w) c = Concat<axis=0>(y, a) z = MatMul(c, v) r = MatMul(y, u) }"
            ),
            _rows(y=lambda _: _floats(0, 4)),
        ),
        "a mask of an encoder": _encoder,
        "the time of a UNet": _unet,
    }
)
"""Models with more than one input, or one of an unusual use."""

ODD: Mapping[str, Callable[[], Made]] = MappingProxyType(
    {
        "a sample of batch 0": lambda: (_chain(), [*_rows(3), {"x": _floats(0, 4)}]),
        "images of batch 0": lambda: (
            _model("g (float[N,4,5,5] x) => (float[N,4,3,3] z) { a = Conv(x, k) z = Relu(a) }",
                   k=_floats(4, 4, 3, 3)),
            [{"x": _floats(0, 4, 5, 5)}, {"x": _floats(1, 4, 5, 5)}],
        ),
        "one output twice": lambda: _changed(lambda m: m.graph.output.append(m.graph.output[0])),
        "a weight as an output": lambda: _changed(
            lambda m: m.graph.output.append(
                helper.make_tensor_value_info("w", TensorProto.FLOAT, [4, 4])
            )
        ),
        "no name": lambda: _changed(lambda m: m.graph.ClearField("name")),
        "a wrong inner shape": lambda: _changed(
            lambda m: m.graph.value_info.append(
                helper.make_tensor_value_info("a", TensorProto.FLOAT, [7, 9])
            )
        ),
        "a wrong output shape": lambda: _changed(lambda m: _set_shape(m.graph.output[0], 3, 9)),
        "no output shape": lambda: _changed(
            lambda m: m.graph.output[0].type.tensor_type.ClearField("shape")
        ),
        "no output type": lambda: _changed(lambda m: m.graph.output[0].ClearField("type")),
        "no input shape": lambda: _changed(
            lambda m: m.graph.input[0].type.tensor_type.ClearField("shape")
        ),
        "sizes of -1": lambda: _changed(_minus_one),
        "a shape of nobody": lambda: _changed(
            lambda m: m.graph.value_info.append(
                helper.make_tensor_value_info("nobody", TensorProto.FLOAT, ["N", 4])
            )
        ),
        "a weight that is an input": lambda: _changed(
            lambda m: m.graph.input.append(
                helper.make_tensor_value_info("v", TensorProto.FLOAT, [4, 4])
            )
        ),
        "a computed split": lambda: (
            _model(
                "g (float[N,4] x, int64[2] s) => (float[N,k] z, float[N,l] r) "
                "{ m = MatMul(x, w) p, q = Split<axis=1>(m, s) z = Relu(p) r = Relu(q) }"
            ),
            _rows(s=lambda _: np.array([1, 3])),
        ),
        "a sequence inside": lambda: _plain(
            "(float[N,4] z) { a = MatMul(x, w) s = SplitToSequence<axis=1>(a, two) "
            "c = ConcatFromSequence<axis=1>(s) z = MatMul(c, v) }",
            two=np.array(2),
        ),
        "a sequence as the output": lambda: _plain(
            "(seq(float[N,2]) z) { a = MatMul(x, w) b = Relu(a) c = MatMul(b, v) "
            "z = SplitToSequence<axis=1>(c, two) }",
            two=np.array(2),
        ),
        "an optional as the output": lambda: _plain(
            "(optional(float[N,4]) z) { a = MatMul(x, w) b = Relu(a) c = MatMul(b, v) "
            "z = Optional(c) }"
        ),
        "an optional inside": lambda: _plain(
            "(float[N,4] z) { a = MatMul(x, w) o = Optional(a) d = OptionalGetElement(o) "
            "z = MatMul(d, v) }"
        ),
        "a branch": lambda: (
            _model(
                "g (float[N,4] x, bool c) => (float[N,4] z) "
                f"{{ a = MatMul(x, w) b = If(c) {_BRANCHES} z = MatMul(b, u) }}"
            ),
            _rows(c=lambda i: np.array(i % 2 == 0)),
        ),
        "strings": lambda: (
            _model(
                "g (float[N,4] x, string[1] s) => (float[N,4] z, string[1] t) "
                "{ a = MatMul(x, w) z = Relu(a) t = Identity(s) }"
            ),
            _rows(s=lambda i: np.array([f"word {i}"])),
        ),
        "an average pool of operator set 19": lambda: (
            _model(
                "g (float[N,4,6,6] x) => (float[N,4,4,4] z) "
                "{ a = Conv<kernel_shape=[1,1]>(x, k) b = Relu(a) z = AveragePool<kernel_shape=[3,3]>(b) }",
                opset=19,
                k=_floats(4, 4, 1, 1),
            ),
            [{"x": _floats(1, 4, 6, 6)} for _ in range(4)],
        ),
        "an average pool with gaps": lambda: (
            _model(
                "g (float[N,4,6,6] x) => (float[N,4,2,2] z) { a = Conv<kernel_shape=[1,1]>(x, k) "
                "z = AveragePool<kernel_shape=[3,3], dilations=[2,2]>(a) }",
                opset=19,
                k=_floats(4, 4, 1, 1),
            ),
            [{"x": _floats(1, 4, 6, 6)} for _ in range(4)],
        ),
        "a weight that two layers share": lambda: _plain(
            "(float[N,4] z) { a = MatMul(x, w) b = Relu(a) z = Gemm<transB=1>(b, w) }"
        ),
        "half precision": lambda: (
            _model("g (float16[N,4] x) => (float16[N,4] z) { a = MatMul(x, k) z = Relu(a) }",
                   k=_floats(4, 4).astype(np.float16)),
            [{"x": _floats(2, 4).astype(np.float16)} for _ in range(4)],
        ),
        "functions of one name": _functions,
        "a weight of no columns": lambda: _plain(
            "(float[N,4] z, float[N,0] y) { z = MatMul(x, w) y = MatMul(x, e) }",
            e=np.zeros((4, 0), np.float32),
        ),
        "indices as the output": lambda: _plain(
            "(float[N,2] z, int64[N,2] i) { a = MatMul(x, w) z, i = TopK(a, two) }",
            two=np.array([2]),
        ),
        "a loop": lambda: (
            _model(
                "g (float[2,4] x) => (float[2,4] z) { a = MatMul(x, w) "
                "n = Constant<value = int64 {3}>() c = Constant<value = bool {1}>() "
                "z = Loop(n, c, a) <body = b (int64 i, bool d, float[2,4] s) => "
                "(bool e, float[2,4] t) { e = Identity(d) r = Tanh(s) t = MatMul(r, v) }> }"
            ),
            _rows(),
        ),
    }
)  # fmt: skip
"""Models with features other than their inputs."""


def odd_model(name: str) -> Made:
    """Return a model and its feeds, always the same."""
    _RNG.bit_generator.state = _START
    return (ODD | SEVERAL_INPUTS)[name]()


def sequence_across_layers(layers: int = 10) -> onnx.ModelProto:
    """Return a chain of layers, before the last of which parts of an early tensor are joined again."""
    chain = "\n".join(
        f"g{i} = MatMul ({'a' if i == layers - 1 else f'h{i}'}, w{i})\n h{i + 1} = Relu (g{i})"
        + (
            f"\n t = ConcatFromSequence<axis=1> (s)\n a = Add (t, h{i + 1})"
            if i + 1 == layers // 2
            else ""
        )
        for i in range(layers)
    )
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[1,8,16] x) => (float[1,8,16] y) <int64 k = {{4}}> {{
        h0 = Tanh (x)\n s = SplitToSequence<axis=1> (h0, k)\n {chain}\n y = Identity (h{layers}) }}""")
    rng = np.random.default_rng(0)
    model.graph.initializer.extend(
        numpy_helper.from_array(rng.normal(0, 0.35, (16, 16)).astype(np.float32), f"w{i}")
        for i in range(layers)
    )
    return model
