"""A network of large feature maps: nested U-shapes that find what stands out in an image of 320 x 320.

Built like U2-Net's small version (Qin et al. 2020): 119 convolutions, 1.1 million parameters. Weights are
drawn at random, small enough for the network to tolerate 8 bits; time and memory do not depend on them.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SIZE = 320
_OUTER, _INNER = 64, 16
# Layers of the U-shape at each of the upper resolutions; below them two of dilated convolutions.
_DEPTHS = (7, 6, 5, 4)


class _Builder:
    """Nodes and constants of a graph; every method adds some and returns the name of its output."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._rng = np.random.default_rng(0)

    def _node(self, kind: str, inputs: Iterable[str], **attributes: object) -> str:
        name = f"{kind.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name, **attributes))
        return name

    def _constant(self, array: np.ndarray) -> str:
        name = f"constant{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def conv(
        self, x: str, channels: tuple[int, int], dilation: int = 1, gain: float = 1.0, side: int = 3
    ) -> str:
        """Convolve to as many maps of the same size."""
        shape = (channels[1], channels[0], side, side)
        scale = gain * (2 / (channels[0] * side**2)) ** 0.5
        weight = self._constant(self._rng.normal(0, scale, shape).astype(np.float32))
        bias = self._constant(self._rng.normal(0, 0.05, channels[1]).astype(np.float32))
        around = [dilation * (side // 2)] * 4
        return self._node("Conv", (x, weight, bias), pads=around, dilations=[dilation] * 2)

    def layer(self, x: str, channels: tuple[int, int], dilation: int = 1, gain: float = 1.0) -> str:
        """Convolve and rectify."""
        return self._node("Relu", [self.conv(x, channels, dilation, gain)])

    def pool(self, x: str) -> str:
        """Halve the size."""
        return self._node("MaxPool", [x], kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1)

    def resized(self, x: str, channels: int, size: int) -> str:
        """Interpolate to another size."""
        sizes = self._constant(np.array([1, channels, size, size]))
        return self._node("Resize", (x, "", "", sizes), mode="linear")

    def joined(self, *inputs: str) -> str:
        """Concatenate channels."""
        return self._node("Concat", inputs, axis=1)

    def u_shape(self, x: str, channels: int, depth: int, size: int) -> str:
        """Go down in resolution and up again, parallel to a residual connection."""
        start = self.layer(x, (channels, _OUTER))
        down, sizes = [self.layer(start, (_OUTER, _INNER))], [size]
        for _ in range(depth - 2):
            down.append(self.layer(self.pool(down[-1]), (_INNER, _INNER)))
            sizes.append((sizes[-1] + 1) // 2)
        up = self.layer(down[-1], (_INNER, _INNER), dilation=2)
        for level in reversed(range(depth - 1)):
            if level < depth - 2:
                up = self.resized(up, _INNER, sizes[level])
            both = self.joined(up, down[level])
            up = self._last(both) if level == 0 else self.layer(both, (2 * _INNER, _INNER))
        return self._node("Add", (up, start))

    def dilated(self, x: str, channels: int) -> str:
        """Do the same at one resolution, with holes in the kernels instead."""
        start = self.layer(x, (channels, _OUTER))
        down = [self.layer(start, (_OUTER, _INNER))]
        for dilation in (2, 4, 8):
            down.append(self.layer(down[-1], (_INNER, _INNER), dilation))
        up = down[-1]
        for level, dilation in ((2, 4), (1, 2)):
            up = self.layer(self.joined(up, down[level]), (2 * _INNER, _INNER), dilation)
        return self._node("Add", (self._last(self.joined(up, down[0])), start))

    def _last(self, x: str) -> str:
        # What is added to the residual connection is small, as in networks that were trained.
        return self.layer(x, (2 * _INNER, _OUTER), gain=0.3)

    def model(self, output: str) -> bytes:
        """Return the file, with a sigmoid on top."""
        self.nodes.append(helper.make_node("Sigmoid", [output], ["y"], "sigmoid"))
        shapes = {"x": [1, 3, SIZE, SIZE], "y": [1, 1, SIZE, SIZE]}
        x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items())
        graph = helper.make_graph(self.nodes, "segmentation", [x], [y], self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        onnx.checker.check_model(model)
        return model.SerializeToString()


def segmentation_network() -> bytes:
    """Return the model."""
    build, x, channels, size = _Builder(), "x", 3, SIZE
    maps: list[tuple[str, int, int]] = []
    for depth in _DEPTHS:
        maps.append((build.u_shape(x, channels, depth, size), size, depth))
        x, channels, size = build.pool(maps[-1][0]), _OUTER, size // 2
    maps.append((build.dilated(x, _OUTER), size, 0))
    x, size = build.dilated(build.pool(maps[-1][0]), _OUTER), size // 2
    found = [(x, size)]
    for skipped, size, depth in reversed(maps):
        both = build.joined(build.resized(x, _OUTER, size), skipped)
        x = (
            build.u_shape(both, 2 * _OUTER, depth, size)
            if depth
            else build.dilated(both, 2 * _OUTER)
        )
        found.append((x, size))
    sides = [build.resized(build.conv(x, (_OUTER, 1)), 1, SIZE) for x, _ in found]
    return build.model(build.conv(build.joined(*sides), (len(sides), 1), gain=0.2, side=1))


def images(count: int) -> Iterable[np.ndarray]:
    """Yield inputs that have structure at every scale, as photographs do."""
    rng = np.random.default_rng(1)
    for _ in range(count):
        image = np.zeros((3, SIZE, SIZE), np.float32)
        for cells in (2, 5, 10, 20, 40, 80, 160):
            block = np.ones((1, SIZE // cells, SIZE // cells), np.float32)
            image += np.kron(rng.normal(0, cells**-0.5, (3, cells, cells)), block)
        yield (image / image.std()).astype(np.float32)[None]
