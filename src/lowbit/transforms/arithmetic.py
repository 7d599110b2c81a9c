"""An NPU's fixed-point arithmetic written as float nodes. Each changes its graph.

The constants are those of the Ryzen AI CNN datapath: averages are sums times k / 2**n, the gate of
hard swish is 2731 / 2**14 instead of 1/6, the slope of a leaky relu is a multiple of 1/256.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from lowbit.graph.editing import add_constant, append_factor, candidates, replace_node
from lowbit.graph.naming import tensor_name
from lowbit.ops.traits import clip_bounds, reduced_axes, spatial_size, traits_of

HARDSIGMOID_FACTOR = 2731 / 16384 * 6
_LARGEST_KERNEL = 255

# Kernels the datapath has its own constants for, instead of the nearest k / 2**n.
_POOL_FACTORS = {3: 63 / 64, 5: 250 / 256, 6: 252 / 256, 7: 1029 / 1024, 14: 4116 / 4096}


def leaky_relu_slope(graph: ir.Graph) -> None:
    """Round the slope of LeakyRelu to a multiple of 1/256."""
    for node in candidates(graph):
        if node.op_type == "LeakyRelu":
            slope = round(node.attributes.get_float("alpha", 0.01) * 256) / 256
            node.attributes["alpha"] = ir.AttrFloat32("alpha", slope)


def sigmoid_to_hardsigmoid(graph: ir.Graph) -> None:
    """Sigmoid becomes HardSigmoid(1/6, 1/2), the only gate there is."""
    for node in candidates(graph):
        if node.op_type == "Sigmoid" and node.inputs[0] is not None:
            gate = ir.node("HardSigmoid", [node.inputs[0]], {"alpha": 1 / 6, "beta": 0.5})
            replace_node(graph, node, [gate])


def hardsigmoid_factor(graph: ir.Graph) -> None:
    """Scale HardSigmoid by what the fixed-point slope differs from 1/6."""
    for node in candidates(graph):
        traits = traits_of(node)
        if node.op_type == "HardSigmoid" and traits is not None and traits.applies(node):
            _multiply(graph, node, HARDSIGMOID_FACTOR)


def average_pool_factor(graph: ir.Graph) -> None:
    """Scale average pools of square kernels by what their fixed-point reciprocal differs."""
    for node in candidates(graph):
        kernel = _pool_kernel(node)
        if kernel is not None and kernel[0] == kernel[1]:
            _multiply(graph, node, pool_factor(*kernel))


def reduce_mean_factor(graph: ir.Graph) -> None:
    """Scale ReduceMean by what its fixed-point reciprocal differs."""
    for node in candidates(graph):
        if node.op_type != "ReduceMean":
            continue
        source, axes = node.inputs[0], reduced_axes(node)
        if source is None or source.shape is None or axes is None:
            continue
        sizes = [source.shape[axis] for axis in axes]
        if all(isinstance(size, int) for size in sizes):
            count = math.prod(int(size) for size in sizes if isinstance(size, int))
            _multiply(graph, node, reciprocal_factor(count))


def clip_to_relu(graph: ir.Graph) -> None:
    """Clip from zero becomes Relu: the upper bound is left to the quantizer's range."""
    for node in candidates(graph):
        if node.op_type == "Clip" and node.inputs[0] is not None:
            low, _ = clip_bounds(node)
            if low is not None and low >= 0:
                replace_node(graph, node, [ir.node("Relu", [node.inputs[0]])])


def pool_factor(height: int, width: int) -> float:
    """Return the ratio of the datapath's average to the true one for a pooling kernel."""
    if height == width and height in _POOL_FACTORS:
        return _POOL_FACTORS[height]
    if max(height, width) > _LARGEST_KERNEL:
        return 1.0
    return reciprocal_factor(height * width)


def reciprocal_factor(count: int) -> float:
    """Return ``count`` times the nearest k / 2**n to its reciprocal."""
    best, least = 1.0, math.inf
    for n in range(7 + math.ceil(math.log2(count)) if count > 1 else 1):
        k = round(2**n / count)
        difference = abs(k / 2**n - 1 / count)
        if difference < least:
            best, least = k / 2**n * count, difference
    return best


def _pool_kernel(node: ir.Node) -> tuple[int, int] | None:
    if node.op_type == "GlobalAveragePool" and node.inputs[0] is not None:
        return spatial_size(node.inputs[0])
    if node.op_type == "AveragePool":
        kernel = node.attributes.get_ints("kernel_shape", ())
        return (int(kernel[0]), int(kernel[1])) if len(kernel) == 2 else None
    return None


def _multiply(graph: ir.Graph, node: ir.Node, factor: float) -> None:
    if factor == 1.0:
        return
    name = f"{tensor_name(node.outputs[0])}_Scale"
    append_factor(graph, node, add_constant(graph, name, np.array(factor, np.float32)))
