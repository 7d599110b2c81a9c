"""Analysis of single tensors on a few samples: layers, error budget, and what the quantizers see."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np
import onnx_ir as ir

from lowbit.analyze import causes, suggestions
from lowbit.analyze.budget import Subject, make_budget
from lowbit.analyze.observations import Observation, weighted_histogram
from lowbit.analyze.quantizers import (
    Constant,
    Quantizer,
    find_quantizers,
    is_refined,
    read_constants,
    rounds_floats,
)
from lowbit.analyze.region import MUCH_NOISE, OrderedNodes, RegionFinder, find_region
from lowbit.analyze.sensitivity import (
    Switch,
    Switched,
    VariantRunner,
    add_switches,
    open_variant_runner,
)
from lowbit.analyze.suggestions import promote
from lowbit.calibrate.subsampling import subsampled
from lowbit.config.specs import IntegerSpec, TensorOverride
from lowbit.evaluate.cost import node_costs
from lowbit.evaluate.outputs import OutputSlice, SliceErrors
from lowbit.evaluate.runner import Outputs, ReferenceSample, Run, compared
from lowbit.graph.session import Array
from lowbit.numerics.formats import IntegerFormat
from lowbit.numerics.metrics import SignalNoise, decibels
from lowbit.report.values import Budget, Histogram, Promotion, TensorView
from lowbit.targets.target import Target

_WORST = 5
_NEAR_FLOAT_DB = 3.0


@dataclasses.dataclass(frozen=True, slots=True)
class TensorAnalysis:
    """The result of the analysis."""

    layers: Mapping[str, SignalNoise]
    budget: Budget | None
    views: tuple[TensorView, ...]
    notes: tuple[str, ...]


@dataclasses.dataclass(slots=True)
class _Observed:
    """Observations on the samples: the quantizers' inputs, and layers quantized against float."""

    quantizers: Sequence[Quantizer]
    layer_values: Mapping[str, str]
    seen: dict[str, Observation]
    layers: dict[str, SignalNoise] = dataclasses.field(default_factory=dict)

    def add(self, floats: Outputs, quantized: Outputs) -> None:
        """Add one sample."""
        for quantizer in self.quantizers:
            if quantizer.tensor in self.seen and quantizer.source in floats:
                self.seen[quantizer.tensor].add(floats[quantizer.source])
        for name, value in self.layer_values.items():
            array = floats.get(value)
            # A sequence of tensors is none.
            if isinstance(array, np.ndarray) and array.dtype.kind == "f":
                found = SignalNoise.of(subsampled(array), subsampled(quantized[value]))
                self.layers[name] = self.layers[name] | found if name in self.layers else found


def analyze_tensors(
    quantized: ir.Model,
    floats: ir.Model,
    samples: Sequence[ReferenceSample],
    slices: Sequence[OutputSlice],
    *,
    common: frozenset[str],
    effort: float,
    target: Target,
) -> TensorAnalysis:
    """Switch the quantizers of a model one by one; ``floats`` has the weights as they were.

    ``common`` are the tensors that the float model has under the same name.
    """
    quantizers = find_quantizers(quantized)
    constants = read_constants(quantized, floats, quantizers)
    known = {n: c.float_value for n, c in constants.items() if c.float_value is not None}
    switched = add_switches(quantized, quantizers, known)
    observed = _Observed(
        quantizers,
        _layer_values(quantized, quantizers, switched.switches, common),
        {q.tensor: Observation(q) for q in quantizers if q.kind == "activation"},
    )
    subjects = _subjects(quantized, quantizers, switched, observed.seen, constants)
    wanted = [*observed.layer_values.values(), *(q.source for q in quantizers)]
    budget = None
    with open_variant_runner(switched, slices, wanted) as runner:
        runner.load(samples, observed.add)
        if effort > 0:
            budget = make_budget(runner, subjects, len(samples), effort, target)
            region = _region(quantized, floats, samples, subjects, runner)
            budget = msgspec.structs.replace(budget, region=region)
    notes = tuple(_notes(quantizers, switched.switches, budget))
    if budget is not None:
        promotion = _promotion(quantized, quantizers, constants, budget, samples, slices, target)
        budget = msgspec.structs.replace(budget, promotion=promotion)
    views = (_view(q, observed.seen, constants) for q in quantizers)
    return TensorAnalysis(observed.layers, budget, tuple(v for v in views if v is not None), notes)


def _subjects(
    model: ir.Model,
    quantizers: Sequence[Quantizer],
    switched: Switched,
    seen: Mapping[str, Observation],
    constants: Mapping[str, Constant],
) -> list[Subject]:
    shared = causes.find_shared_scales(model, quantizers)
    return [
        Subject(
            quantizer=q,
            switch=switched.switches[q.tensor],
            seen=seen.get(q.tensor),
            weight=constants.get(q.results[0]),
            bias=constants.get(q.bias[0]) if q.bias else None,
            shared=shared.get(q.tensor),
        )
        for q in quantizers
        if q.tensor in switched.switches
    ]


def _layer_values(
    model: ir.Model,
    quantizers: Sequence[Quantizer],
    switches: Mapping[str, Switch],
    common: frozenset[str],
) -> dict[str, str]:
    """Return, in graph order, what each tensor is called in the switched model."""
    results = {r: q for q in quantizers if q.kind == "activation" for r in q.results}
    quantized = {q.tensor for q in results.values()}
    found: dict[str, str] = {}
    for value in model.graph.inputs:
        for q in results.values():
            if q.source == value.name:
                found[q.tensor] = switches[q.tensor].result
    for node in model.graph:
        for value in node.outputs:
            name = str(value.name)
            if name in results:
                found[results[name].tensor] = switches[results[name].tensor].result
            elif name in common and name not in quantized:
                found[name] = name
    return found


def _notes(
    quantizers: Sequence[Quantizer], switches: Mapping[str, Switch], budget: Budget | None
) -> Iterator[str]:
    unknown = [q for q in quantizers if q.tensor not in switches]
    rounded = sum(map(rounds_floats, unknown))
    if rounded:
        yield (
            f"{rounded} weights are rounded by nodes of the graph, so the error budget does not cover them"
        )
    if len(unknown) > rounded:
        yield (
            f"{len(unknown) - rounded} weights differ from the float model (equalization rescales them), "
            "so the error budget does not cover them"
        )
    if budget is not None and budget.float_sqnr_db < budget.sqnr_db + _NEAR_FLOAT_DB:
        yield (
            f"with nothing quantized the model would be at {budget.float_sqnr_db:.1f} dB: most of "
            "the error comes from graph rewrites or from rescaled weights"
        )


def _region(
    model: ir.Model,
    floats: ir.Model,
    samples: Sequence[ReferenceSample],
    subjects: Sequence[Subject],
    runner: VariantRunner,
) -> Promotion | None:
    """Return the region with most of the error, if the model has much of it."""
    if runner.noise_of("quantized", len(samples)) < MUCH_NOISE:
        return None
    quantizers = [subject.quantizer for subject in subjects]
    order = OrderedNodes.of(model, quantizers, node_costs(floats, samples[0].feed))
    kinds = _kinds(model)
    used = {s.quantizer.tensor: s.switch for s in subjects if s.quantizer.kind in kinds}
    return find_region(RegionFinder(order, runner, used), len(samples))


def _promotion(
    model: ir.Model,
    quantizers: Sequence[Quantizer],
    constants: Mapping[str, Constant],
    budget: Budget,
    samples: Sequence[ReferenceSample],
    slices: Sequence[OutputSlice],
    target: Target,
) -> Promotion | None:
    """Promote the worst tensors, run that model with them in 16 bits and return what it gains."""
    by_name = {q.tensor: q for q in quantizers}
    kinds = _kinds(model)
    eight = [row for row in budget.rows if row.samples and row.format.endswith("int8")]
    rows = [row for row in eight if row.kind in kinds][:_WORST]
    if not rows or not np.isfinite(budget.sqnr_db):
        return None
    worst = [by_name[row.tensor] for row in rows]
    noise = noise_of(promote(model, worst, constants), samples, slices)
    after = decibels(1.0, noise)
    return Promotion(
        words=_words(worst, target),
        tensors=tuple(q.tensor for q in worst),
        sqnr_db=after,
        gain_db=after - budget.sqnr_db,
        noise_recovered=1 - noise / 10 ** (-budget.sqnr_db / 10),
        config=_line(worst, target),
    )


def _kinds(model: ir.Model) -> frozenset[str]:
    """Return the kinds of tensors of which something can be said by themselves.

    A refined weight differs from the float one on purpose: by itself it looks worse than it is.
    """
    return frozenset({"activation"} if is_refined(model) else {"activation", "weight"})


def noise_of(
    model: ir.Model, samples: Sequence[ReferenceSample], slices: Sequence[OutputSlice]
) -> float:
    """Return the noise of a quantized model's outputs, as a share of the signal."""
    names = list(dict.fromkeys(part.output for part in slices))
    errors = SliceErrors(slices)
    for want, got in compared(Run.quantized_model(model, names), samples):
        errors.add(want, got)
    return errors.noise


def _wide_format(quantizer: Quantizer, target: Target) -> IntegerFormat | None:
    """Return the 16 bits that a target has for a tensor, if any."""
    is_weight = quantizer.kind == "weight"
    formats = target.weight_formats if is_weight else target.activation_formats
    signed = quantizer.scale is None or quantizer.scale.low < 0
    wide = IntegerFormat.INT16 if signed else IntegerFormat.UINT16
    return wide if wide in formats else None


def _words(worst: Sequence[Quantizer], target: Target) -> str:
    """Return which tensors are promoted, and to what."""
    kinds = {q.kind for q in worst}
    noun = kinds.pop() if len(kinds) == 1 else "tensor"
    wide = [_wide_format(q, target) is not None for q in worst]
    how = "promoted to 16 bits" if all(wide) else "kept in float"
    if any(wide) and not all(wide):
        how = "promoted to 16 bits or float"
    number = f"{len(worst)} worst {noun}s" if len(worst) > 1 else f"worst {noun}"
    return f"the {number} {how}"


def _line(worst: Sequence[Quantizer], target: Target) -> str:
    """Return what asks for these tensors at 16 bits, or in float where the target has none."""
    rows, excluded = [], []
    for quantizer in worst:
        wide = _wide_format(quantizer, target)
        if wide is not None:
            spec = IntegerSpec(format=wide)
            rows.append(TensorOverride(tensor=quantizer.tensor, spec=spec))
        elif quantizer.kind == "weight":
            excluded.append(quantizer.consumer)
        else:
            rows.append(TensorOverride(tensor=quantizer.tensor, keep="float"))
    if excluded:
        # What a node that stays in float gives may no longer be quantized.
        rows = [msgspec.structs.replace(row, optional=True) for row in rows]
    fields = msgspec.json.decode(suggestions.override(*rows))
    return msgspec.json.encode({**fields, **({"exclude": excluded} if excluded else {})}).decode()


def _view(
    quantizer: Quantizer, seen: Mapping[str, Observation], constants: Mapping[str, Constant]
) -> TensorView | None:
    if quantizer.scale is None:
        return None
    scale = quantizer.scale
    if quantizer.kind == "activation":
        return _activation_view(quantizer, seen[quantizer.tensor])
    constant = constants[quantizer.results[0]]
    values = constant.quantized if constant.float_value is None else constant.float_value
    if values.size == 0:
        return None
    rows = np.moveaxis(np.atleast_1d(values), quantizer.channel_axis, 0)
    rows = rows.reshape(len(rows), -1)
    low, high = scale.limits
    before, after = _weight_histograms(constant)
    return TensorView(
        tensor=quantizer.tensor,
        kind="weight",
        op_type=quantizer.op_type,
        format=quantizer.format,
        scale=float(np.max(scale.scale)),
        limits=scale.limits,
        range=(float(values.min()), float(values.max())),
        clipped=float(np.mean((values < low) | (values > high))),
        histogram=before,
        quantized_histogram=after,
        channel_low=_short(rows.min(axis=1)),
        channel_high=_short(rows.max(axis=1)),
    )


def _weight_histograms(constant: Constant) -> tuple[Histogram | None, Histogram | None]:
    """Return a weight's distribution in float, where it is known, and quantized, in the same bins."""
    known = [v for v in (constant.float_value, constant.quantized) if v is not None]
    low, high = (float(end(v)) for end, v in ((np.min, known[0]), (np.max, known[0])))
    if not low < high:
        return None, None
    after = _histogram(constant.quantized, low, high)
    return None if constant.float_value is None else _histogram(known[0], low, high), after


def _histogram(values: Array, low: float, high: float) -> Histogram:
    return weighted_histogram(values, np.ones(values.shape, np.int64), low, high)


def _activation_view(quantizer: Quantizer, seen: Observation) -> TensorView | None:
    if quantizer.scale is None or not seen.count:
        return None
    return TensorView(
        tensor=quantizer.tensor,
        kind="activation",
        op_type=quantizer.op_type,
        format=quantizer.format,
        scale=float(np.max(quantizer.scale.scale)),
        limits=quantizer.scale.limits,
        range=(seen.low, seen.high),
        clipped=seen.clipped / seen.count,
        histogram=seen.histogram(),
        quantized_histogram=seen.quantized_histogram(),
        channel_low=() if seen.channel_low is None else _short(seen.channel_low),
        channel_high=() if seen.channel_high is None else _short(seen.channel_high),
    )


def _short(values: Array) -> tuple[float, ...]:
    """Return numbers with as many digits as a plot shows."""
    return tuple(float(f"{value:.4g}") for value in values)
