"""The one place that knows the order of the stages."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from typing import TYPE_CHECKING, Any

import msgspec
import onnx_ir as ir

from lowbit.calibrate.statistics import Stats
from lowbit.config.config import QuantConfig
from lowbit.config.presets import find_preset
from lowbit.data import Preprocessing, open_data
from lowbit.data.split import Split, split
from lowbit.errors import ConfigError, DataError
from lowbit.graph import io
from lowbit.normalize.normalize import refuse_quantized
from lowbit.numerics.metrics import Metric
from lowbit.pipeline.building import Builder, emit, sign
from lowbit.pipeline.clock import Clock, Progress
from lowbit.pipeline.preparing import ModelSource, model_inputs
from lowbit.pipeline.refining import check_refinement, checkpoint_of, refined
from lowbit.pipeline.verifying import check_sqnr, verify, with_reused
from lowbit.planning import Plan
from lowbit.report.values import Report, Step
from lowbit.scales.parameters import Params
from lowbit.search.keep_if_better import as_collected, choose, options
from lowbit.search.mixed_precision import mixed
from lowbit.search.sensitivity_file import Mix
from lowbit.targets import Target

if TYPE_CHECKING:
    import onnx


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """What a run gives: the model, what was decided, and how good it is.

    ``floats`` is the model as it was before rounding, ``samples`` what it was made and verified on,
    ``mix`` which layers have other formats than all, and what was measured to find them.
    """

    quantized: ir.Model
    report: Report
    plan: Plan
    params: Params
    stats: Stats
    config: QuantConfig
    floats: ir.Model
    samples: Split
    mix: Mix | None = None

    @property
    def model(self) -> onnx.ModelProto:
        """The quantized model as protobuf."""
        return io.to_proto(self.quantized)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the quantized model."""
        io.save(self.quantized, path)


def quantize(
    model: ModelSource,
    output: str | os.PathLike[str] | None = None,
    *,
    data: Any,
    preset: str | None = None,
    config: QuantConfig | None = None,
    target: Target | None = None,
    plan: Plan | None = None,
    stats: Stats | None = None,
    limit: int | None = None,
    preprocessing: Preprocessing | str | None = None,
    min_sqnr: float | None = None,
    held_out: int = 4,
    keep_histograms: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
    metric: Metric | None = None,
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
        target: A target that is none of the built-in ones, instead of the configuration's.
        plan: A plan made before, perhaps edited, instead of planning anew.
        stats: Statistics collected before, instead of running the data again.
        limit: How many samples to calibrate on; all of them if not given.
        preprocessing: How images become inputs.
        min_sqnr: Raise if the worst output has a lower SQNR, in decibels.
        held_out: How many samples to verify on, none of which was calibrated on where the data
            has more than ``limit``.
        keep_histograms: Keep statistics that serve every other method as well.
        checkpoint: A folder for layers that are refined, until all are; ``<output>.refining`` if
            not given.
        resume: Go on with the layers that a run killed before had refined.
        metric: A distance of the quantized model's outputs from the float one's, of each sample a
            list, instead of the one that ``config.mixed_precision`` names; lower is nearer.
        progress: Called with stage, done and total.
    """
    if output is not None:
        io.check_writable(output)
    if limit is not None and limit < 1:
        raise DataError(f"limit is {limit}; at least one sample is needed to calibrate")
    config = _choose_config(preset, config)
    check_refinement(config)
    if plan is not None and config.mixed_precision is not None:
        raise ConfigError(
            "a plan says already which formats layers have: leave out config.mixed_precision"
        )
    clock = Clock(progress)
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
    builder = Builder(
        loaded,
        samples,
        clock,
        target,
        keep_histograms=keep_histograms,
        means=config.bias_correction,
    )
    steps: tuple[Step, ...] = ()
    if stats is not None:
        config = as_collected(config, stats)
        built = builder.build(config, samples.calibration, plan=plan, stats=stats)
    elif options(config):
        built, steps = choose(builder, config, plan)
    else:
        built = builder.build(config, samples.calibration, plan=plan)
    mix: Mix | None = None
    if config.mixed_precision is not None:
        built, mix = mixed(builder, built, config.mixed_precision, metric)
    with clock.stage("refine"):
        folder = pathlib.Path(checkpoint) if checkpoint is not None else None
        if folder is None and output is not None:
            folder = checkpoint_of(output)
        built, notes = refined(built, samples, clock, folder, resume=resume)
        notes = notes if mix is None else (mix.describe(), *notes)
    with clock.stage("emit"):
        quantized = emit(built)
        sign(quantized, built, samples.data)
    with clock.stage("verify"):
        report = verify(built, quantized, samples, steps)
        if stats is not None:
            report = with_reused(report, stats, built.config)
        report = msgspec.structs.replace(report, notes=(*report.notes, *notes))
    check_sqnr(report, min_sqnr)
    if output is not None:
        io.save(quantized, output)
    report = msgspec.structs.replace(report, seconds=clock.seconds)
    return Result(
        quantized,
        report,
        built.plan,
        built.params,
        built.stats,
        built.config,
        built.ready.adapted,
        samples,
        mix,
    )


def _choose_config(preset: str | None, config: QuantConfig | None) -> QuantConfig:
    if preset is not None and config is not None:
        raise ConfigError("give a preset or a config, not both")
    return config if config is not None else find_preset(preset or "A8W8")
