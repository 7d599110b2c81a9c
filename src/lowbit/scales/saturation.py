"""Weights with which kernels that add two products in 16 bits do not saturate.

On x86 without VNNI, kernels multiply 8-bit activations, as uint8, by int8 weights and add the products two by
two in 16 bits. Two weights of one sign saturate there if together they exceed 128. Half the range
would be safe whatever they are; here only pairs that exceed it are made smaller, and a scale is
enlarged as far as that has less error. Every weight gets limits of its own, such that whatever is chosen
between them is safe: rounding to nearest, reconstruction, GPTQ and gradients all keep to them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from lowbit.config.specs import IntegerSpec
from lowbit.numerics.affine import QParams
from lowbit.numerics.formats import FloatArray
from lowbit.ops.geometry import LinearLayer
from lowbit.ops.linear import has_constant_weight, layer_of
from lowbit.planning.plan import Plan
from lowbit.targets.target import PairOrder

# 255 * 128 is within 16 bits.
_LARGEST_SUM = 128
_CANDIDATES = 9

Array = NDArray[np.generic]


@dataclasses.dataclass(frozen=True, slots=True)
class SummedPairs:
    """Which weights meet: the geometry of the layers that read them, and the orders of their sums."""

    layers: tuple[LinearLayer, ...]
    orders: tuple[PairOrder, ...]

    def limits(self, codes: FloatArray, largest: int) -> tuple[FloatArray, FloatArray]:
        """Return the lowest and the highest code of each weight, given the nearest codes.

        Whatever is chosen between them, no pair saturates. Of what pairs leave, both get half.
        """
        sides = []
        for sign in (1, -1):
            near = np.maximum(sign * codes, 0)
            for layer, order in self._orders():
                near = _each_pair(near, layer, order, _limited)
            side = np.full_like(near, largest)
            for layer, order in self._orders():
                side = np.minimum(side, _each_pair(near, layer, order, _with_room))
            sides.append(side)
        return -sides[1], sides[0]

    def largest_sums(self, weight: FloatArray) -> FloatArray:
        """Return for each weight the largest sum of a pair that it is in, of weights of one sign."""
        found = np.abs(weight)
        for layer, order in self._orders():
            for sign in (1, -1):
                side = np.maximum(sign * weight, 0)
                found = np.maximum(found, _each_pair(side, layer, order, _sums))
        return np.asarray(found, np.float32)

    def can_saturate(self, codes: Array) -> bool:
        """Whether two products can exceed 16 bits, from the stored integers alone."""
        return bool(self.largest_sums(codes.astype(np.float32)).max(initial=0) > _LARGEST_SUM)

    @staticmethod
    def can_saturate_somehow(codes: Array) -> bool:
        """Whether two products can exceed 16 bits, whichever weights meet."""
        return bool(2 * np.abs(codes.astype(np.int32)).max(initial=0) > _LARGEST_SUM)

    def _orders(self) -> Iterator[tuple[LinearLayer, PairOrder]]:
        for layer in self.layers:
            # With an even number of inputs, or a single tap, all orders have the same pairs.
            same = layer.inputs % 2 == 0 or layer.taps == 1
            for order in self.orders[:1] if same else self.orders:
                yield layer, order


def _limited(pairs: FloatArray) -> FloatArray:
    """Return pairs of positive codes that do not exceed the largest sum: both give way by the same."""
    excess = np.maximum(pairs.sum(axis=-1) - _LARGEST_SUM, 0)
    return np.asarray(pairs - np.stack([np.ceil(excess / 2), np.floor(excess / 2)], axis=-1))


def _with_room(pairs: FloatArray) -> FloatArray:
    left = _LARGEST_SUM - pairs.sum(axis=-1)
    return np.asarray(pairs + np.stack([np.ceil(left / 2), np.floor(left / 2)], axis=-1))


def _sums(pairs: FloatArray) -> FloatArray:
    return np.broadcast_to(pairs.sum(axis=-1, keepdims=True), pairs.shape)


def _each_pair(
    weight: FloatArray,
    layer: LinearLayer,
    order: PairOrder,
    function: Callable[[FloatArray], FloatArray],
) -> FloatArray:
    """Return a weight after a function of its pairs, which lie along the last axis."""
    by_tap = np.asarray(layer.kernel(weight), np.float32).swapaxes(2, 3)
    shape = by_tap.shape
    rows = by_tap.reshape(*shape[:2], 1, -1) if order == "through_taps" else by_tap
    length = rows.shape[-1]
    even = np.pad(rows, [(0, 0)] * 3 + [(0, length % 2)])
    found = function(even.reshape(*even.shape[:3], -1, 2)).reshape(even.shape)[..., :length]
    kernel = np.ascontiguousarray(found.reshape(shape).swapaxes(2, 3))
    matrix = kernel.reshape(layer.groups, layer.outputs, layer.depth)
    return np.asarray(layer.weight(matrix), np.float32)


def pairs_of(model: ir.Model, plan: Plan) -> dict[str, SummedPairs]:
    """Return which weights of a plan meet in pairs, by name."""
    orders = {t.name: t.pairs for t in plan.weights() if t.pairs}
    layers: dict[str, list[LinearLayer]] = {}
    for node in model.graph if orders else ():
        name = str(node.inputs[1].name) if has_constant_weight(node) and node.inputs[1] else ""
        layer = layer_of(node) if name in orders else ""
        if not isinstance(layer, str):
            layers.setdefault(name, []).append(layer)
    return {name: SummedPairs(tuple(found), orders[name]) for name, found in layers.items()}


def saturation_free(
    weight: FloatArray, params: QParams, spec: IntegerSpec, pairs: SummedPairs
) -> QParams:
    """Return parameters with the scales of least error after pairs are limited.

    They lie between those given and those with which no pair has to be limited.
    """
    others = tuple(axis for axis in range(weight.ndim) if axis != params.axis)
    sums = pairs.largest_sums(weight).max(axis=others, initial=0)
    widest = np.maximum(params.scale, sums / (_LARGEST_SUM - 1))
    shares = np.linspace(0, 1, _CANDIDATES)
    if spec.power_of_two:
        widest, shares = np.asarray(2 * params.scale), np.array([0, 1])
    best, least = params.scale, np.full(params.scale.shape, np.inf)
    for share in shares:
        tried = np.asarray(params.scale + share * (widest - params.scale), np.float32)
        whole = tried.reshape([-1 if axis == params.axis else 1 for axis in range(weight.ndim)])
        codes = np.clip(np.rint(weight / whole), *spec.limits)
        codes = np.clip(codes, *pairs.limits(codes, spec.limits[1]))
        with np.errstate(over="ignore"):
            error = np.square(weight - codes * whole).sum(axis=others)
        best, least = np.where(error < least, tried, best), np.minimum(error, least)
    return dataclasses.replace(params, scale=np.asarray(best, np.float32))
