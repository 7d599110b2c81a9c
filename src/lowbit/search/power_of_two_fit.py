"""Find factors on tensors so that power-of-two scales fit them.

With power-of-two scales, how finely a tensor is rounded depends on where its range lies between two powers of
two. A factor on the tensor moves the range. So the noise that rounding adds to the outputs is a periodic
function of the logarithm of each factor; factors are chosen by coordinate descent, one group of tensors at
a time. Errors of activations are weighted by their sensitivity where it is known, errors of weights by the
sensitivity of their layer's output.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np
import onnx_ir as ir

from lowbit.calibrate.statistics import Stats
from lowbit.config.methods import MinMse
from lowbit.config.specs import IntegerSpec
from lowbit.config.transforms import Rescaling
from lowbit.data.shards import Selection
from lowbit.graph.editing import only_consumer
from lowbit.graph.naming import tensor_name
from lowbit.numerics.formats import DoubleArray, FloatArray
from lowbit.ops.traits import clip_bounds
from lowbit.pipeline import stages
from lowbit.pipeline.pipeline import Pipeline
from lowbit.planning.plan import TensorPlan
from lowbit.scales.alignment import components
from lowbit.scales.curves import PricedDensities
from lowbit.scales.density import Density
from lowbit.scales.search import code_range, power_of_two_candidates
from lowbit.state import Quantized, Transformed, extended
from lowbit.transforms.factor_groups import FactorGroup, FactorGroups
from lowbit.transforms.layers import WeightedLayer

_STEPS = 32
"""Factors that are tried, in one octave."""

_FACTORS = np.exp2(np.arange(_STEPS) / _STEPS - 0.5)
_UNCHANGED = _STEPS // 2

_SWEEPS = 4
_REFINED = 0.3
"""The share of the weights' noise that is left after refinement."""

_WEIGHTS = 1 << 14
"""Weights of a layer that its error is estimated on."""

_CLOSE = 1e-6
"""How far a code may be beyond the bound of a Clip that it stands for: a rounding error."""

_LEAST_GAIN = 0.02
"""The share of all noise below which nothing is rescaled."""


def rescaled(pipeline: Pipeline, state: Quantized, samples: Selection) -> Quantized | None:
    """Return the model with rescaled tensors, or ``None`` where there is nothing to gain.

    ``samples`` are the samples to calibrate it on.
    """
    with pipeline.clock.stage("transform"):
        rescaling = find_rescaling(state)
        if rescaling is None:
            return None
        config = msgspec.structs.replace(state.config, rescaling=rescaling)
        transformed = stages.rescale(extended(state, Transformed, config=config))
    planned = pipeline.planned(transformed)
    return pipeline.finish(pipeline.calibrated(planned, lambda: samples))


def find_rescaling(state: Quantized) -> Rescaling | None:
    """Return factors, and ranges that give power-of-two scales, or ``None`` where that gains next to nothing."""
    groups = FactorGroups.of(state.float_model.graph)
    tensors = _Tensors.of(state)
    fits = [tensors.fit(group) for group in groups.groups]
    layers = _layers(state, groups)
    chosen = _descended([None if fit is None else fit.noise for fit in fits], layers)
    before, after = (
        _total(fits, layers, positions) for positions in ([_UNCHANGED] * len(fits), chosen)
    )
    if not after < (1 - _LEAST_GAIN) * before:
        return None
    factors: dict[str, float] = {}
    ranges = tensors.unchanged()
    for group, fit, at in zip(groups.groups, fits, chosen, strict=True):
        if fit is not None and at != _UNCHANGED:
            factors[group.names[0]] = float(fit.factors[at])
            ranges |= fit.ranges(at)
    return Rescaling(factors=factors, ranges=ranges)


def _factors(bounds: Sequence[float], spec: IntegerSpec) -> DoubleArray:
    """Return the factors to try; with one of them a Clip's upper bound is exactly the largest code.

    Many outputs of a Clip may equal its bound, which should then be represented exactly.
    """
    found = _FACTORS.copy()
    if bounds:
        octaves = np.log2(spec.limits[1] / min(bounds)) * _STEPS
        found *= np.exp2((octaves - np.rint(octaves)) / _STEPS)
    found[_UNCHANGED] = 1.0
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class _Unit:
    """Tensors that share a scale: the noise with each factor, and the fraction bits that give it."""

    tensors: tuple[TensorPlan, ...]
    noise: DoubleArray
    bits: DoubleArray

    @classmethod
    def of(
        cls,
        tensors: Sequence[TensorPlan],
        densities: Sequence[Density],
        reach: tuple[float, float],
        factors: DoubleArray,
        bound: float,
    ) -> _Unit:
        """Compute the noise of every factor; no code of a rescaled tensor may exceed ``bound``, a Clip's."""
        spec = tensors[0].integer
        low, high = spec.limits
        first = power_of_two_candidates(*reach, spec)
        candidates = np.array([first[0] - 1, *first], np.float64)
        scale = np.exp2(-candidates)[:, None] / factors
        flat = scale.reshape(-1)
        errors = sum(d.squared_error(flat, flat * low, flat * high) / d.unit for d in densities)
        noise = np.asarray(errors).reshape(scale.shape)
        # The quantizer then takes the place of the Clip, so it must not clip later.
        clips = scale * high <= bound * (1 + _CLOSE)
        clips[:, _UNCHANGED] = True
        allowed = np.where(clips, noise, np.inf)
        return cls(tuple(tensors), allowed.min(axis=0), candidates[np.argmin(allowed, axis=0)])


@dataclasses.dataclass(frozen=True, slots=True)
class _GroupFit:
    """The quantized tensors of a group, and the factors to try on it."""

    factors: DoubleArray
    units: tuple[_Unit, ...]

    @property
    def noise(self) -> DoubleArray:
        """The noise that rounding all of them adds to the outputs, for every factor."""
        return np.asarray(np.sum([unit.noise for unit in self.units], axis=0))

    def ranges(self, at: int) -> dict[str, tuple[float, float]]:
        """Return the ranges of the tensors with one of the factors."""
        found = {}
        for unit in self.units:
            scale = float(np.exp2(-unit.bits[at]))
            for tensor in unit.tensors:
                low, high = tensor.integer.limits
                found[tensor.name] = (scale * low, scale * high)
        return found


@dataclasses.dataclass(frozen=True, slots=True)
class _Tensors:
    """The activations of a model that have power-of-two scales of least error."""

    state: Quantized
    priced: PricedDensities
    own: Mapping[str, TensorPlan]
    shared: Mapping[str, tuple[str, ...]]
    bounds: Mapping[str, float]

    @classmethod
    def of(cls, state: Quantized) -> _Tensors:
        """Return the activations of a model."""
        plan = state.plan.integers()
        own = {
            row.name: row
            for row in plan.activations()
            if row.leader == row.name and _is_fitted(row)
        }
        tied = [names for rule in ("merged", "lowest") for names in components(plan, rule)]
        shared = {name: names for names in tied for name in names}
        priced = PricedDensities.of(state.adapted, plan, state.stats)
        return cls(state, priced, own, shared, _bounds(state.float_model.graph))

    def unchanged(self) -> dict[str, tuple[float, float]]:
        """Return the present range of each tensor."""
        params = self.state.params.tensors
        return {name: code_range(params[name], row.integer) for name, row in self.own.items()}

    def fit(self, group: FactorGroup) -> _GroupFit | None:
        """Return the tensors of a group; ``None`` without any, or if one shares its scale with a tensor elsewhere."""
        names = [name for name in group.names if name in self.own]
        sets = list(dict.fromkeys(self.shared.get(name, (name,)) for name in names))
        together = [name for each in sets for name in each]
        if not sets or not set(group.names) >= set(together) <= self.own.keys():
            return None
        bounds = [self.bounds[name] for name in group.names if name in self.bounds]
        factors = _factors(bounds, self.own[names[0]].integer)
        units = [self._unit([self.own[name] for name in each], factors) for each in sets]
        return _GroupFit(factors, tuple(units))

    def _unit(self, tensors: Sequence[TensorPlan], factors: DoubleArray) -> _Unit:
        stats = [self.state.stats[tensor.observe] for tensor in tensors]
        bound = min(self.bounds.get(tensor.name, np.inf) for tensor in tensors)
        reach = min(s.low for s in stats), max(s.high for s in stats)
        return _Unit.of(tensors, [self._density(t) for t in tensors], reach, factors, bound)

    def _density(self, tensor: TensorPlan) -> Density:
        priced = self.priced.of_tensor(tensor)
        if priced is not None:
            return priced
        return Density.of(self.state.stats[tensor.observe], tensor.name)


def _is_fitted(row: TensorPlan) -> bool:
    """Whether a tensor's scale is the power of two with the least squared error."""
    is_free = row.range is None and row.headroom is None
    by_error = row.is_calibrated and isinstance(row.spec.calibration, MinMse)
    return is_free and by_error and row.integer.power_of_two


def _bounds(graph: ir.Graph) -> dict[str, float]:
    """Return the upper bounds of Clips from zero, by the names of their outputs."""
    found = {}
    for node in graph:
        low, high = clip_bounds(node) if node.op_type == "Clip" else (None, None)
        if low == 0.0 and high is not None:
            found[tensor_name(node.outputs[0])] = high
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class _Layer:
    """A linear layer between two groups: the noise of its weights for every factor on them.

    ``before`` and ``after`` are the groups of its input and output, if these can have a factor.
    """

    before: int | None
    after: int | None
    noise: DoubleArray

    def at(self, positions: Sequence[int]) -> float:
        """Return the noise with these factors."""
        before, after = (
            _UNCHANGED if group is None else positions[group] for group in (self.before, self.after)
        )
        return float(self.noise[(after - before + _UNCHANGED) % _STEPS])

    def with_each(self, group: int, positions: Sequence[int]) -> DoubleArray:
        """Return the noise with every factor on one group, the others as they are."""
        before, after = (
            np.arange(_STEPS)
            if each == group
            else np.full(_STEPS, _UNCHANGED if each is None else positions[each])
            for each in (self.before, self.after)
        )
        return self.noise[(after - before + _UNCHANGED) % _STEPS]


def _layers(state: Quantized, groups: FactorGroups) -> list[_Layer]:
    """Return the layers with power-of-two weight scales and an output of known sensitivity."""
    number = {value: i for i, group in enumerate(groups.groups) for value in group.tensors}
    rows = {
        row.name: row.integer
        for row in state.plan.weights()
        if isinstance(row.spec, IntegerSpec) and row.spec.power_of_two
    }
    found = []
    for layer in groups.layers:
        source, weight = layer.node.inputs[:2]
        spec = None if weight is None else rows.get(str(weight.name))
        sensitivity = _weight_sensitivity(state.stats, layer)
        if spec is None or sensitivity is None or source is None:
            continue
        around = number.get(source), number.get(layer.node.outputs[0])
        found.append(_Layer(*around, sensitivity * _REFINED * _weight_errors(layer.weight, spec)))
    return found


def _weight_sensitivity(stats: Stats, layer: WeightedLayer) -> float | None:
    """Return the error of the outputs for one squared unit of error in every weight of a layer."""
    read = stats.tensors.get(layer.source)
    value, written = layer.node.outputs[0], None
    while written is None:
        written = stats.tensors.get(tensor_name(value))
        consumer = only_consumer(value)
        if written is None and (consumer is None or not consumer.outputs):
            return None
        value = value if consumer is None else consumer.outputs[0]
    if read is None or read.counts is None or written.sensitivity is None:
        return None
    power, means = Density.of(read).power(), read.channels
    if means is not None:  # which corrected biases make up for
        power = max(power - float(np.mean(np.square(means))), 0.0)
    each = layer.shape[2] * layer.shape[3]
    return float(written.sensitivity.squares.sum()) * each * power


def _weight_errors(weight: FloatArray, spec: IntegerSpec) -> DoubleArray:
    """Return the mean squared error of the weights with every factor, relative to the squared factor."""
    flat = weight.reshape(-1)
    top = float(np.abs(flat).max(initial=0.0))
    some = flat[:: max(1, flat.size // _WEIGHTS)].astype(np.float64)
    low, high = spec.limits
    errors = np.zeros(_STEPS)
    for index, factor in enumerate(_FACTORS):
        tried = power_of_two_candidates(-top * factor, top * factor, spec)[:3]
        errors[index] = min(_error(some, 2.0**-bits / factor, low, high) for bits in tried)
    return errors


def _error(values: DoubleArray, scale: float, low: int, high: int) -> float:
    rounded = np.clip(np.rint(values / scale), low, high) * scale
    return float(np.mean(np.square(values - rounded)))


def _descended(noises: Sequence[DoubleArray | None], layers: Sequence[_Layer]) -> list[int]:
    """Return the factor of each group, as an index, by coordinate descent."""
    positions = [_UNCHANGED] * len(noises)
    around: dict[int, list[_Layer]] = {}
    for layer in layers:
        for group in {layer.before, layer.after}:
            if group is not None:
                around.setdefault(group, []).append(layer)
    for _ in range(_SWEEPS):
        before = list(positions)
        for group, noise in enumerate(noises):
            if noise is not None:
                positions[group] = _best(group, noise, around.get(group, ()), positions)
        if positions == before:
            break
    return positions


def _best(
    group: int, noise: DoubleArray, layers: Iterable[_Layer], positions: Sequence[int]
) -> int:
    """Return the best factor of one group, the others as they are."""
    total = noise.copy()
    for layer in layers:
        total += layer.with_each(group, positions)
    return int(np.argmin(total))


def _total(
    fits: Sequence[_GroupFit | None], layers: Sequence[_Layer], positions: Sequence[int]
) -> float:
    found = sum(layer.at(positions) for layer in layers)
    pairs = zip(fits, positions, strict=True)
    return found + sum(float(fit.noise[at]) for fit, at in pairs if fit is not None)
