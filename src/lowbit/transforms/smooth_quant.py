"""SmoothQuant: find the sites, measure what they consume, choose factors, write back.

A layer computes W x. With x / s for x and W s for W the same, and the noise of rounding both with one
scale each is, per output and with scales dx and dw,

    dx^2 / 12 * sum_j s_j^2 |W_j|^2  +  dw^2 / 12 * sum_j E[x_j^2] / s_j^2

Scales follow from the largest number of each tensor, so ranges and second moments of the channels
say which factors are best without another pass. What takes the factors is rounded as well: a
normalization's weight g becomes g / s, and its scale moves with its largest element.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from lowbit.config.transforms import SmoothQuant
from lowbit.graph.session import Array
from lowbit.numerics.formats import DoubleArray, FloatArray
from lowbit.transforms.channel_statistics import reduce_channels
from lowbit.transforms.implementation import Context, Levels, TransformedModel
from lowbit.transforms.layers import WeightedLayer, input_ranges, multiply_inputs
from lowbit.transforms.smooth_sites import Produced, Site, find_sites, is_matrix

# With more, every channel reaches to the end of the scale, and the first larger value is cut off:
# better on the samples that were seen, and worse on all others.
_LARGEST_ALPHA = 0.8
ALPHAS = tuple(a for k in range(11) if (a := round(0.1 * k, 1)) <= _LARGEST_ALPHA)

# Beyond this, a channel that the data hardly shows would decide how others are rounded.
_LARGEST = 1024.0

# Weights that are computed with in double precision at a time.
_AT_ONCE = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class Consumed:
    """A layer's weights ``[out, in]``, with ranges and second moments of the channels it consumed.

    ``energy`` and ``largest`` are the squares and the largest of each channel's weights.
    """

    weight: FloatArray | DoubleArray
    ranges: DoubleArray
    powers: DoubleArray
    energy: DoubleArray
    largest: DoubleArray

    @classmethod
    def of(cls, kernel: FloatArray, ranges: DoubleArray, powers: DoubleArray) -> Consumed:
        """Return what is consumed through weights ``[1, out, in, 1]``."""
        weight = kernel[0, :, :, 0]
        energy = np.einsum("ij,ij->j", weight, weight, dtype=np.float64)
        return cls(weight, ranges, powers, energy, np.asarray(input_ranges(kernel), np.float64))

    def blocks(self) -> Iterator[DoubleArray]:
        """Yield the weights of some outputs at a time, in double precision."""
        step = max(1, _AT_ONCE // max(1, self.weight.shape[1]))
        for first in range(0, len(self.weight), step):
            yield np.array(self.weight[first : first + step], np.float64)


def smooth_factors(x: DoubleArray, w: DoubleArray, alpha: float) -> DoubleArray:
    """Return s for ranges of activations and weights; their geometric mean is one.

    A channel that is always zero on one side can be had at any factor: at one with which it does
    not stand out on the other.
    """
    x, w = np.asarray(x, np.float64), np.asarray(w, np.float64)
    alive = (x > 0) & (w > 0) & np.isfinite(x) & np.isfinite(w)
    s = np.ones(len(x))
    if not alive.any():
        return s
    s[alive] = x[alive] ** alpha / w[alive] ** (1 - alpha)
    s[alive] /= np.exp(np.log(s[alive]).mean())
    highest_x, highest_w = (x[alive] / s[alive]).max(), (w[alive] * s[alive]).max()
    only_x, only_w = ~alive & (w <= 0) & (x > 0), ~alive & (x <= 0) & (w > 0)
    s[only_x] = np.maximum(x[only_x] / highest_x, 1)
    s[only_w] = np.minimum(highest_w / w[only_w], 1)
    return np.clip(np.nan_to_num(s, nan=1.0), 1 / _LARGEST, _LARGEST)


def output_noise(
    consumed: Sequence[Consumed], produced: Produced | None, s: DoubleArray, levels: Levels
) -> float:
    """Return the noise of the layers' outputs over their signal, added up over the layers."""
    return sum(_noise_of(layer, produced, s, levels) for layer in consumed)


def _noise_of(layer: Consumed, produced: Produced | None, s: DoubleArray, levels: Levels) -> float:
    energy = layer.energy
    signal = float((layer.powers * energy).sum())
    if signal <= 0:
        return 0.0
    passed = float((np.square(s) * energy).sum())
    noise = _variance(layer.ranges / s, levels.activation) * passed
    noise += float((_weight_errors(layer, s, levels) * layer.powers / np.square(s)).sum())
    if produced is not None and produced.powers.sum() > 0:
        into = float(layer.powers.sum() / produced.powers.sum())
        noise += _variance(produced.ranges / s, levels.weight) * into * passed
    return noise / signal


def _weight_errors(layer: Consumed, s: DoubleArray, levels: Levels) -> DoubleArray:
    """Return the squared error that rounding brings into each channel's weights times s."""
    errors = np.zeros(len(s))
    if not levels.weight:
        return errors
    highest = np.square(layer.largest * s).max(initial=0)
    for scaled in layer.blocks():
        np.multiply(scaled, s, out=scaled)
        np.square(scaled, out=scaled)
        ranges = scaled.max(axis=1, keepdims=True) if levels.per_channel else highest
        # A weight below half a step becomes zero, and errs by itself.
        errors += np.minimum(ranges / levels.weight**2 / 12, scaled, out=scaled).sum(axis=0)
    return errors


def best_alpha(
    consumed: Sequence[Consumed],
    produced: Produced | None,
    ranges: tuple[DoubleArray, DoubleArray],
    levels: Levels,
) -> float | None:
    """Return the alpha with the least noise; ``None`` if there is less without any factor."""
    best, least = None, output_noise(consumed, produced, np.ones(len(ranges[0])), levels)
    for alpha in ALPHAS:
        noise = output_noise(consumed, produced, smooth_factors(*ranges, alpha), levels)
        if noise < least:
            best, least = alpha, noise
    return best


def _variance(numbers: DoubleArray, levels: int) -> float:
    """Return the mean square of what rounding to one step for all of them changes."""
    return (float(np.max(numbers, initial=0)) / levels) ** 2 / 12 if levels else 0.0


_RANGE, _SQUARES, _COUNT = range(3)


class Smooth:
    """SmoothQuant of a graph."""

    def applies(self, model: ir.Model, config: SmoothQuant) -> bool:
        """Whether there is anything to smooth."""
        found = find_sites(model.graph, insert=config.insert)
        # What a plan would let a Mul be put before shows only later; one layer alone is a classifier.
        return bool(found) or sum(is_matrix(node) for node in model.graph) > 1

    def apply(self, model: ir.Model, config: SmoothQuant, context: Context) -> TransformedModel:
        """Return the model with the inputs of its MatMul and Gemm smoothed; without data as it is."""
        if context.data is None or not self.applies(model, config):
            return TransformedModel(model)
        model = model.clone()
        own = context.own_inputs(model)
        sites = find_sites(model.graph, insert=config.insert, own_inputs=own)
        names = list(dict.fromkeys(layer.source for site in sites for layer in site.consumers))
        seen = reduce_channels(model, names, context.data, _measure, _join, context.progress)
        if not seen or not sites:
            return TransformedModel(model)
        alphas = []
        for site in sites:
            fine = [own.get(layer.source, context.levels.per_channel) for layer in site.consumers]
            levels = dataclasses.replace(context.levels, per_channel=all(fine))
            alphas.append(_smooth_site(model.graph, site, config, seen, levels))
        for layer in {id(layer): layer for site in sites for layer in _layers(site)}.values():
            layer.write(model.graph)
        return TransformedModel(model, (_summary(alphas, sites),))


def _smooth_site(
    graph: ir.Graph,
    site: Site,
    config: SmoothQuant,
    seen: Mapping[str, DoubleArray],
    levels: Levels,
) -> float | None:
    """Move the factors of one site; return the alpha. Changes ``graph`` and the site's layers."""
    consumed = [_consumed(layer, seen) for layer in site.consumers]
    x = np.max([layer.ranges for layer in consumed], axis=0)
    w = np.max([layer.largest for layer in consumed], axis=0)
    alpha = config.alpha
    if alpha is None:
        produced = site.produced(per_channel=levels.per_channel)
        alpha = best_alpha(consumed, produced, (x, w), levels)
    if alpha is None:
        return None
    s = smooth_factors(x, w, alpha)
    for layer in site.consumers:
        layer.scale_inputs(s.astype(np.float32))
    if site.layer is not None:
        site.layer.scale_outputs((1 / s).astype(np.float32))
    for factor in site.factors:
        factor.scale(graph, s)
    if site.layer is None and not site.factors:
        nodes = [layer.node for layer in site.consumers]
        name = f"{nodes[0].name if site.is_own else site.consumers[0].source}_smooth"
        multiply_inputs(graph, nodes, (1 / s).astype(np.float32), name)
    return alpha


def _consumed(layer: WeightedLayer, seen: Mapping[str, DoubleArray]) -> Consumed:
    rows = seen[layer.source]
    powers = rows[_SQUARES] / np.maximum(rows[_COUNT], 1)
    return Consumed.of(layer.kernel, rows[_RANGE], powers)


def _measure(_: str, array: Array) -> DoubleArray:
    """Return peak, sum of squares and count of each channel; those of a layer's input lie last."""
    flat = array.reshape(-1, array.shape[-1])
    squares = np.einsum("ij,ij->j", flat, flat, dtype=np.float64)
    ranges = np.abs(flat).max(axis=0, initial=0)
    return np.stack([ranges, squares, np.full(len(squares), len(flat))]).astype(np.float64)


def _join(one: DoubleArray, other: DoubleArray) -> DoubleArray:
    both = one + other
    both[_RANGE] = np.maximum(one[_RANGE], other[_RANGE])
    return both


def _layers(site: Site) -> list[WeightedLayer]:
    return [*site.consumers, *([site.layer] if site.layer is not None else [])]


def _summary(alphas: list[float | None], sites: list[Site]) -> str:
    layers = sum(len(s.consumers) for s, a in zip(sites, alphas, strict=True) if a is not None)
    counts = Counter(alpha for alpha in alphas if alpha is not None)
    spread = ", ".join(f"{alpha:g} ({counts[alpha]})" for alpha in sorted(counts))
    text = f"smoothed the input of {layers} layers at {sum(counts.values())} sites"
    left = len(alphas) - sum(counts.values())
    return text + (f", alpha {spread}" if spread else "") + (f"; {left} better as is" * bool(left))
