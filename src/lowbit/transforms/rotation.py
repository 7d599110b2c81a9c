"""Rotation of a transformer's channels (QuaRot, arXiv:2404.00456), folded into weights.

Between the layers that produce a stream of channels and the normalizations that read it, channels may
be multiplied by any orthogonal matrix R: producers' weights take R, consumers' weights its inverse. A
root-mean-square normalization does not notice once its own factors are moved into its consumers; one
that subtracts the mean does not either if R keeps the mean. Outliers in a few channels then are
spread over all. The float function stays, which is checked.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import onnx_ir as ir

from lowbit.config.transforms import RotatedStream
from lowbit.config.transforms import Rotation as RotationConfig
from lowbit.errors import PlanError, did_you_mean
from lowbit.graph.editing import add_constant, constant, insert_after, replace_constant
from lowbit.graph.naming import names_of, tensor_name
from lowbit.graph.session import Array, Feed, session
from lowbit.numerics.formats import DoubleArray, FloatArray
from lowbit.ops.families import layer_norm
from lowbit.transforms.implementation import Context, TransformedModel
from lowbit.transforms.layers import WeightedLayer, find_layer
from lowbit.transforms.residual_streams import channel_readers, find_residual_streams


def spreading_basis(size: int) -> DoubleArray:
    """Return an orthogonal matrix of small entries, the first column all alike.

    A Hadamard matrix (Sylvester's) for a power of two; what is odd of the size is a cosine basis.
    """
    matrix = _cosines(size // (size & -size))
    while matrix.shape[0] < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]]) / np.sqrt(2)
    return matrix


def rotation(size: int, *, keep_mean: bool, random: bool, seed: int) -> DoubleArray:
    """Return the matrix that a row of channels is multiplied by.

    ``keep_mean``: channels that are all alike stay so; then taking off their mean can be done
    before or after. ``random``: signs are drawn rather than taken as they come.
    """
    basis = spreading_basis(size)
    draw = np.random.default_rng(seed)
    if not keep_mean:
        return draw.choice([-1.0, 1.0], size)[:, None] * basis if random else basis
    # Signs in the basis, the first of which is the mean's.
    signs = draw.choice([-1.0, 1.0], size) if random else _uneven_signs(size)
    signs[0] = 1.0
    return (basis * signs) @ basis.T


def _uneven_signs(size: int) -> DoubleArray:
    """Return signs without a period: those of a quadratic chirp."""
    at = np.arange(size, dtype=np.float64)
    return np.where(np.sin(np.pi * at * at / max(size, 1) + 0.5) >= 0, 1.0, -1.0)


def _cosines(size: int) -> DoubleArray:
    """Return the orthonormal cosine basis, a basis vector a column."""
    samples, waves = np.arange(size)[:, None] + 0.5, np.arange(size)[None, :]
    matrix: DoubleArray = np.cos(np.pi * samples * waves / size) * np.sqrt(2 / size)
    matrix[:, 0] = 1 / np.sqrt(size)
    return matrix


# How far single precision may move an output, relative to its largest value.
_ROUNDING = 1e-3


class Rotate:
    """Rotation of the channels of a transformer's streams."""

    def applies(self, model: ir.Model, config: RotationConfig) -> bool:
        """Whether the model has the layers that are named: that is found out by rotating."""
        del model, config
        return True

    def apply(self, model: ir.Model, config: RotationConfig, context: Context) -> TransformedModel:
        """Return the model with its streams rotated; raise if it then computes otherwise."""
        rotated = model.clone()
        config = config if config.streams else _found(rotated.graph, config)
        _StreamRotation(rotated.graph, config).run()
        feed = None if context.data is None else next(iter(context.data), None)
        if feed is not None:
            _check_same(model, rotated, feed)
        layers = {name for s in config.streams for name in (*s.producers, *s.consumers)}
        note = f"rotated {config.size} channels between {len(layers)} layers"
        return TransformedModel(rotated, (note,))


def _found(graph: ir.Graph, config: RotationConfig) -> RotationConfig:
    """Return the configuration with the widest residual stream of the graph."""
    streams = find_residual_streams(graph)
    if not streams:
        raise PlanError(
            "rotation: no residual stream was found whose channels only normalizations before layers "
            "read, as in decoders; name its layers in rotation.streams"
        )
    return msgspec.structs.replace(config, streams=streams[0].streams, size=streams[0].size)


class _StreamRotation:
    """One rotation of one graph, which it changes."""

    def __init__(self, graph: ir.Graph, config: RotationConfig) -> None:
        self._graph, self._config = graph, config
        self._size = config.size or 0
        self._by_name = {name: node for node in graph for name in names_of(node)}
        norms = [self._node(stream.norm) for stream in config.streams if stream.norm is not None]
        keep_mean = any(_subtracts_mean(node) for node in norms)
        self._matrix = rotation(
            self._size, keep_mean=keep_mean, random=config.random, seed=config.seed
        )
        self._done: set[tuple[str, str]] = set()

    def run(self) -> None:
        """Rotate what every stream writes and reads; what several streams name is rotated once."""
        for stream in self._config.streams:
            consumers = [self._node(name) for name in stream.consumers]
            if stream.norm is not None and self._is_new("norm", stream.norm):
                self._fold_norm(self._node(stream.norm), consumers, stream)
            for name in stream.producers:
                if self._is_new("producer", name):
                    self._rotate_produced(self._node(name))
            for node in consumers:
                if self._is_new("consumer", node.name or ""):
                    self._rotate_consumed(node)

    def _is_new(self, role: str, name: str) -> bool:
        key = (role, name)
        if key in self._done:
            return False
        self._done.add(key)
        return True

    def _node(self, name: str) -> ir.Node:
        if name not in self._by_name:
            raise PlanError(
                f"rotation: no node is called {name!r}{did_you_mean(name, self._by_name)}"
            )
        return self._by_name[name]

    def _rotate_produced(self, node: ir.Node) -> None:
        """Rotate the channels that a node produces."""
        if node.op_type in ("Gather", "Add"):
            index = 0 if node.op_type == "Gather" else self._constant_input(node)
            self._rotate_rows(node, index)
            return
        layer = self._layer(node)
        self._check_size(layer.outputs, node)
        # The kernel is a view of the weights, as groups x out x in x rest.
        layer.kernel[0] = np.einsum("ji,jkr->ikr", self._matrix, layer.kernel[0])
        if layer.bias is not None:
            layer.bias = np.asarray(layer.bias @ self._matrix, np.float32)
        layer.write(self._graph)
        offset = _offset_after(node)
        if offset is not None and self._is_new("producer", offset.name or ""):
            self._rotate_rows(offset, self._constant_input(offset))

    def _rotate_rows(self, node: ir.Node, index: int) -> None:
        """Rotate a constant whose last axis is channels."""
        data = constant(node.inputs[index])
        if data is None:
            raise PlanError(f"rotation: {node.op_type} {node.name!r} has no constant to rotate")
        self._check_size(data.shape[-1] if data.ndim else 0, node)
        replace_constant(self._graph, node, index, np.asarray(data @ self._matrix, np.float32))

    def _rotate_consumed(self, node: ir.Node) -> None:
        """Rotate the channels that a node reads."""
        layer = self._layer(node)
        self._check_size(layer.inputs, node)
        layer.kernel[0] = np.einsum("jkr,ki->jir", layer.kernel[0], self._matrix)
        layer.write(self._graph)

    def _fold_norm(
        self, norm: ir.Node, consumers: Sequence[ir.Node], stream: RotatedStream
    ) -> None:
        """Move the factors and offsets of a normalization into its consumers."""
        for node in channel_readers(norm.outputs[0]):
            if node not in consumers:
                raise PlanError(
                    f"rotation: {norm.name!r} is consumed by {node.name!r} too, which is not among the "
                    f"consumers {list(stream.consumers)}; its factors cannot be moved"
                )
        index = self._factor_input(norm)
        factor = constant(norm.inputs[index])
        if factor is None:
            raise PlanError(
                f"rotation: the factors of {norm.op_type} {norm.name!r} are no constants"
            )
        at = index + 1
        has_offset = _subtracts_mean(norm) and len(norm.inputs) > at
        offset = constant(norm.inputs[at]) if has_offset else None
        for node in consumers:
            layer = self._layer(node)
            self._check_size(layer.inputs, node)
            shift = None if offset is None else _weights(layer) @ offset.reshape(-1)
            layer.kernel[0] *= np.broadcast_to(factor.reshape(-1), (layer.inputs,))[None, :, None]
            layer.write(self._graph)
            if shift is not None:
                self._add_bias(node, np.asarray(shift, np.float32))
        replace_constant(self._graph, norm, index, np.ones_like(factor))
        if offset is not None:
            replace_constant(self._graph, norm, at, np.zeros_like(offset))

    def _factor_input(self, norm: ir.Node) -> int:
        if norm.op_type == "Mul":
            return self._constant_input(norm)
        row = layer_norm(norm)
        if row is None:
            raise PlanError(f"rotation: {norm.op_type} {norm.name!r} is no normalization")
        return row.factor

    def _constant_input(self, node: ir.Node) -> int:
        for index, value in enumerate(node.inputs):
            if constant(value) is not None:
                return index
        raise PlanError(f"rotation: {node.op_type} {node.name!r} has no constant to rotate")

    def _add_bias(self, node: ir.Node, shift: FloatArray) -> None:
        """Add to what a layer writes: in its bias, the Add after it, or one of its own."""
        layer = self._layer(node)
        shift = shift * np.float32(layer.geometry.alpha)
        if layer.bias is not None:
            beta = np.float32(layer.operator.bias_factor(node))
            layer.bias = np.asarray(layer.bias + shift / beta, np.float32)
            layer.write(self._graph)
            return
        known = _offset_after(node)
        if known is not None:
            index = self._constant_input(known)
            data = np.asarray(constant(known.inputs[index]), np.float32)
            replace_constant(self._graph, known, index, data + shift)
            return
        bias = add_constant(self._graph, f"{node.name}_bias", shift)
        add = ir.node("Add", [node.outputs[0], bias], name=f"{node.name}_bias_add")
        insert_after(self._graph, add, f"{tensor_name(node.outputs[0])}_unshifted")

    def _layer(self, node: ir.Node) -> WeightedLayer:
        layer = find_layer(node)
        if layer is None or layer.kernel.shape[0] != 1:
            raise PlanError(
                f"rotation: {node.op_type} {node.name!r} has no matrix of constant weights"
            )
        return layer

    def _check_size(self, found: int, node: ir.Node) -> None:
        if found != self._size:
            raise PlanError(
                f"rotation: {node.op_type} {node.name!r} has {found} channels there, but the "
                f"rotation has {self._size}"
            )


def _weights(layer: WeightedLayer) -> DoubleArray:
    return np.asarray(layer.kernel[0].sum(axis=-1), np.float64)


def _offset_after(node: ir.Node) -> ir.Node | None:
    """Return an Add of a constant for each channel that is the only consumer of a MatMul."""
    consumers = tuple(node.outputs[0].consumers())
    if node.op_type != "MatMul" or len(consumers) != 1 or consumers[0].op_type != "Add":
        return None
    data = next((d for d in map(constant, consumers[0].inputs) if d is not None), None)
    return consumers[0] if data is not None and data.ndim == 1 else None


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
                f"{error:.3g} of {largest:.3g}. Every layer that produces or consumes the rotated "
                "channels must be in a stream"
            )


def _subtracts_mean(node: ir.Node) -> bool:
    row = layer_norm(node)
    return row is not None and row.subtracts_mean
