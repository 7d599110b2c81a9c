"""Random small networks with extreme magnitudes, and what reads emitted fraction bits independently."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

SIZE, CHANNELS = 8, 4
_FUSED = ("Relu", "LeakyRelu", "PRelu", "Clip")


class Network:
    """Grows a graph layer by layer; every value is [1, 4, 8, 8] and has a known magnitude."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.values: list[str] = ["x"]
        self.log2: dict[str, float] = {"x": float(rng.uniform(-10, 10))}

    def constant(self, data: NDArray[np.floating]) -> str:
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(data, np.float32), name))
        return name

    def node(self, op: str, inputs: list[str], log2: float, **attributes: object) -> str:
        name = f"{op.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [f"{name}_o"], name=name, **attributes))
        self.values.append(f"{name}_o")
        self.log2[f"{name}_o"] = log2
        return f"{name}_o"

    def pick(self) -> str:
        recent = self.values[-4:]
        return str(recent[int(self.rng.integers(len(recent)))])

    def conv(self) -> str:
        """Bring the magnitude anywhere between 2**-20 and 2**20, with a bias of any size."""
        source, goal = self.pick(), float(self.rng.uniform(-20, 20))
        scale = 2.0 ** (goal - self.log2[source]) / 6
        weight = self.rng.normal(size=(CHANNELS, CHANNELS, 3, 3)) * scale
        inputs = [source, self.constant(weight)]
        if self.rng.random() < 0.8:
            size = 2.0 ** (goal + self.rng.uniform(-20, 3))
            inputs.append(self.constant(self.rng.normal(size=CHANNELS) * size))
        output = self.node("Conv", inputs, goal, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        after = self.rng.integers(4)
        if after == 0:
            return self.node("Relu", [output], goal)
        if after == 1:
            return self.node("LeakyRelu", [output], goal, alpha=0.1)
        return output

    def add(self) -> str:
        a, b = self.pick(), self.pick()
        return self.node("Add", [a, b], max(self.log2[a], self.log2[b]))

    def subtract(self) -> str:
        a, b = self.pick(), self.values[0]
        return self.node("Sub", [a, b], max(self.log2[a], self.log2[b]))

    def shift(self) -> str:
        a, size = self.pick(), float(self.rng.uniform(-20, 20))
        offset = self.rng.normal(size=(1, CHANNELS, 1, 1)) * 2.0**size
        return self.node("Add", [a, self.constant(offset)], max(self.log2[a], size))

    def multiply(self) -> str:
        a, b = self.pick(), self.pick()
        if abs(self.log2[a] + self.log2[b]) > 30:
            return self.conv()
        return self.node("Mul", [a, b], self.log2[a] + self.log2[b])

    def concat(self) -> str:
        a, b = self.pick(), self.pick()
        size = max(self.log2[a], self.log2[b])
        joined = self.node("Concat", [a, b], size, axis=1)
        self.values.remove(joined)
        weight = self.rng.normal(size=(CHANNELS, 2 * CHANNELS, 1, 1)) / 3
        return self.node("Conv", [joined, self.constant(weight)], size, kernel_shape=[1, 1])

    def pool(self) -> str:
        a = self.pick()
        op = ("MaxPool", "AveragePool")[int(self.rng.integers(2))]
        return self.node(op, [a], self.log2[a], kernel_shape=[3, 3], pads=[1, 1, 1, 1])

    def hard_swish(self) -> str:
        a = self.pick()
        if self.log2[a] > 24:
            return self.conv()
        gate = self.node("HardSigmoid", [a], 0.0, alpha=1 / 6, beta=0.5)
        return self.node("Mul", [a, gate], self.log2[a])

    def swish(self) -> str:
        a = self.pick()
        gate = self.node("Sigmoid", [a], 0.0)
        return self.node("Mul", [a, gate], self.log2[a])

    def shared_convs(self) -> str:
        """Two convolutions with one weight, on inputs of unlike magnitudes."""
        weight = self.constant(self.rng.normal(size=(CHANNELS, CHANNELS, 1, 1)) / 2)
        a, b = self.pick(), self.pick()
        self.node("Conv", [a, weight], self.log2[a], kernel_shape=[1, 1])
        return self.node("Conv", [b, weight], self.log2[b], kernel_shape=[1, 1])

    def model(self) -> onnx.ModelProto:
        used = {name for node in self.nodes for name in node.input}
        written = [node.output[0] for node in self.nodes]
        outputs = [name for name in written if name not in used]
        shape = [1, CHANNELS, SIZE, SIZE]
        graph = helper.make_graph(
            self.nodes,
            "random",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
            self.weights,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def random_network(seed: int) -> tuple[onnx.ModelProto, list[dict[str, NDArray[np.float32]]]]:
    """Return a model and calibration feeds."""
    rng = np.random.default_rng(seed)
    net = Network(rng)
    layers = (
        net.conv,
        net.conv,
        net.add,
        net.subtract,
        net.shift,
        net.multiply,
        net.concat,
        net.pool,
        net.hard_swish,
        net.swish,
        net.shared_convs,
    )
    net.conv()
    for _ in range(int(rng.integers(3, 10))):
        layers[int(rng.integers(len(layers)))]()
    size = 2.0 ** net.log2["x"]
    feeds = [
        {"x": (rng.normal(size=(1, CHANNELS, SIZE, SIZE)) * size).astype(np.float32)}
        for _ in range(2)
    ]
    return net.model(), feeds


class Emitted:
    """Reads fraction bits off the Q/DQ nodes of an emitted model, and nothing else."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.nodes = list(model.graph.node)
        self.stored = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
        self.producer = {name: node for node in self.nodes for name in node.output}
        self.consumers: dict[str, list[onnx.NodeProto]] = {}
        for node in self.nodes:
            for name in node.input:
                self.consumers.setdefault(name, []).append(node)

    def computing(self) -> Iterator[onnx.NodeProto]:
        return (n for n in self.nodes if not n.op_type.endswith("antizeLinear"))

    def bits_of_input(self, name: str) -> int | None:
        """Return the fraction bits of what a node reads, or ``None`` if it reads floats."""
        node = self.producer.get(name)
        if node is None or node.op_type != "DequantizeLinear":
            return None
        return self._bits(node.input[1])

    def bits_of_output(self, name: str) -> int | None:
        """Return the fraction bits that an output is quantized with, after what is fused to it."""
        consumers = self.consumers.get(name, [])
        for node in consumers:
            if node.op_type == "QuantizeLinear":
                return self._bits(node.input[1])
        if len(consumers) == 1 and (consumers[0].op_type in _FUSED or self.is_factor(consumers[0])):
            return self.bits_of_output(consumers[0].output[0])
        return None

    def is_factor(self, node: onnx.NodeProto) -> bool:
        """Whether this multiplies by a float constant: the device's own arithmetic."""
        return node.op_type == "Mul" and any(name in self.stored for name in node.input)

    def is_swish(self, node: onnx.NodeProto) -> bool:
        """Whether this multiplies a value by its own gate."""
        if node.op_type != "Mul":
            return False
        for gate, value in (node.input, reversed(node.input)):
            source = self._before_quantizer(gate)
            while source is not None and self.is_factor(source):
                source = self.producer.get(source.input[0])
            if source is not None and source.op_type == "HardSigmoid" and source.input[0] == value:
                return True
        return False

    def constant(self, name: str) -> tuple[NDArray[np.integer], float] | None:
        """Return the stored integers and the scale of an input."""
        node = self.producer.get(name)
        if node is None or node.input[0] not in self.stored:
            return None
        return self.stored[node.input[0]], float(self.stored[node.input[1]])

    def scales(self) -> list[float]:
        pairs = [n for n in self.nodes if n.op_type.endswith("antizeLinear")]
        return [float(self.stored[n.input[1]]) for n in pairs]

    def _before_quantizer(self, name: str) -> onnx.NodeProto | None:
        node = self.producer.get(name)
        if node is None or node.op_type != "DequantizeLinear":
            return None
        quantizer = self.producer.get(node.input[0])
        return None if quantizer is None else self.producer.get(quantizer.input[0])

    def _bits(self, scale: str) -> int:
        mantissa, exponent = math.frexp(float(self.stored[scale]))
        assert mantissa == 0.5, f"{scale} is {self.stored[scale]}, no power of two"
        return 1 - exponent
