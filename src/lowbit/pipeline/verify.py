"""The last stage: check the file, run it on held-out samples, and report."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from lowbit.config.presets import MORE_PRECISE
from lowbit.data.split import Split
from lowbit.errors import ModelError, RuinedError, VerificationError
from lowbit.evaluate.compare_models import (
    Reference,
    SignalNoises,
    TensorComparison,
    compare_tensors,
)
from lowbit.evaluate.output_evaluation import (
    EvaluatedOutputs,
    OutputEvaluator,
    evaluate_outputs,
)
from lowbit.evaluate.output_kinds import measured_tensors
from lowbit.evaluate.random_outputs import drawn_outputs
from lowbit.evaluate.runner import run_together
from lowbit.evaluate.upstream import ratios_upstream, wiring
from lowbit.graph import io
from lowbit.graph.editing import constant
from lowbit.graph.naming import tensor_name
from lowbit.graph.narrow_types import has_float8
from lowbit.graph.onnx_passes import check_like, check_valid
from lowbit.graph.parts import check_parts, is_large
from lowbit.graph.profiling import saturates_int8
from lowbit.graph.sharing import sharing_of
from lowbit.graph.tensors import tensors_size
from lowbit.normalize.export_traces import size_of_export_traces
from lowbit.pipeline.kernels import find_saturating, slow_kernels
from lowbit.planning.plan import Plan, TensorPlan
from lowbit.planning.unquantized import layers_in_subgraphs
from lowbit.report.values import Report, Score, Step, count_formats, scores
from lowbit.state import Quantized
from lowbit.version import __version__

# Two bits of exponent below the largest number.
_NEAR = 0.25
_AS_WIDE_AS_SINGLE = 1e38
# Samples on which every layer is compared, and as many large ones; outputs are on all.
_LAYERS_ON, _LAYERS_ON_LARGE = 4, 2
_FEW_SAMPLES = 8
# Characters of an exporter's notes from which on their absence is spoken of.
_MANY_TRACES = 100_000


def near_overflow(model: ir.Model, plan: Plan, largest: Mapping[str, float]) -> tuple[str, ...]:
    """Return a warning for activations, and one for constants, that come near overflow."""
    found: dict[str, list[tuple[float, TensorPlan]]] = {}
    for tensor in plan.tensors:
        limit = tensor.spec.overflows_at
        if limit is None:
            continue
        value = largest.get(tensor.name, 0.0)
        if tensor.role == "weight":
            # Those of a format as wide as single precision cannot exceed it.
            value = _largest(model, tensor.name) if limit < _AS_WIDE_AS_SINGLE else 0.0
        if not value <= limit * _NEAR:
            found.setdefault(tensor.role, []).append((value, tensor))
    return tuple(_warning(role, rows) for role, rows in found.items())


def _warning(role: str, rows: list[tuple[float, TensorPlan]]) -> str:
    value, tensor = max(rows, key=lambda row: row[0])
    limit = tensor.spec.overflows_at or 0.0
    others = f" ({len(rows) - 1} more like it)" if len(rows) > 1 else ""
    way_out = f"preset BF16_SCALED or FP16_SCALED, or scaled in the {role}'s spec, prevents that"
    if limit < _AS_WIDE_AS_SINGLE:
        way_out += "; so does BF16"
    return (
        f"{role} {tensor.name!r} reaches {value:.3g}{others}, near the largest "
        f"{tensor.spec.format_name}, {limit:.6g}: it may overflow. {way_out}"
    )


def _largest(model: ir.Model, name: str) -> float:
    data = constant(model.graph.initializers[name])
    return float(np.abs(data).max()) if data is not None and data.size else 0.0


def check_quantized(state: Quantized, samples: Split | None) -> str:
    """Raise unless the model is valid and loads with every optimization, a large one part by part.

    Returns what onnx.checker says of the float model, if it refuses that too.
    """
    model = state.emitted.model
    if not is_large(model):
        return check_like(model, state.loaded)
    with io.as_file(model) as path:
        check_valid(path)
    # Where it is measured with every optimization as well, that shows it.
    feed = None if samples is None or _runs_fused(state) else samples.first()
    if feed is not None:
        try:
            check_parts(model, feed)
        except ModelError as error:
            raise VerificationError(str(error)) from error
    return ""


def verify(
    state: Quantized,
    samples: Split | None,
    steps: tuple[Step, ...] = (),
    *,
    reused: bool = False,
) -> Report:
    """Check the file, run it on held-out samples against the model as loaded, and report.

    Without samples the file is only checked. ``reused``: statistics came from an earlier run.
    """
    plan, quantized = state.plan, state.emitted.model
    invalid = check_quantized(state, samples)
    layers: SignalNoises = {}
    evaluated = EvaluatedOutputs(None, {})
    if samples is not None:
        layers, evaluated = _measured(state, samples)
    largest = {name: row.largest for name, row in (*evaluated.outputs.items(), *layers.items())}
    overflows = near_overflow(state.adapted, plan, largest)
    return Report(
        preset=plan.preset,
        target=plan.target,
        version=__version__,
        data="none" if samples is None else samples.data.description,
        calibration_samples=_calibrated_on(state, samples),
        reused_statistics=reused,
        verification_samples=evaluated.samples,
        held_out=samples is not None and samples.is_verified_on_held_out,
        outputs=scores(evaluated.outputs),
        verdict=evaluated.verdict,
        doubts=_doubts(state, samples, evaluated, reused=reused),
        saturation=find_saturating(state),
        speed=slow_kernels(plan, state.adapted.graph),
        layers=_layers(state, layers),
        quantized=count_formats(f"{t.role} {t.spec.describe()}" for t in plan.tensors),
        float_nodes=plan.float_nodes,
        adjustments=state.params.adjustments,
        steps=steps,
        notes=(
            *(_reused_note(state) if reused else ()),
            *state.rotation_notes,
            *state.transform_notes,
            *overflows,
            *_model_notes(state, invalid),
        ),
        size_before=tensors_size(state.loaded),
        size_after=tensors_size(quantized),
    )


def _measured(state: Quantized, samples: Split) -> tuple[SignalNoises, EvaluatedOutputs]:
    """Return what layers lose on a few samples, and outputs on all, or as many as leave no doubt."""
    loaded, quantized, names = state.loaded, state.emitted.model, quantized_names(state)
    references = [_layer_reference(state)]
    held_out, fused = samples.is_verified_on_held_out, _runs_fused(state)
    if not is_large(quantized):
        large = sharing_of(samples.first(), quantized).one_by_one
        few = _LAYERS_ON_LARGE if large else _LAYERS_ON
        first = itertools.islice(samples.verification(), few)
        (layers,) = compare_tensors(references, quantized, first)
        return layers, evaluate_outputs(
            loaded,
            quantized,
            samples.verification_in_rounds(),
            names,
            held_out=held_out,
            fused=fused,
            total=samples.verification_count,
            looks=samples.looks,
        )
    tensors = TensorComparison(references, quantized, quick=True)
    outputs = OutputEvaluator(loaded, quantized, names, fused=fused)
    on_few = frozenset(range(_LAYERS_ON))
    some = [dataclasses.replace(run, samples=on_few) for run in tensors.runs]
    try:
        for feed, (first_few, every) in run_together([some, outputs.runs], samples.verification()):
            tensors.add(first_few)
            outputs.add(feed, every)
    except ModelError as error:
        raise VerificationError(str(error)) from error
    return tensors.totals[0], outputs.result(held_out=held_out)


def _runs_fused(state: Quantized) -> bool:
    """Whether fused kernels may give other numbers, and take the model at all."""
    model = state.emitted.model
    saturates = state.target.saturation is not None and saturates_int8()
    return (saturates or _rounds_inputs(model)) and not has_float8(model)


def _rounds_inputs(model: ir.Model) -> bool:
    """Whether onnxruntime rounds what products of floats read to 8 bits, block by block.

    It does in a default session (1.31) where their weights come from a DequantizeLinear.
    """
    products = (node for node in model.graph if node.op_type == "MatMul")
    return any(_is_dequantized(n.inputs[1]) and not _is_dequantized(n.inputs[0]) for n in products)


def _is_dequantized(value: ir.Value | None) -> bool:
    producer = value.producer() if value is not None else None
    return producer is not None and producer.op_type == "DequantizeLinear"


def quantized_names(state: Quantized, wanted: Sequence[str] | None = None) -> dict[str, str]:
    """Return what the quantized model calls the tensors that outputs are measured at, or those wanted."""
    model = state.emitted.model
    have = {tensor_name(v) for node in model.graph for v in node.outputs if v.name}
    have |= {tensor_name(v) for v in (*model.graph.inputs, *model.graph.outputs)}
    found = {}
    for name in measured_tensors(state.loaded) if wanted is None else wanted:
        known = state.emitted.tensors.get(name)
        read = name if known is None else known.read
        if read in have:
            found[name] = read
    return found


def _model_notes(state: Quantized, invalid: str) -> tuple[str, ...]:
    """Return what is to be said of the model itself."""
    notes = [layers_in_subgraphs(state.adapted)]
    if invalid:
        notes.append(
            f"onnx.checker refuses the float model, and so the quantized one ({invalid}); "
            "onnxruntime runs both"
        )
    if has_float8(state.emitted.model):
        notes.append(
            "onnxruntime's optimizations take 8-bit floats for integers: load the model without any "
            "(graph_optimization_level ORT_DISABLE_ALL)"
        )
    if (traces := size_of_export_traces(state.loaded)) > _MANY_TRACES:
        notes.append(
            f"removed {traces / 1e6:.1f} MB of stack traces and similar metadata, which the exporter stored "
            "with every node; names of nodes are kept"
        )
    return tuple(note for note in notes if note)


def _layer_reference(state: Quantized) -> Reference:
    """Return the reference for activations as they are read in the quantized model."""
    emitted = state.emitted.tensors
    pairs = {t.name: emitted[t.name].read for t in state.plan.activations() if t.name in emitted}
    return Reference(state.calibrated_model, {a: b for a, b in pairs.items() if a != b})


def _layers(state: Quantized, found: SignalNoises) -> tuple[Score, ...]:
    ratios = {name: row.sqnr_db for name, row in found.items()}
    return scores(found, ratios_upstream(wiring(state.calibrated_model.graph), ratios))


def _calibrated_on(state: Quantized, samples: Split | None) -> int:
    """Return how many samples decided ranges, or at least what weights are rounded to."""
    if samples is None or state.plan.observed() or state.config.refinement is None:
        return state.stats.samples
    return samples.calibration_count


def _doubts(
    state: Quantized, samples: Split | None, evaluated: EvaluatedOutputs, *, reused: bool
) -> tuple[str, ...]:
    """Say why the figures may say little: too little data, or inputs that it was not trained on."""
    if samples is None:
        return (
            "accuracy was not measured, as there was no data: give some, or run `lowbit compare`",
        )
    doubts = []
    calibrated = _calibrated_on(state, samples) > 0
    if samples.data.is_random:
        doubts.append(doubt_of_random_data(calibrated=calibrated))
    # What statistics of an earlier run were made of is not known.
    if not samples.is_verified_on_held_out and calibrated and not reused:
        doubts.append("verified on calibration samples: the data has no others")
    drawn = drawn_outputs(state.loaded)
    if drawn:
        doubts.append(
            f"{', '.join(drawn)}: the model draws random numbers, so two runs of the float model differ too. Measured is "
            "what comes before them; to measure all, give data in which their strength is zero"
        )
    if evaluated.samples and evaluated.verdict is None:
        doubts.append("no output can be compared with the float model's: accuracy is not known")
    if evaluated.verdict is not None:
        doubts += evaluated.verdict.doubts_of_sizes()
    if evaluated.verdict is not None and not samples.data.is_random:
        doubts += evaluated.verdict.doubts_of_inputs()
    return tuple(doubts)


def doubt_of_random_data(*, calibrated: bool) -> str:
    """Say why the figures of a model that was calibrated, or only verified, on random data say little."""
    if calibrated:
        return "calibrated on random data, as asked for: accuracy will be poor"
    return "verified on random data, as asked for: the figures mean little"


def _reused_note(state: Quantized) -> tuple[str, ...]:
    transforms = (state.config.equalization, state.config.smooth_quant)
    note = f"calibrated with saved statistics of {state.stats.samples} samples"
    if any(transform is not None and transform.reads_data for transform in transforms):
        note += ", which are valid only if transforms used the same data"
    return (note,)


def check_verdict(report: Report, *, allow_ruined: bool) -> None:
    """Raise if the model is ruined, with the way out."""
    verdict = report.verdict
    if allow_ruined or verdict is None or verdict.level != "ruined":
        return
    raise RuinedError(
        f"the quantized model is ruined ({verdict.describe()}), so it is not written. "
        f"{next_step(report)}; --allow-ruined writes it anyway"
    )


def next_step(report: Report) -> str:
    """Return what to try next with a model that is not good."""
    if report.calibration_samples and report.calibration_samples < _FEW_SAMPLES:
        return f"Try more calibration data: {report.calibration_samples} samples are few"
    presets = MORE_PRECISE.get(report.target, ())
    if report.preset in presets:
        presets = presets[presets.index(report.preset) + 1 :]
    if not presets:
        return "Look for the cause with `lowbit compare --budget full`"
    words = " or ".join(presets)
    return f"Try --preset {words}, or look for the cause with `lowbit compare --budget full`"


def check_sqnr(report: Report, lowest: float | None) -> None:
    """Raise if the worst output is worse than asked for, and say where the error arises."""
    if lowest is None or report.sqnr_db >= lowest:
        return
    worst = ", ".join(
        f"{score.tensor} ({score.sqnr_db:.1f} dB)" for score in report.error_sources(5)
    )
    raise VerificationError(
        f"the worst output has {report.sqnr_db:.1f} dB, less than the {lowest:g} dB asked for; "
        f"the error arises at {worst}. Try --exclude on them, 16-bit activations (A16W8), "
        "or more calibration data"
    )
