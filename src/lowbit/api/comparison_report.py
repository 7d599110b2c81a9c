"""The report of a comparison, and the notes on how to read its figures."""

from __future__ import annotations

import math

import onnx_ir as ir

from lowbit.analyze.network import draw_network
from lowbit.analyze.quantizers import find_quantizers, is_refined
from lowbit.analyze.tensors import TensorAnalysis
from lowbit.data import Data
from lowbit.evaluate.compare_models import Comparison
from lowbit.evaluate.latency import Latency
from lowbit.evaluate.output_kinds import find_measured, seen_in
from lowbit.evaluate.shown_samples import show_samples
from lowbit.evaluate.upstream import ratios_upstream, wiring
from lowbit.evaluate.verdict import Verdict
from lowbit.graph.openvino import Runtime
from lowbit.graph.profiling import saturates_int8
from lowbit.graph.tensors import tensors_size
from lowbit.report.values import Report, Score, scores
from lowbit.version import __version__

_GAP_DB = 1.0


def comparison_report(
    float_model: ir.Model,
    other: ir.Model,
    samples: Data,
    found: Comparison,
    analysis: TensorAnalysis | None,
    latency: Latency | None,
    runtime: Runtime,
) -> Report:
    """Return the report of a comparison: figures, analysis, drawing, and notes on how to read them."""
    return Report(
        preset=other.metadata_props.get("lowbit.preset", "unknown"),
        target=other.metadata_props.get("lowbit.target", "unknown"),
        version=__version__,
        data=samples.description,
        calibration_samples=0,
        verification_samples=found.count,
        held_out=True,
        outputs=scores(found.outputs),
        verdict=found.verdict,
        doubts=(
            *_unquantized(float_model, other),
            *_doubts(found.verdict, is_random=samples.is_random),
        ),
        slices=scores(found.sliced),
        fused=scores(found.fused),
        runtime=runtime,
        layers=_layers(other, analysis) if analysis else (),
        budget=analysis.budget if analysis else None,
        tensors=analysis.views if analysis else (),
        network=draw_network(other, find_quantizers(other)),
        notes=(
            *_notes(found, runtime),
            *(analysis.notes if analysis else ()),
            *_refined(other, analysis),
        ),
        size_before=tensors_size(float_model),
        size_after=tensors_size(other),
        latency=latency,
        samples=show_samples(found.shown, _class_outputs(float_model, found)),
    )


def _doubts(verdict: Verdict | None, *, is_random: bool) -> tuple[str, ...]:
    if verdict is None:
        return ()
    return (*verdict.doubts_of_sizes(), *(() if is_random else verdict.doubts_of_inputs()))


def _layers(other: ir.Model, analysis: TensorAnalysis) -> tuple[Score, ...]:
    names = {n: q.tensor for q in find_quantizers(other) for n in (q.source, *q.results)}
    ratios = {name: found.sqnr_db for name, found in analysis.layers.items()}
    return scores(analysis.layers, ratios_upstream(wiring(other.graph, names), ratios))


def _unquantized(float_model: ir.Model, other: ir.Model) -> tuple[str, ...]:
    """Doubt that the second model is the quantized one where nothing says that it is."""
    if _is_quantized(other):
        return ()
    if _is_quantized(float_model):
        return ("the first model is quantized and the second is not: the float model comes first",)
    return ("nothing in the second model is quantized: is it the float model again?",)


def _is_quantized(model: ir.Model) -> bool:
    return "lowbit.preset" in model.metadata_props or bool(find_quantizers(model))


def _class_outputs(float_model: ir.Model, found: Comparison) -> frozenset[str]:
    """Return the outputs that hold classes, going by the first sample."""
    if not found.shown:
        return frozenset()
    first = found.shown[0].outputs
    measured = find_measured(float_model, seen_in([first]), {name: name for name in first})
    return frozenset(m.output for m in measured if m.kind == "classes")


def _notes(found: Comparison, runtime: Runtime) -> tuple[str, ...]:
    mixed = dict.fromkeys(s.output for s in found.slices if s.axis is not None)
    notes = [
        f"output {name} holds values of different magnitudes; its ratio is that of the largest: look at "
        "its slices"
        for name in mixed
    ]
    gap = max((found.exact[n].sqnr_db - f.sqnr_db for n, f in found.fused.items()), default=0.0)
    if found.fused and math.isfinite(gap) and gap > _GAP_DB:
        why = (
            "this processor's int8 kernels saturate in 16 bits: the model is better than their "
            "results, also than those of a deployment on this processor"
            if saturates_int8()
            else f"{runtime}'s fused kernels do not compute what the model says"
        )
        notes.append(f"through fused kernels the outputs are {gap:.1f} dB worse; {why}")
    elif found.fused and saturates_int8():
        notes.append(
            "this processor's int8 kernels saturate in 16 bits; this model and data are not affected"
        )
    return tuple(notes)


def _refined(model: ir.Model, analysis: TensorAnalysis | None) -> tuple[str, ...]:
    """Say what a budget cannot show: weights refined for the quantizers that it switches off."""
    if analysis is None or analysis.budget is None or not is_refined(model):
        return ()
    note = (
        "the weights of this model were refined for its quantizers, so a tensor in float gains less "
        "here than in a new run (--retry CALIBRATION_DATA)"
    )
    return (note,)
