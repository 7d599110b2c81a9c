"""Attention written in the ways that exporters and hands write it, as small models with feeds."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH, TOKENS = 16, 6
MASKED = (-np.inf, float(np.finfo(np.float32).min), -1e9, -1e4, -100.0)


class Network:
    """Nodes and constants that are put together to a model."""

    def __init__(self, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []

    def constant(self, data: object, dtype: type = np.float32) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(data, dtype), name))
        return name

    def add(self, op: str, *inputs: str, **attributes: object) -> str:
        name = f"n{len(self.nodes)}_{op}"
        self.nodes.append(helper.make_node(op, list(inputs), [f"{name}_out"], name, **attributes))
        return f"{name}_out"

    def input(self, name: str, shape: list[int | str], dtype: int = TensorProto.FLOAT) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def linear(self, x: str, inputs: int = WIDTH, outputs: int = WIDTH) -> str:
        weight = self.random.normal(0, 1 / np.sqrt(inputs), (inputs, outputs))
        product = self.add("MatMul", x, self.constant(weight))
        return self.add("Add", product, self.constant(self.random.normal(0, 0.1, outputs)))

    def norm(self, x: str, kind: str = "layer") -> str:
        gamma = self.constant(self.random.uniform(0.5, 1.5, WIDTH))
        if kind == "layer":
            beta = self.constant(self.random.normal(0, 0.1, WIDTH))
            return self.add("LayerNormalization", x, gamma, beta)
        last = self.constant([-1], np.int64)
        if kind == "layer written out":
            x = self.add("Sub", x, self.add("ReduceMean", x, last))
        squares = self.add("Pow", x, self.constant(2.0))
        mean = self.add("Add", self.add("ReduceMean", squares, last), self.constant(1e-6))
        if kind == "rms by reciprocal":
            inverse = self.add("Reciprocal", self.add("Sqrt", mean))
            return self.add("Mul", gamma, self.add("Mul", x, inverse))
        if kind == "rms by power":
            return self.add(
                "Mul", self.add("Mul", x, self.add("Pow", mean, self.constant(-0.5))), gamma
            )
        return self.add("Mul", self.add("Div", x, self.add("Sqrt", mean)), gamma)

    def gelu(self, x: str, kind: str) -> str:
        half, one = self.constant(0.5), self.constant(1.0)
        if kind == "erf":
            inner = self.add("Erf", self.add("Div", x, self.constant(np.sqrt(2))))
            return self.add("Mul", self.add("Mul", x, self.add("Add", inner, one)), half)
        if kind == "erf, half first":
            inner = self.add("Erf", self.add("Mul", x, self.constant(np.sqrt(0.5))))
            return self.add("Mul", self.add("Mul", x, half), self.add("Add", inner, one))
        if kind == "tanh":
            cube = self.add("Mul", self.add("Pow", x, self.constant(3.0)), self.constant(0.044715))
            inner = self.add("Mul", self.add("Add", x, cube), self.constant(np.sqrt(2 / np.pi)))
            gate = self.add("Add", self.add("Tanh", inner), one)
            return self.add("Mul", self.add("Mul", x, half), gate)
        inner = self.add("Sigmoid", self.add("Mul", x, self.constant(1.702)))
        return self.add("Mul", x, inner)

    def heads(self, x: str) -> str:
        shape = self.constant([0, 0, 2, WIDTH // 2], np.int64)
        return self.add("Transpose", self.add("Reshape", x, shape), perm=[0, 2, 1, 3])

    def scores(self, x: str) -> str:
        query, key = self.heads(self.linear(x)), self.heads(self.linear(x))
        product = self.add("MatMul", query, self.add("Transpose", key, perm=[0, 1, 3, 2]))
        return self.add("Div", product, self.constant(np.sqrt(WIDTH / 2)))

    def attended(self, x: str, scores: str) -> str:
        mixed = self.add("MatMul", self.add("Softmax", scores, axis=-1), self.heads(self.linear(x)))
        merged = self.add("Transpose", mixed, perm=[0, 2, 1, 3])
        return self.linear(self.add("Reshape", merged, self.constant([0, 0, WIDTH], np.int64)))

    def masked(self, scores: str, kind: str, number: float) -> str:
        """Return scores with a mask of ``number`` put on in one of the ways of ``MASKS``."""
        causal = np.triu(np.ones((TOKENS, TOKENS)), 1)
        blocked = self.constant(np.where(causal > 0, number, 0.0))
        if kind == "constant":
            return self.add("Add", scores, blocked)
        if kind == "sliced":
            size = self.constant([TOKENS, TOKENS], np.int64)
            table = self.constant(np.pad(np.where(causal > 0, number, 0.0), 2))
            at = self.constant([2, 2], np.int64), self.constant([2 + TOKENS] * 2, np.int64)
            return self.add("Add", scores, self.add("Reshape", self.add("Slice", table, *at), size))
        if kind == "where":
            keep = self.constant(causal == 0, bool)
            return self.add("Where", keep, scores, self.constant(number))
        if kind == "float input":
            return self.add("Add", scores, self.input("mask", [TOKENS, TOKENS]))
        seen = self.input("mask", [1, TOKENS], TensorProto.INT64)
        if kind == "where from input":
            hidden = self.add("Equal", seen, self.constant(0, np.int64))
            bias = self.add("Where", hidden, self.constant(number), self.constant(0.0))
            shape = self.constant([1, 1, TOKENS, TOKENS], np.int64)
            return self.add("Add", scores, self.add("Expand", bias, shape))
        share = self.add("Cast", seen, to=TensorProto.FLOAT)
        hidden = self.add("Sub", self.constant(1.0), share)
        bias = self.add("Mul", hidden, self.constant(number))
        if kind == "subtracted":
            return self.add("Sub", scores, self.add("Neg", bias))
        return self.add("Add", scores, bias)

    def model(self, output: str, opset: int = 18) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "attention",
            self.inputs,
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
            self.constants,
        )
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9
        )


MASKS = (
    "constant",
    "sliced",
    "where",
    "float input",
    "where from input",
    "multiplied",
    "subtracted",
)


def block(
    *, mask: str = "constant", number: float = -1e9, norm: str = "layer", gelu: str = "erf"
) -> onnx.ModelProto:
    """Return an encoder's block: attention with a mask, and a feed-forward pair after a GELU."""
    net = Network()
    x = net.input("x", ["batch", TOKENS, WIDTH])
    inner = net.norm(x, norm)
    scores = net.masked(net.scores(inner), mask, number)
    x = net.add("Add", x, net.attended(inner, scores))
    hidden = net.gelu(net.linear(net.norm(x, norm), WIDTH, 2 * WIDTH), gelu)
    return net.model(net.add("Add", x, net.linear(hidden, 2 * WIDTH, WIDTH)))


def feeds(
    model: onnx.ModelProto, count: int = 8, number: float = -1e9
) -> list[dict[str, np.ndarray]]:
    """Return samples for such a model: activations with a mask of the kind its input has."""
    random = np.random.default_rng(5)
    found = []
    for _ in range(count):
        feed: dict[str, np.ndarray] = {}
        for value in model.graph.input:
            if value.name == "x":
                feed["x"] = random.normal(0, 1, (1, TOKENS, WIDTH)).astype(np.float32)
            elif value.type.tensor_type.elem_type == TensorProto.INT64:
                feed[value.name] = (np.arange(TOKENS) < random.integers(2, TOKENS))[None].astype(
                    np.int64
                )
            else:
                causal = np.triu(np.ones((TOKENS, TOKENS)), 1)
                feed[value.name] = np.where(causal > 0, number, 0).astype(np.float32)
        found.append(feed)
    return found
