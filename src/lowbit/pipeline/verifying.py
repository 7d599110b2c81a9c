"""What a run says about the model it made."""

from __future__ import annotations

import os

import msgspec
import onnx_ir as ir

from lowbit.calibrate.statistics import Stats
from lowbit.config.config import QuantConfig
from lowbit.config.transforms import CrossLayerEqualization
from lowbit.data.split import Split
from lowbit.errors import VerificationError
from lowbit.evaluate.compare_models import compare_models, of_layers, of_outputs
from lowbit.graph import io
from lowbit.graph.check import check_file
from lowbit.pipeline.building import Built
from lowbit.report.overflow import near_overflow
from lowbit.report.values import Report, Step, count_formats, scores
from lowbit.version import __version__


def verify(
    built: Built, quantized: ir.Model, samples: Split, steps: tuple[Step, ...] = ()
) -> Report:
    """Check the file, run it on held-out samples against the model as loaded, and report."""
    ready, plan = built.ready, built.plan
    threads = os.cpu_count() or 1
    with io.as_file(quantized) as path:
        check_file(path)
    references = [
        of_outputs(ready.reference, quantized),
        of_layers(ready.observed, quantized, [t.name for t in plan.activations()]),
    ]
    outputs, layers = compare_models(references, quantized, samples.verification(), threads=threads)
    peaks = {name: row.peak for name, row in {**outputs, **layers}.items()}
    overflows = near_overflow(ready.adapted, plan, peaks)
    return Report(
        preset=plan.preset,
        target=plan.target,
        version=__version__,
        data=samples.data.description,
        calibration_samples=built.stats.samples,
        verification_samples=samples.verification_count,
        held_out=samples.held_out,
        outputs=scores(outputs),
        layers=scores(layers),
        quantized=count_formats(f"{t.role} {t.spec.describe()}" for t in plan.tensors),
        float_nodes=plan.float_nodes,
        adjustments=built.params.adjustments,
        steps=steps,
        notes=(
            *ready.equalized.notes,
            *overflows,
            *_notes(samples, calibrated=bool(plan.observed())),
        ),
        size_before=constants_size(ready.reference),
        size_after=constants_size(quantized),
    )


def _notes(samples: Split, *, calibrated: bool) -> tuple[str, ...]:
    notes = []
    if samples.data.is_random and calibrated:
        notes.append("calibrated on random data, as asked for: accuracy will be poor")
    if samples.data.is_random and not calibrated:
        notes.append("verified on random data, as asked for: figures say little")
    if not samples.held_out and calibrated:
        notes.append("verified on calibration samples: the data has no others")
    return tuple(notes)


def with_reused(report: Report, stats: Stats, config: QuantConfig) -> Report:
    """Say that the statistics came from elsewhere; what they were made of is not known here."""
    note = f"calibrated from saved statistics of {stats.samples} samples"
    if isinstance(config.equalization, CrossLayerEqualization) or config.smooth_quant is not None:
        note += ", which fit only if equalization saw the same data then as now"
    return msgspec.structs.replace(
        report,
        calibration_samples=stats.samples,
        notes=(note, *(n for n in report.notes if not n.startswith("verified on calibration"))),
    )


def constants_size(model: ir.Model) -> int:
    """Return the bytes of all constants."""
    values = model.graph.initializers.values()
    return sum(v.const_value.nbytes for v in values if v.const_value is not None)


def check_sqnr(report: Report, lowest: float | None) -> None:
    """Raise if the worst output is worse than asked for, and say where the error arises."""
    if lowest is None or report.sqnr_db >= lowest:
        return
    worst = ", ".join(
        f"{score.tensor} ({score.sqnr_db:.1f} dB)" for score in report.steepest_drops(5)
    )
    raise VerificationError(
        f"the worst output has {report.sqnr_db:.1f} dB, less than the {lowest:g} dB asked for; "
        f"the ratio falls most at {worst}. Try --exclude on them, 16-bit activations (A16W8), "
        "or more calibration data"
    )
