"""A closer look at a few samples: layers, error budget, and what the quantizers see."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np
import onnx_ir as ir

from lowbit.analyze import causes, suggestions
from lowbit.analyze.budget import Subject, make_budget
from lowbit.analyze.constants import Constant, read_constants
from lowbit.analyze.observations import Observation
from lowbit.analyze.promote import at_sixteen_bits
from lowbit.analyze.quantizers import Quantizer, find_quantizers, is_tuned
from lowbit.analyze.sensitivity import Example, open_harness
from lowbit.analyze.switches import Knobs, add_switches
from lowbit.calibrate.observers import thinned
from lowbit.config.specs import IntegerSpec, TensorOverride
from lowbit.evaluate.outputs import Distance, Part, decibels
from lowbit.graph.session import Array, session
from lowbit.numerics.formats import IntegerFormat
from lowbit.numerics.metrics import SignalNoise
from lowbit.report.values import Budget, TensorView, Together
from lowbit.targets import Target

_WORST = 5
_NEAR_FLOAT_DB = 3.0


@dataclasses.dataclass(frozen=True, slots=True)
class Closer:
    """What was seen."""

    layers: Mapping[str, SignalNoise]
    budget: Budget | None
    views: tuple[TensorView, ...]
    notes: tuple[str, ...]


def look_closer(
    quantized: ir.Model,
    floats: ir.Model,
    examples: Sequence[Example],
    parts: Sequence[Part],
    *,
    common: frozenset[str],
    effort: float,
    target: Target,
    threads: int,
) -> Closer:
    """Switch the quantizers of a model one by one; ``floats`` has the weights as they were.

    ``common`` are the tensors that the float model has under the same name.
    """
    quantizers = find_quantizers(quantized)
    constants = read_constants(quantized, floats, quantizers)
    known = {name: c.plain for name, c in constants.items() if c.plain is not None}
    switched = add_switches(quantized, quantizers, known)
    seen = {q.tensor: Observation(q) for q in quantizers if q.kind == "activation"}
    layers = _layer_values(quantized, quantizers, switched.knobs, common)
    found: dict[str, SignalNoise] = {}

    def watch(plain: Mapping[str, Array], got: Mapping[str, Array]) -> None:
        for quantizer in quantizers:
            if quantizer.tensor in seen and quantizer.source in plain:
                seen[quantizer.tensor].add(plain[quantizer.source])
        for name, value in layers.items():
            if value in plain and plain[value].dtype.kind == "f":
                closeness = SignalNoise.of(thinned(plain[value]), thinned(got[value]))
                found[name] = found[name] | closeness if name in found else closeness

    watched = [*layers.values(), *(q.source for q in quantizers)]
    joins = causes.find_joins(quantized, quantizers)
    subjects = [
        Subject(
            quantizer=q,
            knobs=switched.knobs[q.tensor],
            seen=seen.get(q.tensor),
            weight=constants.get(q.results[0]),
            bias=constants.get(q.bias[0]) if q.bias else None,
            join=joins.get(q.tensor),
        )
        for q in quantizers
        if q.tensor in switched.knobs
    ]
    budget = None
    with open_harness(switched, parts, watched, threads) as harness:
        harness.load(examples, watch)
        if effort > 0:
            budget = make_budget(harness, subjects, len(examples), effort, target)
    notes = tuple(_notes(quantizers, switched.knobs, budget))
    if budget is not None:
        together = _together(quantized, quantizers, constants, budget, examples, parts, target)
        budget = msgspec.structs.replace(budget, together=together)
    views = tuple(view for q in quantizers if (view := _view(q, seen, constants)) is not None)
    return Closer(found, budget, views, notes)


def _layer_values(
    model: ir.Model,
    quantizers: Sequence[Quantizer],
    knobs: Mapping[str, Knobs],
    common: frozenset[str],
) -> dict[str, str]:
    """Return, in graph order, what each tensor is called in the switched model."""
    results = {r: q for q in quantizers if q.kind == "activation" for r in q.results}
    quantized = {q.tensor for q in results.values()}
    found: dict[str, str] = {}
    for value in model.graph.inputs:
        for q in results.values():
            if q.source == value.name:
                found[q.tensor] = knobs[q.tensor].result
    for node in model.graph:
        for value in node.outputs:
            name = str(value.name)
            if name in results:
                found[results[name].tensor] = knobs[results[name].tensor].result
            elif name in common and name not in quantized:
                found[name] = name
    return found


def _notes(
    quantizers: Sequence[Quantizer], knobs: Mapping[str, Knobs], budget: Budget | None
) -> Iterator[str]:
    stuck = [q.tensor for q in quantizers if q.tensor not in knobs]
    if stuck:
        yield (
            f"{len(stuck)} weights are not those of the float model (equalization rescales them), so "
            "what they lose cannot be told apart"
        )
    if budget is not None and budget.float_sqnr_db < budget.sqnr_db + _NEAR_FLOAT_DB:
        yield (
            f"with nothing quantized the model would be at {budget.float_sqnr_db:.1f} dB: most of "
            "the error comes from graph rewrites or from weights that cannot be told apart"
        )


def _together(
    model: ir.Model,
    quantizers: Sequence[Quantizer],
    constants: Mapping[str, Constant],
    budget: Budget,
    examples: Sequence[Example],
    parts: Sequence[Part],
    target: Target,
) -> Together | None:
    """Put the worst tensors to 16 bits, run that model and return what it won."""
    by_name = {q.tensor: q for q in quantizers}
    # A tuned weight differs from the float one on purpose: alone it looks worse than it is.
    kinds = {"activation"} if is_tuned(model) else {"activation", "weight"}
    eight = [row for row in budget.rows if row.samples and row.format.endswith("int8")]
    rows = [row for row in eight if row.kind in kinds][:_WORST]
    if not rows or not np.isfinite(budget.sqnr_db):
        return None
    worst = [by_name[row.tensor] for row in rows]
    names = list(dict.fromkeys(part.output for part in parts))
    distance = Distance(parts)
    wide = at_sixteen_bits(model, worst, constants)
    with session(wide, name="the model with the worst tensors at 16 bits") as running:
        for example in examples:
            got = dict(zip(names, running.run(names, example.feed), strict=True))
            distance.add(example.want, got)
    after = decibels(distance.noise)
    return Together(
        tensors=tuple(q.tensor for q in worst),
        sqnr_db=after,
        gain_db=after - budget.sqnr_db,
        noise_won_back=1 - distance.noise / 10 ** (-budget.sqnr_db / 10),
        config=_line(worst, target),
    )


def _line(worst: Sequence[Quantizer], target: Target) -> str:
    """Return what asks for these tensors at 16 bits, or in float where the target has none."""
    rows, excluded = [], []
    for quantizer in worst:
        weight = quantizer.kind == "weight"
        formats = target.weight_formats if weight else target.activation_formats
        signed = quantizer.scale is None or quantizer.scale.low < 0
        wide = IntegerFormat.INT16 if signed else IntegerFormat.UINT16
        if wide in formats:
            spec = IntegerSpec(format=wide)
            rows.append(TensorOverride(tensor=quantizer.tensor, spec=spec))
        elif weight:
            excluded.append(quantizer.reader)
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
    values = constant.quantized if constant.plain is None else constant.plain
    if values.size == 0:
        return None
    rows = np.moveaxis(np.atleast_1d(values), quantizer.channel_axis, 0)
    rows = rows.reshape(len(rows), -1)
    low, high = scale.limits
    return TensorView(
        tensor=quantizer.tensor,
        kind="weight",
        op_type=quantizer.op_type,
        format=quantizer.format,
        scale=float(np.max(scale.scale)),
        limits=scale.limits,
        range=(float(values.min()), float(values.max())),
        clipped=float(np.mean((values < low) | (values > high))),
        channel_low=_short(rows.min(axis=1)),
        channel_high=_short(rows.max(axis=1)),
    )


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
        channel_low=() if seen.channel_low is None else _short(seen.channel_low),
        channel_high=() if seen.channel_high is None else _short(seen.channel_high),
    )


def _short(values: Array) -> tuple[float, ...]:
    """Return numbers with as many digits as a plot shows."""
    return tuple(float(f"{value:.4g}") for value in values)
