"""Rotation of a transformer's channels (QuaRot, arXiv:2404.00456), folded into weights.

Between the layers that write a stream of channels and the normalizations that read it, channels may
be multiplied by any orthogonal matrix R: writers' weights take R, readers' weights its inverse. A
root-mean-square normalization does not notice once its own factors are moved into its readers; one
that takes off the mean does not either if R keeps the mean. Outliers in a few channels then are
spread over all. The float function stays, which is checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import onnx_ir as ir

from lowbit.config.transforms import Rotate, Rotation
from lowbit.errors import PlanError, did_you_mean
from lowbit.graph.editing import add_constant, constant
from lowbit.graph.naming import names_of, tensor_name
from lowbit.graph.session import Array, Feed, session
from lowbit.numerics.formats import FloatArray
from lowbit.transforms._cross_layer_math import DoubleArray
from lowbit.transforms._rotation_math import rotation
from lowbit.transforms.cross_layer import Equalized
from lowbit.transforms.layers import Layer, find_layer, give_constant

_TAKES_OFF_MEAN = ("LayerNormalization", "SkipLayerNormalization")
_NORMS = (
    *_TAKES_OFF_MEAN,
    "RMSNormalization",
    "SimplifiedLayerNormalization",
    "SkipSimplifiedLayerNormalization",
)
_SKIPS = ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
# How far single precision may move an output, relative to its largest value.
_ROUNDING = 1e-3


def rotate(model: ir.Model, config: Rotate | None, data: Iterable[Feed] | None) -> Equalized:
    """Return the model with the channels of its streams rotated; raise if it computes otherwise."""
    if config is None:
        return Equalized(model)
    turned = model.clone()
    _Turn(turned.graph, config).run()
    feed = None if data is None else next(iter(data), None)
    if feed is not None:
        _check_same(model, turned, feed)
    layers = len({name for pair in config.pairs for name in (*pair.writers, *pair.readers)})
    return Equalized(turned, (f"rotated {config.size} channels between {layers} layers",))


class _Turn:
    """One rotation of one graph, which it changes."""

    def __init__(self, graph: ir.Graph, config: Rotate) -> None:
        self._graph, self._config = graph, config
        self._by_name = {name: node for node in graph for name in names_of(node)}
        norms = [self._node(pair.norm) for pair in config.pairs if pair.norm is not None]
        keep_mean = any(node.op_type in _TAKES_OFF_MEAN for node in norms)
        self._matrix = rotation(
            config.size, keep_mean=keep_mean, random=config.random, seed=config.seed
        )
        self._done: set[tuple[str, str]] = set()

    def run(self) -> None:
        """Turn what every pair writes and reads; what several pairs name is turned once."""
        for pair in self._config.pairs:
            readers = [self._node(name) for name in pair.readers]
            if pair.norm is not None and self._is_new("norm", pair.norm):
                self._unburden(self._node(pair.norm), readers, pair)
            for name in pair.writers:
                if self._is_new("writer", name):
                    self._turn_written(self._node(name))
            for node in readers:
                if self._is_new("reader", node.name or ""):
                    self._turn_read(node)

    def _is_new(self, role: str, name: str) -> bool:
        key = (role, name)
        if key in self._done:
            return False
        self._done.add(key)
        return True

    def _node(self, name: str) -> ir.Node:
        if name not in self._by_name:
            raise PlanError(
                f"rotate: no node is called {name!r}{did_you_mean(name, self._by_name)}"
            )
        return self._by_name[name]

    def _turn_written(self, node: ir.Node) -> None:
        """Let a node write turned channels."""
        if node.op_type in ("Gather", "Add"):
            index = 0 if node.op_type == "Gather" else self._constant_input(node)
            self._turn_rows(node, index)
            return
        layer = self._layer(node)
        self._check_size(layer.outputs, node)
        # The kernel is a view of the weights, as groups x out x in x rest.
        layer.kernel[0] = np.einsum("ji,jkr->ikr", self._matrix, layer.kernel[0])
        if layer.bias is not None:
            layer.bias = np.asarray(layer.bias @ self._matrix, np.float32)
        layer.write(self._graph)
        offset = _offset_behind(node)
        if offset is not None and self._is_new("writer", offset.name or ""):
            self._turn_rows(offset, self._constant_input(offset))

    def _turn_rows(self, node: ir.Node, index: int) -> None:
        """Turn a constant whose last axis is channels."""
        data = constant(node.inputs[index])
        if data is None:
            raise PlanError(f"rotate: {node.op_type} {node.name!r} has no constant to rotate")
        self._check_size(data.shape[-1] if data.ndim else 0, node)
        give_constant(self._graph, node, index, np.asarray(data @ self._matrix, np.float32))

    def _turn_read(self, node: ir.Node) -> None:
        """Let a node read turned channels."""
        layer = self._layer(node)
        self._check_size(layer.inputs, node)
        layer.kernel[0] = np.einsum("jkr,ki->jir", layer.kernel[0], self._matrix)
        layer.write(self._graph)

    def _unburden(self, norm: ir.Node, readers: Sequence[ir.Node], pair: Rotation) -> None:
        """Move the factors and offsets of a normalization into its readers."""
        behind = tuple(norm.outputs[0].consumers())
        for node in behind:
            if node not in readers:
                raise PlanError(
                    f"rotate: {norm.name!r} is read by {node.name!r} too, which is not among the "
                    f"readers {list(pair.readers)}; its factors cannot be moved"
                )
        index = self._factor_input(norm)
        factor = constant(norm.inputs[index])
        if factor is None:
            raise PlanError(f"rotate: the factors of {norm.op_type} {norm.name!r} are no constants")
        at = index + 1
        has_offset = norm.op_type in _TAKES_OFF_MEAN and len(norm.inputs) > at
        offset = constant(norm.inputs[at]) if has_offset else None
        for node in readers:
            layer = self._layer(node)
            self._check_size(layer.inputs, node)
            shift = None if offset is None else _weights(layer) @ offset.reshape(-1)
            layer.kernel[0] *= np.broadcast_to(factor.reshape(-1), (layer.inputs,))[None, :, None]
            layer.write(self._graph)
            if shift is not None:
                self._add_bias(node, np.asarray(shift, np.float32))
        give_constant(self._graph, norm, index, np.ones_like(factor))
        if offset is not None:
            give_constant(self._graph, norm, at, np.zeros_like(offset))

    def _factor_input(self, norm: ir.Node) -> int:
        if norm.op_type == "Mul":
            return self._constant_input(norm)
        if norm.op_type not in _NORMS:
            raise PlanError(f"rotate: {norm.op_type} {norm.name!r} is no normalization")
        return 2 if norm.op_type in _SKIPS else 1

    def _constant_input(self, node: ir.Node) -> int:
        for index, value in enumerate(node.inputs):
            if constant(value) is not None:
                return index
        raise PlanError(f"rotate: {node.op_type} {node.name!r} has no constant to rotate")

    def _add_bias(self, node: ir.Node, shift: FloatArray) -> None:
        """Add to what a layer writes: in its bias, the Add behind it, or one of its own."""
        layer = self._layer(node)
        beta = node.attributes.get_float("beta", 1.0) if node.op_type == "Gemm" else 1.0
        if node.op_type == "Gemm":
            shift = shift * np.float32(node.attributes.get_float("alpha", 1.0))
        if layer.bias is not None:
            layer.bias = np.asarray(layer.bias + shift / np.float32(beta), np.float32)
            layer.write(self._graph)
            return
        known = _offset_behind(node)
        if known is not None:
            index = self._constant_input(known)
            data = np.asarray(constant(known.inputs[index]), np.float32)
            give_constant(self._graph, known, index, data + shift)
            return
        value = node.outputs[0]
        bias = add_constant(self._graph, f"{node.name}_bias", shift)
        add = ir.node("Add", [value, bias], name=f"{node.name}_bias_add")
        result = add.outputs[0]
        name = tensor_name(value)
        result.type, result.shape = value.type, value.shape
        ir.convenience.replace_all_uses_with(value, result, replace_graph_outputs=True)
        add.replace_input_with(0, value)
        value.name, result.name = f"{name}_unshifted", name
        self._graph.insert_after(node, add)

    def _layer(self, node: ir.Node) -> Layer:
        layer = find_layer(node)
        if layer is None or layer.kernel.shape[0] != 1:
            raise PlanError(
                f"rotate: {node.op_type} {node.name!r} has no matrix of constant weights"
            )
        return layer

    def _check_size(self, found: int, node: ir.Node) -> None:
        if found != self._config.size:
            raise PlanError(
                f"rotate: {node.op_type} {node.name!r} has {found} channels there, but the "
                f"rotation has {self._config.size}"
            )


def _weights(layer: Layer) -> DoubleArray:
    return np.asarray(layer.kernel[0].sum(axis=-1), np.float64)


def _offset_behind(node: ir.Node) -> ir.Node | None:
    """Return an Add of a constant for each channel that is the only reader of a MatMul."""
    readers = tuple(node.outputs[0].consumers())
    if node.op_type != "MatMul" or len(readers) != 1 or readers[0].op_type != "Add":
        return None
    data = next((d for d in map(constant, readers[0].inputs) if d is not None), None)
    return readers[0] if data is not None and data.ndim == 1 else None


def _check_same(before: ir.Model, after: ir.Model, feed: Feed) -> None:
    names = [tensor_name(value) for value in before.graph.outputs]

    def run(model: ir.Model) -> list[Array]:
        with session(model, name="the float model") as running:
            return running.run(names, feed)

    for name, want, got in zip(names, run(before), run(after), strict=True):
        largest = float(np.abs(want).max(initial=0.0))
        error = float(np.abs(np.asarray(want, np.float64) - got).max(initial=0.0))
        if not error <= _ROUNDING * max(largest, 1e-30):
            raise PlanError(
                f"the rotation asked for changes what the model computes: output {name!r} is off by "
                f"{error:.3g} of {largest:.3g}. Every layer that writes or reads the rotated "
                "channels must be in a pair"
            )
