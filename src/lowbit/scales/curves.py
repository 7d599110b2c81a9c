"""Errors of a tensor, propagated through the function after it.

x * sigmoid(x) leaves nothing of large negative numbers, so a scale need not hold them; what rounds its
gate is multiplied by x, so a gate must not be cut off where x is largest. Both follow from the
density of x alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from lowbit.calibrate.sensitivity import Sensitivity, bin_edges
from lowbit.calibrate.statistics import Stats
from lowbit.config.methods import MinMse
from lowbit.ops.curves import Curve, Function, Gate, find_curves, find_moved_curves
from lowbit.planning.plan import Plan, TensorPlan
from lowbit.scales.density import Density, DoubleArray, SensitiveDensity, weights_of_errors

# Numbers at which the function is taken in each bin, and the least of them relative to the largest:
# what is smaller is zero with every scale.
_POINTS, _LEAST = 4, 1e-3


@dataclasses.dataclass(frozen=True, slots=True)
class CurvedDensity(Density):
    """A density whose error is measured after a function of its values."""

    curve: Function

    def squared_error(self, scale: DoubleArray, low: DoubleArray, high: DoubleArray) -> DoubleArray:
        """Return the mean squared error of the function for each candidate (see ``Density``)."""
        values, weight = _points(self)
        exact = self.curve(values)
        errors = []
        for step, least, most in zip(scale, low, high, strict=True):
            rounded = np.clip(np.rint(values / step) * step, least, most)
            errors.append(float((weight * np.square(self.curve(rounded) - exact)).sum()))
        return np.asarray(errors) / max(self.total, 1.0)

    def coarser(self, together: int) -> CurvedDensity:
        """Return the density with ``together`` adjacent bins merged."""
        plain = Density(self.start, self.end, self.weight, self.zeros).coarser(together)
        return CurvedDensity(plain.start, plain.end, plain.weight, plain.zeros, self.curve)


def before_curve(density: Density, curve: Curve) -> CurvedDensity:
    """Return a tensor's density with errors measured after a curve."""
    return CurvedDensity(density.start, density.end, density.weight, density.zeros, curve.apply)


@dataclasses.dataclass(frozen=True, slots=True)
class SensitiveCurvedDensity(CurvedDensity):
    """A density before a function, weighted by the sensitivity of the outputs to errors of the function's result.

    A gradient takes the function for a straight line, which it is only where little changes. So the error is that
    of the function's result, and gradients say what that counts at the outputs. What is clipped adds up
    first: the sensitivity knows how much of it does.
    """

    sensitivity: Sensitivity

    @classmethod
    def of_sensitivity(
        cls, density: Density, sensitivity: Sensitivity, curve: Curve
    ) -> SensitiveCurvedDensity:
        """Return the density of a tensor weighted by its sensitivity."""
        weight = density.weight * weights_of_errors(sensitivity, density, curve.apply)
        return cls(density.start, density.end, weight, 0.0, curve.apply, sensitivity)

    def squared_error(self, scale: DoubleArray, low: DoubleArray, high: DoubleArray) -> DoubleArray:
        """Return the error at the outputs for each candidate (see ``Density``)."""
        values, weight = _points(self)
        exact, edges = self.curve(values), bin_edges()[:-1]
        over, under = self.sensitivity.clipping
        errors = []
        for step, least, most in zip(scale, low, high, strict=True):
            rounded = np.clip(np.rint(values / step) * step, least, most)
            each = weight * np.square(self.curve(rounded) - exact)
            above, below = values > most, values < least
            errors.append(
                float(each[~(above | below)].sum())
                + max(float(each[above].sum()), float(np.interp(max(most, 0.0), edges, over)))
                + max(float(each[below].sum()), float(np.interp(max(-least, 0.0), edges, under)))
            )
        return np.asarray(errors)

    @property
    def unit(self) -> float:
        """One: errors at the outputs are compared as they are."""
        return 1.0

    def coarser(self, together: int) -> SensitiveCurvedDensity:
        """Return the density with ``together`` adjacent bins merged."""
        plain = Density(self.start, self.end, self.weight, self.zeros).coarser(together)
        return SensitiveCurvedDensity(
            plain.start, plain.end, plain.weight, plain.zeros, self.curve, self.sensitivity
        )


def of_gate(density: Density, gate: Gate) -> Density:
    """Return the density of a gate, given that of its tensor; errors are those of the product."""
    values, weight = _points(density)
    gates = gate.apply(values)
    order = np.argsort(gates, kind="stable")
    return Density(gates[order], gates[order], (weight * np.square(values))[order], density.zeros)


def _points(density: Density) -> tuple[DoubleArray, DoubleArray]:
    """Return numbers of a density with their weights; those next to zero are left out."""
    reach = np.maximum(np.abs(density.start), np.abs(density.end))
    seen = reach > _LEAST * reach.max(initial=0.0)
    start, width = density.start[seen], (density.end - density.start)[seen]
    inside = (np.arange(_POINTS) + 0.5) / _POINTS
    values = start[:, None] + inside * width[:, None]
    weight = np.repeat(density.weight[seen] / _POINTS, _POINTS)
    return values.reshape(-1), weight


@dataclasses.dataclass(frozen=True, slots=True)
class PricedDensities:
    """The densities of tensors whose errors are not measured on the tensor itself.

    ``curves`` by the tensor that they are functions of; ``gates`` give that tensor by the gate. ``moved`` are curves of
    tensors that are only moved to a function: where the sensitivity is known, as errors count by themselves elsewhere.
    """

    stats: Stats
    curves: Mapping[str, Curve]
    gates: Mapping[str, str]
    moved: Mapping[str, Curve]

    @classmethod
    def of(cls, model: ir.Model, plan: Plan, stats: Stats) -> PricedDensities:
        """Find the curves of a model whose tensors are planned and measured."""
        measured = {t.name for t in plan.activations() if _is_measured(t, stats)}
        curves, moved = (
            {n: c for n, c in find(model.graph).items() if n in measured}
            for find in (find_curves, find_moved_curves)
        )
        gates = {c.gate.name: n for n, c in curves.items() if c.gate is not None}
        return cls(stats, curves, gates, moved)

    def of_tensor(self, tensor: TensorPlan) -> Density | None:
        """Return the density to compute a tensor's errors on, or ``None`` for its own."""
        if not isinstance(tensor.integer.method, MinMse):
            return None
        source = self.gates.get(tensor.name, tensor.name)
        curve = self.curves.get(source)
        seen = self.stats[tensor.observe]
        if seen.sensitivity is not None and curve is None:
            curve = self.moved.get(source)
        if seen.sensitivity is not None and (curve is None or source != tensor.name):
            return SensitiveDensity.of_sensitivity(seen, seen.sensitivity)
        if curve is None:
            return None
        density = Density.of(self.stats[source], source)
        if curve.gate is not None and source != tensor.name:
            return of_gate(density, curve.gate)
        if seen.sensitivity is not None and curve.gate is not None:
            return SensitiveCurvedDensity.of_sensitivity(density, seen.sensitivity, curve)
        return before_curve(density, curve)


def _is_measured(tensor: TensorPlan, stats: Stats) -> bool:
    """Whether a tensor has parameters of its own, and its values were counted under its name."""
    seen = stats.tensors.get(tensor.name)
    is_own = tensor.leader == tensor.observe == tensor.name and tensor.range is None
    return is_own and seen is not None and seen.counts is not None
