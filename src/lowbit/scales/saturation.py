"""Weights that do not saturate in kernels that add two products in 16 bits.

On x86 without VNNI, kernels multiply 8-bit activations, as uint8, by int8 weights and add the products two by
two in 16 bits. Two weights of one sign saturate there if together they exceed 128. Half the range
would be safe whatever they are; here only pairs that exceed it are made smaller, and a scale is
enlarged as far as that has less error. Every weight gets limits of its own, such that whatever is chosen
between them is safe: rounding to nearest, reconstruction, GPTQ and gradients all keep to them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import cast

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from lowbit.config.specs import IntegerSpec
from lowbit.numerics.affine import QParams
from lowbit.numerics.formats import FloatArray
from lowbit.ops.geometry import LinearLayer
from lowbit.ops.weights import multiplied_weights
from lowbit.planning.plan import Plan
from lowbit.targets.target import PairOrder

# 255 * 128 is within 16 bits.
_LARGEST_SUM = 128
_CANDIDATES = 9

Array = NDArray[np.generic]


@dataclasses.dataclass(frozen=True, slots=True)
class SummedPairs:
    """Which weights are added in pairs: the geometry of the layers that read them, and the order of the sums."""

    layers: tuple[LinearLayer, ...]
    orders: tuple[PairOrder, ...]

    def limits(self, codes: FloatArray, largest: int) -> tuple[FloatArray, FloatArray]:
        """Return the lowest and the highest code of each weight, given the nearest codes.

        Whatever is chosen between them, no pair saturates. Of what pairs leave, both get half.
        """
        near = self._made_smaller(codes)
        sides = []
        for sign in (1, -1):
            chosen = np.maximum(sign * near, 0)
            side = np.full_like(chosen, largest)
            for layer, order in self._orders():
                room = chosen.copy()
                _change_pairs(room, layer, order, _use_headroom)
                np.minimum(side, room, out=side)
            sides.append(side)
        return -sides[1], sides[0]

    def nearest(self, codes: FloatArray, largest: int) -> FloatArray:
        """Return what nearest codes become within their limits."""
        if len([*self._orders()]) > 1:
            return np.asarray(np.clip(codes, *self.limits(codes, largest)))
        # A pair that gave way has no room left, and any other has room for what it is.
        near = self._made_smaller(codes)
        return np.asarray(np.clip(near, -largest, largest, out=near))

    def largest_sums(self, weight: FloatArray) -> FloatArray:
        """Return for each weight the largest sum of a pair that it is in, of weights of one sign."""
        found = np.asarray(np.abs(weight), np.float32)
        for layer, order in self._orders():
            sums = np.array(weight, np.float32, order="C")
            _change_pairs(sums, layer, order, _sum_up)
            np.maximum(found, sums, out=found)
        return found

    def _made_smaller(self, codes: FloatArray) -> FloatArray:
        """Return codes whose pairs exceed no sum, one order after another."""
        near = np.array(codes, np.float32, order="C")
        for layer, order in self._orders():
            _change_pairs(near, layer, order, _reduce_pair)
        return near

    def can_saturate(self, codes: Array) -> bool:
        """Whether two products can exceed 16 bits, from the stored integers alone."""
        return bool(self.largest_sums(codes.astype(np.float32)).max(initial=0) > _LARGEST_SUM)

    @staticmethod
    def can_saturate_somehow(codes: Array) -> bool:
        """Whether two products can exceed 16 bits, in any order of the weights."""
        return bool(2 * np.abs(codes.astype(np.int32)).max(initial=0) > _LARGEST_SUM)

    def _orders(self) -> Iterator[tuple[LinearLayer, PairOrder]]:
        for layer in self.layers:
            # With an even number of inputs, or a single tap, all orders have the same pairs.
            same = layer.inputs % 2 == 0 or layer.taps == 1
            for order in self.orders[:1] if same else self.orders:
                yield layer, order


def _reduce_pair(first: FloatArray, second: FloatArray) -> None:
    """Reduce pairs that exceed the largest sum: both weights by the same amount."""
    sums = first + second
    # Codes of two signs cannot exceed it: none is larger by itself.
    at = np.nonzero(np.abs(sums) > _LARGEST_SUM)
    sign = np.sign(sums[at])
    excess = np.abs(sums[at]) - _LARGEST_SUM
    first[at] -= sign * np.ceil(excess / 2)
    second[at] -= sign * np.floor(excess / 2)


def _use_headroom(first: FloatArray, second: FloatArray) -> None:
    """Add half of the remaining headroom to both weights of a non-negative pair."""
    left = _LARGEST_SUM - (first + second)
    half = np.floor(left / 2)
    first += left - half
    second += half


def _sum_up(first: FloatArray, second: FloatArray) -> None:
    """Put the sum of a pair of one sign, or the larger of two signs, into both."""
    sums = np.abs(first + second)
    for part in (first, second):
        np.maximum(sums, np.abs(part), out=sums)
    first[...] = sums
    second[...] = sums


def _change_pairs(
    weight: FloatArray,
    layer: LinearLayer,
    order: PairOrder,
    change: Callable[[FloatArray, FloatArray], None],
) -> None:
    """Change a weight in place: ``change`` is given the first and the second of each pair."""
    by_tap = cast(FloatArray, layer.kernel(weight)).swapaxes(2, 3)
    # Elsewhere no pair reaches from one tap into the next.
    through = order == "through_taps" and layer.taps > 1 and layer.inputs % 2 == 1
    rows = by_tap.reshape(*by_tap.shape[:2], 1, -1) if through else by_tap
    length = rows.shape[-1]
    even = length - length % 2
    change(rows[..., 0:even:2], rows[..., 1:even:2])
    if even < length:
        alone = rows[..., even:]
        change(alone, np.zeros_like(alone))
    if through:
        by_tap[...] = rows.reshape(by_tap.shape)


def pairs_of(model: ir.Model, plan: Plan) -> dict[str, SummedPairs]:
    """Return which weights of a plan are added in pairs, by name."""
    orders = {t.name: t.pairs for t in plan.weights() if t.pairs}
    layers: dict[str, list[LinearLayer]] = {}
    for node in model.graph if orders else ():
        for weight, layer in multiplied_weights(node):
            if str(weight.name) in orders and not isinstance(layer, str):
                layers.setdefault(str(weight.name), []).append(layer)
    return {name: SummedPairs(tuple(found), orders[name]) for name, found in layers.items()}


def _codes(weight: FloatArray, scale: FloatArray, spec: IntegerSpec) -> FloatArray:
    codes = np.asarray(weight / scale, np.float32)
    np.rint(codes, out=codes)
    return np.clip(codes, *spec.limits, out=codes)


def saturation_free(
    weight: FloatArray, params: QParams, spec: IntegerSpec, pairs: SummedPairs
) -> QParams:
    """Return parameters with the scales of least error after pairs are limited.

    They lie between those given and those with which no pair has to be limited.
    """
    others = tuple(axis for axis in range(weight.ndim) if axis != params.axis)
    sums = pairs.largest_sums(weight).max(axis=others, initial=0)
    widest = np.maximum(params.scale, sums / (_LARGEST_SUM - 1))
    if (widest <= params.scale).all():
        return params
    shares = np.linspace(0, 1, _CANDIDATES)
    if spec.power_of_two:
        widest, shares = np.asarray(2 * params.scale), np.array([0, 1])
    best, least = params.scale, np.full(params.scale.shape, np.inf)
    for share in shares:
        tried = np.asarray(params.scale + share * (widest - params.scale), np.float32)
        whole = tried.reshape([-1 if axis == params.axis else 1 for axis in range(weight.ndim)])
        codes = pairs.nearest(_codes(weight, whole, spec), spec.limits[1])
        codes *= whole
        np.subtract(weight, codes, out=codes)
        with np.errstate(over="ignore"):
            error = np.square(codes, out=codes).sum(axis=others)
        best, least = np.where(error < least, tried, best), np.minimum(error, least)
    return dataclasses.replace(params, scale=np.asarray(best, np.float32))
