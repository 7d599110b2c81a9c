"""Rewrites for an NPU: operators that suit it better, and its fixed-point arithmetic as float nodes.

Each changes its graph. The constants are those of the Ryzen AI CNN datapath: averages are sums times
k / 2**n, the gate of hard swish is 2731 / 2**14 instead of 1/6, the slope of a leaky relu is a multiple
of 1/256.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Container, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import onnx_ir as ir

from lowbit.errors import ConfigError, did_you_mean
from lowbit.graph.editing import (
    ARITHMETIC,
    KEPT,
    add_constant,
    candidates,
    insert_after,
    is_constant,
    replace_node,
    take_over,
)
from lowbit.graph.memory import garbage_collection_paused
from lowbit.graph.naming import answer_to, names_of, tensor_name
from lowbit.normalize.fold_affine import normalization
from lowbit.ops.families import MEAN_POOLS
from lowbit.ops.linear import LINEAR
from lowbit.ops.traits import clip_bounds, constant_integers, reduced_axes, spatial_size, traits_of
from lowbit.transforms.gate_rewrites import compose_hardsigmoid
from lowbit.transforms.runtime_rewrites import (
    embed_layer_norm_to_gather,
    gemm_to_matmul,
    normalized_add_to_sum,
)
from lowbit.transforms.shared_weights import has_shared_weights, separate_shared_weights
from lowbit.transforms.swish_gain import drop_undone, freed_of_gain, swish_gain

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
            source = freed_of_gain(node.inputs[0])
            gate = ir.node("HardSigmoid", [source], {"alpha": 1 / 6, "beta": 0.5})
            replace_node(graph, node, [gate])
    drop_undone(graph)


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


def round_clip_bounds(graph: ir.Graph) -> None:
    """Round the constant bounds of Clip to whole numbers of 8 bits; a missing one is the last of them."""
    for node in candidates(graph):
        if node.op_type != "Clip" or any(_is_computed(v) for v in node.inputs[1:]):
            continue
        name = tensor_name(node.outputs[0])
        low, high = clip_bounds(node)
        bounds = (("min", -128.0 if low is None else low), ("max", 127.0 if high is None else high))
        numbers = [
            add_constant(graph, f"{name}_{word}", np.array(_whole(bound), np.float32))
            for word, bound in bounds
        ]
        clip = ir.node("Clip", [node.inputs[0], *numbers], name=node.name)
        replace_node(graph, node, [clip])


def _is_computed(value: ir.Value | None) -> bool:
    return value is not None and not is_constant(value)


def _whole(bound: float) -> float:
    return float(max(-128, min(127, round(max(-1e9, min(1e9, bound))))))


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
    if count == 0:  # the average of nothing
        return best
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
    name = tensor_name(node.outputs[0])
    value = add_constant(graph, f"{name}_Scale", np.array(factor, np.float32))
    product = ir.node("Mul", [node.outputs[0], value], name=f"{name}_Mul")
    product.meta[ARITHMETIC] = True
    insert_after(graph, product, f"{name}_Mul")


# Average pools of more elements than this do not fit the accumulator.
_LARGEST_POOL = 512


def reduce_mean_to_pool(graph: ir.Graph) -> None:
    """ReduceMean over height and width, dimensions kept, becomes GlobalAveragePool."""
    for node in candidates(graph):
        if node.op_type != "ReduceMean" or not node.attributes.get_int("keepdims", 1):
            continue
        source, axes = node.inputs[0], reduced_axes(node)
        if source is None or source.shape is None or len(source.shape) != 4 or axes is None:
            continue
        if source.dtype == ir.DataType.FLOAT and sorted(axis % 4 for axis in axes) == [2, 3]:
            replace_node(graph, node, [ir.node("GlobalAveragePool", [source])])


def split_large_pool(graph: ir.Graph) -> None:
    """GlobalAveragePool over more than 512 elements is done in two steps."""
    for node in candidates(graph):
        source = node.inputs[0] if node.inputs else None
        if node.op_type != "GlobalAveragePool" or source is None:
            continue
        size = spatial_size(source)
        if size is None or size[0] * size[1] <= _LARGEST_POOL:
            continue
        first = [_divisor_below_root(n) for n in size]
        rest = [n // f for n, f in zip(size, first, strict=True)]
        if math.prod(first) > _LARGEST_POOL or math.prod(rest) > _LARGEST_POOL:
            continue
        name = f"{tensor_name(node.outputs[0])}_part"
        pool = ir.node(
            "AveragePool",
            [source],
            {"kernel_shape": first, "strides": first, "pads": [0, 0, 0, 0]},
            name=name,
        )
        pool.outputs[0].name = name
        pool.outputs[0].type = source.type
        dims = list(source.shape)[:2] if source.shape is not None else []
        pool.outputs[0].shape = ir.Shape([*dims, *rest])
        graph.insert_before(node, pool)
        node.replace_input_with(0, pool.outputs[0])


def split_to_slice(graph: ir.Graph) -> None:
    """Split becomes one Slice for each part."""
    for node in candidates(graph):
        source = node.inputs[0] if node.inputs else None
        if node.op_type != "Split" or source is None:
            continue
        sizes = _split_sizes(node, source)
        if sizes is None or len(sizes) != len(node.outputs) or min(sizes) < 0:
            continue
        ends = np.cumsum(sizes)
        for index, output in enumerate(node.outputs):
            if output.uses() or output.is_graph_output():
                part = _slice(graph, node, index, (ends[index] - sizes[index], ends[index]))
                take_over(output, part.outputs[0])
        graph.remove(node, safe=True)


def batchnorm_to_conv(graph: ir.Graph) -> None:
    """A BatchNormalization nothing could absorb becomes a depthwise convolution."""
    for node in candidates(graph):
        source = node.inputs[0] if node.inputs else None
        if node.op_type != "BatchNormalization" or source is None or source.shape is None:
            continue
        parameters = normalization(node)
        if len(source.shape) != 4 or len(node.outputs) != 1 or parameters is None:
            continue
        mean, factor, offset = parameters
        name = tensor_name(node.outputs[0])
        conv = ir.node(
            "Conv",
            [
                source,
                add_constant(graph, f"{name}_weight", factor.reshape(-1, 1, 1, 1)),
                add_constant(graph, f"{name}_bias", offset - mean * factor),
            ],
            {
                "kernel_shape": [1, 1],
                "strides": [1, 1],
                "pads": [0, 0, 0, 0],
                "dilations": [1, 1],
                "group": len(factor),
            },
        )
        replace_node(graph, node, [conv])


def _divisor_below_root(n: int) -> int:
    return next(d for d in range(math.isqrt(n), 0, -1) if n % d == 0)


def _slice(graph: ir.Graph, node: ir.Node, index: int, bounds: tuple[int, int]) -> ir.Node:
    """Insert the Slice that gives one part of a Split, and return it."""
    name, axis = tensor_name(node.outputs[index]), node.attributes.get_int("axis", 0)
    numbers = {"starts": bounds[0], "ends": bounds[1], "axes": axis, "steps": 1}
    inputs = [
        add_constant(graph, f"{name}_{what}", np.array([number], np.int64))
        for what, number in numbers.items()
    ]
    part = ir.node("Slice", [node.inputs[0], *inputs], name=f"{node.name}_{index}")
    answer_to(part, *names_of(node)[:1])
    graph.insert_before(node, part)
    return part


def _split_sizes(node: ir.Node, source: ir.Value) -> list[int] | None:
    """Return the sizes of a Split's outputs, or ``None`` where they are computed or not known."""
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        return constant_integers(node, 1)
    axis = node.attributes.get_int("axis", 0)
    total = source.shape[axis] if source.shape is not None else None
    parts = len(node.outputs)
    if not isinstance(total, int):
        return None
    chunk = -(-total // parts)
    return [min(chunk, total - chunk * k) for k in range(parts)]


@dataclasses.dataclass(frozen=True, slots=True)
class Rewrite:
    """A change of a graph that concerns nodes of some operators alone, and of some graphs with them."""

    apply: Callable[[ir.Graph], None]
    operators: tuple[str, ...]
    applies: Callable[[ir.Graph], bool] = lambda _: True

    def concerns(self, graph: ir.Graph, keep: Container[str]) -> bool:
        """Whether there is something to change."""
        own = any(n.op_type in self.operators and n.name not in keep for n in graph)
        return own and self.applies(graph)


REWRITES: Mapping[str, Rewrite] = MappingProxyType(
    {
        "reduce_mean_to_pool": Rewrite(reduce_mean_to_pool, ("ReduceMean",)),
        "split_large_pool": Rewrite(split_large_pool, ("GlobalAveragePool",)),
        "split_to_slice": Rewrite(split_to_slice, ("Split",)),
        "batchnorm_to_conv": Rewrite(batchnorm_to_conv, ("BatchNormalization",)),
        "compose_hardsigmoid": Rewrite(compose_hardsigmoid, ("Clip",)),
        "swish_gain": Rewrite(swish_gain, ("Sigmoid",)),
        "leaky_relu_slope": Rewrite(leaky_relu_slope, ("LeakyRelu",)),
        "sigmoid_to_hardsigmoid": Rewrite(sigmoid_to_hardsigmoid, ("Sigmoid",)),
        "hardsigmoid_factor": Rewrite(hardsigmoid_factor, ("HardSigmoid",)),
        "average_pool_factor": Rewrite(average_pool_factor, MEAN_POOLS),
        "reduce_mean_factor": Rewrite(reduce_mean_factor, ("ReduceMean",)),
        "clip_to_relu": Rewrite(clip_to_relu, ("Clip",)),
        "round_clip_bounds": Rewrite(round_clip_bounds, ("Clip",)),
        "gemm_to_matmul": Rewrite(gemm_to_matmul, ("Gemm",)),
        "separate_shared_weights": Rewrite(separate_shared_weights, LINEAR, has_shared_weights),
        "embed_layer_norm_to_gather": Rewrite(
            embed_layer_norm_to_gather, ("EmbedLayerNormalization",)
        ),
        "normalized_add_to_sum": Rewrite(
            normalized_add_to_sum, ("LayerNormalization", "ReduceMean")
        ),
    }
)


# What prepares for another rewrite is of no use without it.
_PREPARES_FOR = MappingProxyType({"swish_gain": "sigmoid_to_hardsigmoid"})


@garbage_collection_paused()
def rewrite(
    model: ir.Model,
    names: Sequence[str],
    skip: Sequence[str] = (),
    keep: Container[str] = (),
) -> ir.Model:
    """Return a copy of ``model`` with the named rewrites done, except those to ``skip``.

    It is ``model`` itself if there is nothing in it that they concern. Nodes whose names are in
    ``keep`` stay as they are: what computes in float does not run on the device, so it does not get
    the device's arithmetic.
    """
    for name in (*names, *skip):
        if name not in REWRITES:
            raise ConfigError(
                f"unknown rewrite {name!r}{did_you_mean(name, REWRITES)} "
                f"(known: {', '.join(REWRITES)})"
            )
    wanted = [REWRITES[n] for n in names if not {n, _PREPARES_FOR.get(n)} & {*skip}]
    if not any(each.concerns(model.graph, keep) for each in wanted):
        return model
    model = model.clone()
    for node in model.graph:
        node.meta[KEPT] = node.name in keep
    for each in wanted:
        each.apply(model.graph)
    return model
