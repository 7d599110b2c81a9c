"""Random small graphs as exporters make them: several inputs, branches, shared weights, free sizes."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

_WIDTH = 6
_BINARY = ("Add", "Mul", "Max", "Min")
_UNARY = ("Relu", "Sigmoid", "Tanh", "LeakyRelu", "Softmax", "Exp", "Neg", "Erf", "HardSwish")


@dataclasses.dataclass
class _Graph:
    """Values of the shape [rows, 6] or [rows, 6, 5, 5], and the nodes that made them."""

    draw: st.DrawFn
    rng: np.random.Generator
    spatial: bool
    inputs: list[str]
    nodes: list[onnx.NodeProto] = dataclasses.field(default_factory=list)
    weights: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    values: list[str] = dataclasses.field(default_factory=list)
    matrices: list[str] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self.values = list(self.inputs)

    def node(self, op: str, inputs: list[str], outputs: int = 1, **attributes: object) -> list[str]:
        name = f"{op.lower()}_{len(self.nodes)}"
        results = [f"{name}_{index}" for index in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, results, name, **attributes))
        return results

    def constant(self, data: np.ndarray) -> str:
        name = f"constant_{len(self.weights)}"
        self.weights[name] = data
        return name

    def floats(self, *shape: int, spread: float = 0.5) -> str:
        return self.constant(self.rng.normal(0, spread, shape).astype(np.float32))

    def pick(self) -> str:
        return self.draw(st.sampled_from(self.values[-4:]))

    def linear(self) -> str:
        """A linear layer, with a weight of its own or one that another has."""
        source = self.pick()
        if self.matrices and self.draw(st.booleans()):
            weight = self.draw(st.sampled_from(self.matrices))
        else:
            shape = (_WIDTH, _WIDTH, 3, 3) if self.spatial else (_WIDTH, _WIDTH)
            weight = self.floats(*shape, spread=0.2 if self.spatial else 0.5)
            self.matrices.append(weight)
        bias = self.floats(_WIDTH)
        if self.spatial:
            return self.node("Conv", [source, weight, bias], pads=[1, 1, 1, 1])[0]
        if self.draw(st.booleans()):
            return self.node("Gemm", [source, weight, bias], transB=int(self.draw(st.booleans())))[
                0
            ]
        (product,) = self.node("MatMul", [source, weight])
        return self.node("Add", [product, bias])[0]

    def unary(self) -> str:
        op = self.draw(st.sampled_from(_UNARY))
        source = self.pick()
        if op == "Exp":
            (source,) = self.node("Tanh", [source])
        return self.node(op, [source], **({"axis": 1} if op == "Softmax" else {}))[0]

    def binary(self) -> str:
        return self.node(self.draw(st.sampled_from(_BINARY)), [self.pick(), self.pick()])[0]

    def norm(self) -> str:
        shape = (_WIDTH,)
        if self.spatial:
            parts = [self.floats(*shape) for _ in range(3)]
            variance = self.constant(self.rng.uniform(0.5, 2, shape).astype(np.float32))
            return self.node("BatchNormalization", [self.pick(), *parts, variance])[0]
        parts = [self.floats(*shape, spread=1.0) for _ in range(2)]
        return self.node("LayerNormalization", [self.pick(), *parts], axis=-1)[0]

    def movement(self) -> str:
        """Split in two and put together the other way round."""
        sizes = self.constant(np.array([2, _WIDTH - 2]))
        first, second = self.node("Split", [self.pick(), sizes], 2, axis=1)
        return self.node("Concat", [second, first], axis=1)[0]

    def pool(self) -> str:
        if not self.spatial:
            return self.unary()
        op = self.draw(st.sampled_from(("AveragePool", "MaxPool")))
        return self.node(op, [self.pick()], kernel_shape=[3, 3], pads=[1, 1, 1, 1])[0]

    def where(self) -> str:
        a, b = self.pick(), self.pick()
        (mask,) = self.node("Greater", [a, self.constant(np.float32(0.1))])
        return self.node("Where", [mask, a, b])[0]

    def branch(self) -> str:
        """An If whose condition depends on data, with a layer in one branch."""
        source = self.pick()
        (total,) = self.node("ReduceMax", [source], keepdims=0)
        (condition,) = self.node("Greater", [total, self.constant(np.float32(0.5))])
        number = len(self.nodes)
        info = [
            helper.make_tensor_value_info(f"branch_{number}_{k}", TensorProto.FLOAT, None)
            for k in range(2)
        ]
        then = helper.make_node("Tanh", [source], [info[0].name])
        other = helper.make_node("Relu", [source], [info[1].name])
        graphs = [
            helper.make_graph([n], f"b{number}{k}", [], [i])
            for k, (n, i) in enumerate(zip((then, other), info, strict=True))
        ]
        return self.node("If", [condition], then_branch=graphs[0], else_branch=graphs[1])[0]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[onnx.ModelProto, list[dict[str, np.ndarray]]]:
    """Draw a model and feeds for it."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 16)))
    spatial, free = draw(st.booleans()), draw(st.booleans())
    inputs = [f"x{index}" for index in range(draw(st.integers(1, 3)))]
    graph = _Graph(draw, rng, spatial, inputs)
    steps = (graph.linear, graph.linear, graph.unary, graph.binary, graph.norm, graph.movement)
    steps += (graph.pool, graph.where, graph.branch)
    graph.values.append(graph.linear())
    for step in draw(st.lists(st.sampled_from(range(len(steps))), min_size=2, max_size=8)):
        graph.values.append(steps[step]())
    # So that there is always something to quantize.
    graph.values.append(graph.linear())
    outputs = list(dict.fromkeys([graph.values[-1], draw(st.sampled_from(graph.values))]))
    size = [_WIDTH, 5, 5] if spatial else [_WIDTH]
    info = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, ["rows" if free else 2, *size])
        for n in inputs
    ]
    results = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, [None, *size])
        for n in outputs
        if n not in inputs
    ]
    tensors = [numpy_helper.from_array(data, name) for name, data in graph.weights.items()]
    made = helper.make_graph(graph.nodes, "random", info, results, tensors)
    opset = helper.make_opsetid("", draw(st.sampled_from((14, 17, 19, 21))))
    if opset.version < 17 and any(node.op_type == "LayerNormalization" for node in graph.nodes):
        opset.version = 17
    model = helper.make_model(made, opset_imports=[opset], ir_version=10)
    rows = [int(draw(st.integers(1, 3))) if free else 2 for _ in range(4)]
    feeds = [
        {n: rng.normal(size=(count, *size)).astype(np.float32) for n in inputs} for count in rows
    ]
    return model, feeds
