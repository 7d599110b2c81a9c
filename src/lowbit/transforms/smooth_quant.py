"""SmoothQuant of a graph: find the sites, measure what they read, choose factors, write back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import onnx_ir as ir

from lowbit.config.transforms import QuarkSmoothQuant, Smoothing, SmoothQuant
from lowbit.graph.session import Array, Feed
from lowbit.quark.smooth_quant import smooth_like_quark
from lowbit.transforms._cross_layer_math import DoubleArray, input_peaks
from lowbit.transforms._smooth_math import Levels, Read, best_alpha, smooth_factors
from lowbit.transforms.channel_statistics import reduce_channels
from lowbit.transforms.cross_layer import Equalized
from lowbit.transforms.layers import Layer, multiply_inputs
from lowbit.transforms.smooth_sites import Site, find_sites

_PEAK, _SQUARES, _COUNT = range(3)


def can_smooth(model: ir.Model, config: Smoothing) -> bool:
    """Whether there is anything to smooth; costs no pass over data."""
    if isinstance(config, QuarkSmoothQuant):
        return any(node.op_type == "MatMul" for node in model.graph)
    return bool(find_sites(model.graph, insert=config.insert))


def smooth(
    model: ir.Model,
    config: Smoothing | None,
    data: Iterable[Feed] | None,
    levels: Levels = Levels(),  # noqa: B008
    progress: Callable[[int], None] = lambda _: None,
) -> Equalized:
    """Return a normalized model with the inputs of its MatMul and Gemm smoothed, and notes.

    Args:
        model: A normalized model; it is not changed.
        config: How; ``None`` gives the model itself back, and so does a model without such layers.
        data: Samples that show how large each channel becomes; without any, nothing is done.
        levels: How finely tensors will be rounded, for the choice of alpha.
        progress: Told after each sample how many are done.
    """
    if config is None or data is None or not can_smooth(model, config):
        return Equalized(model)
    model = model.clone()
    if isinstance(config, QuarkSmoothQuant):
        return smooth_like_quark(model, config, data, progress)
    sites = find_sites(model.graph, insert=config.insert)
    names = list(dict.fromkeys(layer.source for site in sites for layer in site.readers))
    seen = reduce_channels(model, names, data, _measure, _join, progress)
    if not seen:
        return Equalized(model)
    alphas = [_smooth_site(model.graph, site, config, seen, levels) for site in sites]
    for layer in {id(layer): layer for site in sites for layer in _layers(site)}.values():
        layer.write(model.graph)
    return Equalized(model, (_summary(alphas, sites),))


def _smooth_site(
    graph: ir.Graph,
    site: Site,
    config: SmoothQuant,
    seen: Mapping[str, DoubleArray],
    levels: Levels,
) -> float | None:
    """Move the factors of one site; return the alpha. Changes ``graph`` and the site's layers."""
    reads = [_read(layer, seen) for layer in site.readers]
    x = np.max([read.peaks for read in reads], axis=0)
    w = np.max([input_peaks(layer.kernel) for layer in site.readers], axis=0)
    alpha = config.alpha
    if alpha is None:
        written = site.written(per_channel=levels.per_channel)
        alpha = best_alpha(reads, written, (x, w), levels)
    if alpha is None:
        return None
    s = smooth_factors(x, w, alpha)
    for layer in site.readers:
        layer.scale_inputs(s.astype(np.float32))
    if site.layer is not None:
        site.layer.scale_outputs((1 / s).astype(np.float32))
    for factor in site.factors:
        factor.scale(graph, s)
    if site.layer is None and not site.factors:
        nodes = [layer.node for layer in site.readers]
        name = f"{site.readers[0].source}_smooth"
        multiply_inputs(graph, nodes, (1 / s).astype(np.float32), name)
    return alpha


def _read(layer: Layer, seen: Mapping[str, DoubleArray]) -> Read:
    rows = seen[layer.source]
    weight = np.asarray(layer.kernel[0, :, :, 0], np.float64)
    return Read(weight, rows[_PEAK], rows[_SQUARES] / np.maximum(rows[_COUNT], 1))


def _measure(_: str, array: Array) -> DoubleArray:
    """Return peak, sum of squares and count of each channel; those of a layer's input lie last."""
    flat = array.reshape(-1, array.shape[-1])
    squares = np.einsum("ij,ij->j", flat, flat, dtype=np.float64)
    peaks = np.abs(flat).max(axis=0, initial=0)
    return np.stack([peaks, squares, np.full(len(squares), len(flat))]).astype(np.float64)


def _join(one: DoubleArray, other: DoubleArray) -> DoubleArray:
    both = one + other
    both[_PEAK] = np.maximum(one[_PEAK], other[_PEAK])
    return both


def _layers(site: Site) -> list[Layer]:
    return [*site.readers, *([site.layer] if site.layer is not None else [])]


def _summary(alphas: list[float | None], sites: list[Site]) -> str:
    layers = sum(len(s.readers) for s, a in zip(sites, alphas, strict=True) if a is not None)
    counts = Counter(alpha for alpha in alphas if alpha is not None)
    spread = ", ".join(f"{alpha:g} ({counts[alpha]})" for alpha in sorted(counts))
    text = f"smoothed the input of {layers} layers in {sum(counts.values())} places"
    left = len(alphas) - sum(counts.values())
    return text + (f", alpha {spread}" if spread else "") + (f"; {left} better as is" * bool(left))
