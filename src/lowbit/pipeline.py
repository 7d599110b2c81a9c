"""The one place that knows the order of the stages."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import onnx_ir as ir

import lowbit
from lowbit.adapt import adapt
from lowbit.adapt.side_by_side import SideBySide, side_by_side
from lowbit.calibrate.collect import collect
from lowbit.calibrate.stats import Stats
from lowbit.config.config import QuantConfig
from lowbit.config.equalise import Equalise, QuarkCle
from lowbit.config.files import config_json
from lowbit.config.presets import find_preset
from lowbit.data import Data, InputInfo, Preprocessing, open_data
from lowbit.emit.qdq import emit_qdq
from lowbit.equalise import Equalised, equalise
from lowbit.errors import ConfigError, DataError, VerificationError
from lowbit.graph import io
from lowbit.graph.check import check_file
from lowbit.graph.normalise import normalise, refuse_quantized
from lowbit.graph.passes.require_opset import require_opset
from lowbit.graph.session import Feed, input_dtype
from lowbit.plan import Plan, make_plan
from lowbit.plan.fit import check_fit
from lowbit.plan.head import find_head
from lowbit.refine.bias_correction import corrected_biases
from lowbit.resolve.integers import Weights, nearest
from lowbit.resolve.params import Params
from lowbit.resolve.resolve import resolve, settle_biases
from lowbit.resolve.unlike import unlike_joins
from lowbit.samples import Split, split
from lowbit.targets import Target, find_target
from lowbit.verify.compare import compare_models, of_layers, of_outputs
from lowbit.verify.report import Report, count_formats, scores

if TYPE_CHECKING:
    import onnx

ModelSource = Any
"""A path, the bytes of a file, an ``onnx.ModelProto`` or an ``onnx_ir.Model``."""

Progress = Callable[[str, int, int | None], None]
"""Told the stage, how much of it is done, and how much there is (if known)."""

_FOUR_BIT_OPSET = 21


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """What a run gives: the model, what was decided, and how good it is."""

    quantized: ir.Model
    report: Report
    plan: Plan
    params: Params
    stats: Stats
    config: QuantConfig

    @property
    def model(self) -> onnx.ModelProto:
        """The quantized model as protobuf."""
        return io.to_proto(self.quantized)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the quantized model."""
        io.save(self.quantized, path)


@dataclasses.dataclass(slots=True)
class _Clock:
    """Seconds by stage, and the caller's progress."""

    progress: Progress
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a stage."""
        self.progress(name, 0, None)
        start = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - start


@dataclasses.dataclass(frozen=True, slots=True)
class Prepared:
    """A model made ready for planning: as loaded, as calibrated on, and as emitted from."""

    reference: ir.Model
    equalised: Equalised
    observed: ir.Model
    adapted: ir.Model
    twins: Mapping[str, str]
    config: QuantConfig
    target: Target


def prepare(
    model: ir.Model,
    config: QuantConfig,
    sample: Any = None,
    data: Iterable[Feed] | None = None,
    equalised: Equalised | None = None,
) -> Prepared:
    """Normalise and equalise a loaded model, and rewrite it for the configuration's target.

    Equalisation runs ``data`` where it must see how far activations go; what an earlier call
    ``equalised`` is used as it is.
    """
    target = find_target(config.target)
    refuse_quantized(model)
    even = equalised or _equalise(model, config, target, sample, data)
    shaped = adapt(even.model, target.transforms, config.without)
    # What stays in float does not run on the device: it keeps its own arithmetic.
    kept = {node.node for node in make_plan(shaped, config, target).float_nodes}
    adapted = adapt(shaped, target.arithmetic, config.without, kept)
    pair = SideBySide(shaped, {})
    if target.calibrate_arithmetic:
        pair = side_by_side(shaped, adapted)
    return Prepared(model, even, pair.model, adapted, pair.twins, config, target)


def _equalise(
    model: ir.Model, config: QuantConfig, target: Target, sample: Any, data: Iterable[Feed] | None
) -> Equalised:
    if config.weight is not None and config.weight.format.bits == 4:
        model = require_opset(model, _FOUR_BIT_OPSET)
    normal = normalise(model, sample)
    kept: set[str] = set()
    if isinstance(config.equalise, QuarkCle):
        # A clone, because only that one knows for certain which of its values are inputs.
        kept = {node.node for node in make_plan(normal.clone(), config, target).float_nodes}
    return equalise(normal, config.equalise, data, keep=kept)


def quantize(
    model: ModelSource,
    output: str | os.PathLike[str] | None = None,
    *,
    data: Any,
    preset: str | None = None,
    config: QuantConfig | None = None,
    plan: Plan | None = None,
    stats: Stats | None = None,
    limit: int | None = None,
    preprocessing: Preprocessing | str | None = None,
    min_snr: float | None = None,
    held_out: int = 4,
    keep_histograms: bool = False,
    progress: Progress = lambda stage, done, total: None,
) -> Result:
    """Quantize a float model and verify the result.

    Args:
        model: A path, the bytes of a file, or a loaded model.
        output: Where to write the result; nothing is written if anything fails.
        data: A folder of images or ``.npy``, an ``.npz``, ``"random"``, or any iterable or
            reader of feeds (``lowbit.data.open_data``).
        preset: Name of a preset (``lowbit.presets``); ``A8W8`` if no ``config`` is given.
        config: A configuration, instead of a preset.
        plan: A plan made before, perhaps edited, instead of planning anew.
        stats: Statistics collected before, instead of running the data again.
        limit: How many samples to calibrate on; all of them if not given.
        preprocessing: How images become inputs.
        min_snr: Raise if the worst output has a lower signal-to-noise ratio, in decibels.
        held_out: How many samples to verify on, none of which was calibrated on where the data
            has more than ``limit``.
        keep_histograms: Keep statistics that serve every other method as well.
        progress: Called with stage, done and total.
    """
    if output is not None:
        io.check_writable(output)
    if limit is not None and limit < 1:
        raise DataError(f"limit is {limit}; at least one sample is needed to calibrate")
    config = _choose_config(preset, config)
    clock = _Clock(progress)
    with clock.stage("load"):
        loaded = io.load(model)
        refuse_quantized(loaded)
        samples = split(
            open_data(
                data,
                model_inputs(loaded),
                preprocessing=preprocessing,
                limit=None if limit is None else limit + held_out,
            ),
            limit,
            held_out,
        )
    with clock.stage("normalise"):
        ready = prepare(loaded, config, samples.first(), samples.calibration())
    with clock.stage("plan"):
        chosen = plan or make_plan(ready.adapted, config, ready.target)
        check_fit(chosen, ready.adapted)
    with clock.stage("calibrate"):
        gather = functools.partial(
            collect,
            everything=keep_histograms,
            means=config.correct,
            optimise="all" if ready.target.calibrate_optimised else "none",
            progress=lambda done: progress("calibrate", done, samples.calibration_count),
        )
        known = stats or gather(ready.observed, chosen, samples.calibration(), twins=ready.twins)
        if plan is None and _destroys_head(ready, chosen, known):
            config = msgspec.structs.replace(config, head="float")
            ready = prepare(loaded, config, equalised=ready.equalised)
            chosen = make_plan(ready.adapted, config, ready.target)
            known = stats or gather(
                ready.observed, chosen, samples.calibration(), twins=ready.twins
            )
    with clock.stage("resolve"):
        params = resolve(ready.adapted, chosen, known, ready.target)
        weights = nearest(ready.adapted, chosen, params)
    with clock.stage("refine"):
        if config.correct:
            values = corrected_biases(ready.adapted, chosen, params, known, weights, ready.twins)
            params = settle_biases(ready.adapted, chosen, params, ready.target, values)
            weights = nearest(ready.adapted, chosen, params)
    with clock.stage("emit"):
        quantized = _emit(ready, chosen, params, weights, samples.data)
    with clock.stage("verify"):
        report = _verify(ready, quantized, chosen, params, samples)
        if stats is not None:
            report = _with_reused(report, stats, config)
    _check_snr(report, min_snr)
    if output is not None:
        io.save(quantized, output)
    report = msgspec.structs.replace(report, seconds=clock.seconds)
    return Result(quantized, report, chosen, params, known, config)


def compare(
    reference: ModelSource,
    quantized: ModelSource,
    data: Any,
    *,
    limit: int | None = None,
    preprocessing: Preprocessing | str | None = None,
) -> Report:
    """Measure how far a quantized model is from its float reference, on the given data."""
    float_model, other = io.load(reference), io.load(quantized)
    samples = open_data(data, model_inputs(float_model), preprocessing=preprocessing, limit=limit)
    start = time.perf_counter()
    names = [str(v.name) for node in float_model.graph for v in node.outputs if v.name]
    references = [of_outputs(float_model, other), of_layers(float_model, other, names)]
    outputs, layers = compare_models(references, other, samples, threads=os.cpu_count() or 1)
    return Report(
        preset=other.metadata_props.get("lowbit.preset", "unknown"),
        target=other.metadata_props.get("lowbit.target", "unknown"),
        version=lowbit.__version__,
        data=samples.description,
        calibration_samples=0,
        verification_samples=len(samples),
        held_out=True,
        outputs=scores(outputs),
        layers=scores(layers),
        size_before=_size(float_model),
        size_after=_size(other),
        seconds={"compare": time.perf_counter() - start},
    )


def model_inputs(model: ir.Model) -> list[InputInfo]:
    """Return what each input of a model wants to be fed."""
    return [
        InputInfo(
            name=str(value.name),
            dtype=input_dtype(value),
            shape=None
            if value.shape is None
            else tuple(d if isinstance(d, int) else d.value for d in value.shape),
        )
        for value in model.graph.inputs
        if value.name not in model.graph.initializers
    ]


def _choose_config(preset: str | None, config: QuantConfig | None) -> QuantConfig:
    if preset is not None and config is not None:
        raise ConfigError("give a preset or a config, not both")
    return config if config is not None else find_preset(preset or "A8W8")


def _destroys_head(ready: Prepared, plan: Plan, stats: Stats) -> bool:
    """Whether the tail of the graph joins ranges so unlike that one scale ruins the smaller."""
    if ready.config.head != "auto":
        return False
    if any(name not in stats.tensors for name in plan.observed()):
        # Statistics kept from a run that came to this conclusion lack the tail's tensors.
        return True
    tail = set(find_head(ready.adapted.graph).nodes)
    return any(join.node in tail for join in unlike_joins(plan, stats))


def _emit(ready: Prepared, plan: Plan, params: Params, weights: Weights, data: Data) -> ir.Model:
    quantized = emit_qdq(ready.adapted, plan, params, weights, domain=ready.config.domain)
    quantized.producer_name, quantized.producer_version = "lowbit", lowbit.__version__
    quantized.metadata_props.update(
        {
            "lowbit.version": lowbit.__version__,
            "lowbit.preset": plan.preset,
            "lowbit.target": plan.target,
            "lowbit.config": config_json(ready.config),
            "lowbit.data": f"{data.description} (sha256 {data.fingerprint()})",
        }
    )
    return quantized


def _verify(
    ready: Prepared,
    quantized: ir.Model,
    plan: Plan,
    params: Params,
    samples: Split,
) -> Report:
    threads = os.cpu_count() or 1
    with io.as_file(quantized) as path:
        check_file(path)
    references = [
        of_outputs(ready.reference, quantized),
        of_layers(ready.observed, quantized, [t.name for t in plan.activations()]),
    ]
    outputs, layers = compare_models(references, quantized, samples.verification(), threads=threads)
    return Report(
        preset=plan.preset,
        target=plan.target,
        version=lowbit.__version__,
        data=samples.data.description,
        calibration_samples=samples.calibration_count,
        verification_samples=samples.verification_count,
        held_out=samples.held_out,
        outputs=scores(outputs),
        layers=scores(layers),
        quantized=count_formats(f"{t.role} {t.spec.describe()}" for t in plan.tensors),
        float_nodes=plan.float_nodes,
        adjustments=params.adjustments,
        notes=(*ready.equalised.notes, *_notes(samples)),
        size_before=_size(ready.reference),
        size_after=_size(quantized),
    )


def _notes(samples: Split) -> tuple[str, ...]:
    notes = []
    if samples.data.is_random:
        notes.append("calibrated on random data, as asked for: accuracy will be poor")
    if not samples.held_out:
        notes.append("verified on calibration samples: the data has no others")
    return tuple(notes)


def _with_reused(report: Report, stats: Stats, config: QuantConfig) -> Report:
    """Say that the statistics came from elsewhere; what they were made of is not known here."""
    note = f"calibrated from saved statistics of {stats.samples} samples"
    if isinstance(config.equalise, Equalise):
        note += ", which fit only if equalisation saw the same data then as now"
    return msgspec.structs.replace(
        report,
        calibration_samples=stats.samples,
        notes=(note, *(n for n in report.notes if not n.startswith("verified on calibration"))),
    )


def _size(model: ir.Model) -> int:
    """Return the bytes of all constants."""
    values = model.graph.initializers.values()
    return sum(v.const_value.nbytes for v in values if v.const_value is not None)


def _check_snr(report: Report, lowest: float | None) -> None:
    if lowest is None or report.snr_db >= lowest:
        return
    worst = ", ".join(
        f"{score.tensor} ({score.snr_db:.1f} dB)" for score in report.steepest_drops(5)
    )
    raise VerificationError(
        f"the worst output has {report.snr_db:.1f} dB, less than the {lowest:g} dB asked for; "
        f"the ratio falls most at {worst}. Try --exclude on them, 16-bit activations (A16W8), "
        "or more calibration data"
    )
