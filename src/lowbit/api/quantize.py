"""``lowbit.quantize`` and ``lowbit.plan``: from a model to its plan or to the quantized model."""

from __future__ import annotations

import dataclasses
import math
import numbers
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import onnx_ir as ir

from lowbit.api.configuration import choose_config, with_inputs
from lowbit.api.goal_request import goal_request, with_labels
from lowbit.api.samples import (
    calibration_feeds,
    check_needs_no_data,
    open_samples,
    validated_on,
)
from lowbit.calibrate.statistics import Stats
from lowbit.config.config import QuantConfig
from lowbit.data import Preprocessing, Tokenization
from lowbit.data.opening import RANDOM
from lowbit.data.split import Split
from lowbit.errors import ConfigError, DataError
from lowbit.evaluate.labels import Label
from lowbit.files import check_outputs, sibling
from lowbit.graph import io
from lowbit.graph.onnx_passes import malformed_refused
from lowbit.normalize.inputs import free_sizes, settle_inputs
from lowbit.normalize.normalize import refuse_quantized
from lowbit.numerics.metrics import Metric
from lowbit.ops.traits import OPERATORS, Operators
from lowbit.pipeline import stages
from lowbit.pipeline.normalizing import ReusedModel
from lowbit.pipeline.pipeline import Clock, Pipeline, Progress, ignore_progress, plan_only
from lowbit.pipeline.stages import Refinement
from lowbit.pipeline.verify import check_sqnr, check_verdict
from lowbit.planning.plan import Plan
from lowbit.refine.checkpoint import remove_checkpoint
from lowbit.refine.refine import check_refinement
from lowbit.report.html import framed, render_report
from lowbit.report.values import Report, Step
from lowbit.scales.parameters import Params
from lowbit.search.finishing import Finisher
from lowbit.search.goal import Goal
from lowbit.search.goal_search import Request
from lowbit.search.goals import reach_goal
from lowbit.search.keep_if_better import (
    as_collected,
    has_optional_steps,
    keep_what_helps,
    with_every_step,
)
from lowbit.search.scale_search import search_scales
from lowbit.search.sensitivity_file import MixedPrecisionResult
from lowbit.search.strategies import search_mixed_precision
from lowbit.state import Loaded, Normalized, Planned, Quantized, extended
from lowbit.store import Store
from lowbit.targets.builtin import find_target
from lowbit.targets.target import Target

ModelSource = Any
"""A path, the bytes of a file, an ``onnx.ModelProto`` or an ``onnx_ir.Model``."""

_IN_PYTHON = "lowbit.quantize(...)"


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Result:
    """The result of a run: the quantized model, how good it is, and everything known about it.

    ``state`` holds the model at every stage, ``mixed_precision`` which layers have other formats than
    all, and what was measured to find them. There are no ``samples`` if no data was given.
    ``checkpoint`` holds the refined layers until the model is saved.
    """

    state: Quantized
    report: Report
    samples: Split | None
    mixed_precision: MixedPrecisionResult | None = None
    checkpoint: pathlib.Path | None = None

    def __repr__(self) -> str:
        """Return one line: what was made, and how good it is."""
        return f"Result({self.report!r})"

    def _repr_html_(self) -> str:
        """Return the page of the report, for a notebook; its scripts stay in a frame of their own."""
        return framed(render_report(self.report, title=self.report.preset, command=_IN_PYTHON))

    @property
    def quantized(self) -> ir.Model:
        """The quantized model."""
        return self.state.emitted.model

    @property
    def model(self) -> Any:
        """The quantized model as an ``onnx.ModelProto``."""
        return io.to_proto(self.quantized)

    @property
    def plan(self) -> Plan:
        """The format of every tensor, and why."""
        return self.state.plan

    @property
    def params(self) -> Params:
        """Scales and zero points."""
        return self.state.params

    @property
    def stats(self) -> Stats:
        """The statistics of calibration."""
        return self.state.stats

    @property
    def config(self) -> QuantConfig:
        """The configuration, with what was decided on the way."""
        return self.state.config

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the quantized model; only then its checkpoint is removed."""
        io.save(self.quantized, path)
        if self.checkpoint is not None:
            remove_checkpoint(self.checkpoint)


def quantize(
    model: ModelSource,
    output: str | os.PathLike[str] | None = None,
    *,
    data: Any = None,
    preset: str | None = None,
    config: QuantConfig | None = None,
    target: Target | str | None = None,
    operators: Operators = OPERATORS,
    plan: Plan | None = None,
    stats: Stats | None = None,
    limit: int | None = None,
    preprocessing: Preprocessing | Tokenization | str | None = None,
    fix_inputs: Mapping[str, Any] | None = None,
    input_shapes: Mapping[str, Sequence[int | str | None]] | None = None,
    min_sqnr: float | None = None,
    verify: int | None = None,
    keep_histograms: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
    state_dir: str | os.PathLike[str] | None = None,
    keep_partial: bool = False,
    metric: Metric | None = None,
    promote: bool = True,
    allow_ruined: bool = False,
    goal: Goal | str | None = None,
    budget: str | float | None = None,
    labels: str | Sequence[Label] | None = None,
    strategies: Sequence[str] = (),
    progress: Progress = ignore_progress,
) -> Result:
    """Quantize a float model and verify the result.

    Inside ``joblib.parallel_config(...)`` or ``lowbit.parallel.engine(...)`` samples and candidates are
    shared out among the workers chosen there; the result has the same bytes.

    Args:
        model: A path, the bytes of a file, or a loaded model.
        output: Where to write the result; nothing is written if anything fails.
        data: A folder of images or ``.npy``, an ``.npz``, ``"random"``, or any iterable or
            reader of feeds (``lowbit.data.open_data``). Presets that calibrate nothing need none.
        preset: Name of a preset (``lowbit.presets``); ``A8W8`` if no ``config`` is given.
        config: A configuration, instead of a preset.
        target: A target, its name or its file, instead of the configuration's.
        operators: What is known of operators: ``lowbit.ops.traits.OPERATORS`` with rows of your own.
        plan: A plan made before, perhaps edited, instead of planning anew.
        stats: Statistics collected before, instead of running the data again.
        limit: How many samples to calibrate on; all of them if not given.
        preprocessing: How images become inputs.
        fix_inputs: Inputs that become constants, with their values (``{"sr": 16000}``).
        input_shapes: Shapes of inputs, instead of those in the file.
        min_sqnr: Raise if the worst output has a lower SQNR, in decibels.
        verify: How many samples to verify on, none of which was calibrated on where the data
            has more than ``limit``. If not given 32, or fewer where these leave no doubt about the level.
        keep_histograms: Keep statistics that serve every other method as well.
        checkpoint: A folder for layers that are refined, until the model is saved: to ``output``, or
            by ``Result.save``. ``<output>.refining`` if not given.
        resume: Go on with the layers that a run killed before had refined.
        state_dir: A folder or an fsspec URL for finished shards of calibration, layers and trials for a
            goal: a later run with the same does only what is new.
        keep_partial: Let Ctrl-C end refinement early, and go on with the layers that are done.
        metric: A distance of the quantized model's outputs from the float one's, of each sample a
            list, instead of the one that ``config.mixed_precision`` names; lower is nearer.
        allow_ruined: Whether a model that is of no use is returned and written all the same.
        promote: Whether a model that would not be usable gets wider formats where it needs them.
        goal: What the model has to reach (``Goal``, or its text): more and more is tried until it does.
            ``report.goal`` says whether it did, and what was tried.
        budget: How long to search at most: seconds, or ``"20m"``; no limit if not given.
        labels: A label for each sample, or where they are (``lowbit.evaluate.labels``), for the goal.
        strategies: What to try for the goal (``lowbit.search.goal_strategies``); everything if empty.
        progress: Called with stage, done and total.
    """
    config = with_inputs(choose_config(preset, config, plan), fix_inputs, input_shapes)
    check_outputs({"output": output}, source_files(model, data))
    _check_request(config, plan, min_sqnr)
    _check_counts(limit=limit, verify=verify)
    request = goal_request(goal, budget, labels, strategies, plan)
    if data is None:
        check_needs_no_data(config, min_sqnr, request)
    clock = Clock(progress)
    with clock.stage("load"):
        state = _load(model, config, target, operators)
        validation = 0 if limit is None else validated_on(config, stats, limit)
        held_out = (verify, validation)
        samples = open_samples(
            state, data, preprocessing, limit, held_out, request, stops_early=min_sqnr is None
        )
        state = extended(state, Loaded, samples=samples)
        if request is not None and samples is not None:
            request = with_labels(request, labels, samples)
        if stats is not None:
            state = extended(state, Loaded, config=as_collected(config, stats))
    with malformed_refused(state.loaded):
        with clock.stage("normalize"):
            known = model.normalized(state) if isinstance(model, ReusedModel) else None
            normalized = stages.normalize(state, known)
        pipeline = Pipeline(
            clock,
            keep_histograms=keep_histograms or request is not None,
            means=config.bias_correction,
            store=None if state_dir is None else Store.open(state_dir),
        )
        built, steps, mixed = _built(pipeline, normalized, plan, stats, metric)
        if checkpoint is None and output is not None:
            checkpoint = checkpoint_of(output)
        finisher = Finisher(
            pipeline,
            checkpoint,
            steps,
            resume=resume,
            keep_partial=keep_partial,
            reused=stats is not None,
        )
        # What a model wrote itself refines it, but nobody's data decides what is promoted or refused.
        is_measured = data is not None and samples is not None and not samples.data.is_random
        promote = promote and plan is None and mixed is None and is_measured
        built, report, refinement = _finished(finisher, built, request, promote=promote)
    told = (*report.notes, *(() if mixed is None else (mixed.describe(),)), *refinement.notes)
    check_sqnr(report, min_sqnr)
    check_verdict(report, allow_ruined=allow_ruined or not is_measured)
    result = Result(built, report, samples, mixed, refinement.finished_in(checkpoint))
    if output is not None:
        with clock.stage("save"):
            result.save(output)
        result = dataclasses.replace(result, checkpoint=None)
    report = msgspec.structs.replace(report, notes=told, seconds=clock.seconds)
    return dataclasses.replace(result, report=report)


def _built(
    pipeline: Pipeline,
    state: Normalized,
    plan: Plan | None,
    stats: Stats | None,
    metric: Metric | None,
) -> tuple[Quantized, tuple[Step, ...], MixedPrecisionResult | None]:
    """Return the model before refinement, with the steps that help and in the formats that were found."""
    steps: tuple[Step, ...] = ()
    if stats is None and has_optional_steps(state.config):
        built, steps = keep_what_helps(pipeline, state, plan)
    else:
        built = pipeline.build(state, calibration_feeds(state.samples), plan=plan, stats=stats)
        if stats is None:
            built = with_every_step(pipeline, built, plan)
    if state.config.scale_search is not None and plan is None:
        built, more = search_scales(pipeline, built, state.config.scale_search)
        steps = (*steps, *more)
    mixed: MixedPrecisionResult | None = None
    if state.config.mixed_precision is not None:
        built, mixed = search_mixed_precision(pipeline, built, state.config.mixed_precision, metric)
    return built, steps, mixed


def _finished(
    finisher: Finisher, built: Quantized, request: Request | None, *, promote: bool
) -> tuple[Quantized, Report, Refinement]:
    """Return the refined model and how good it is, better ones tried as far as was asked for."""
    if request is not None and built.samples is not None:
        return reach_goal(finisher, built, built.samples, request, promote=promote)
    return finisher.promoted(built) if promote else finisher.finished(built)


def plan(
    model: ModelSource,
    *,
    preset: str | None = None,
    config: QuantConfig | None = None,
    target: Target | str | None = None,
    operators: Operators = OPERATORS,
    fix_inputs: Mapping[str, Any] | None = None,
    input_shapes: Mapping[str, Sequence[int | str | None]] | None = None,
) -> Plan:
    """Return what would be quantized to what, and what stays in float and why, without any data.

    Args:
        model: A path, the bytes of a file, or a loaded model.
        preset: Name of a preset (``lowbit.presets``); ``A8W8`` if no ``config`` is given.
        config: A configuration, instead of a preset.
        target: A target, its name or its file, instead of the configuration's.
        operators: What is known of operators: ``lowbit.ops.traits.OPERATORS`` with rows of your own.
        fix_inputs: Inputs that become constants, with their values.
        input_shapes: Shapes of inputs, instead of those in the file.
    """
    config = with_inputs(choose_config(preset, config), fix_inputs, input_shapes)
    return planned_state(model, None, config, target, operators).plan


def planned_state(
    model: ModelSource,
    preset: str | None = None,
    config: QuantConfig | None = None,
    target: Target | str | None = None,
    operators: Operators = OPERATORS,
) -> Planned:
    """Return a model after all stages that need no data; its plan may quantize nothing."""
    loaded = _load(model, choose_config(preset, config), target, operators)
    with malformed_refused(loaded.loaded):
        return plan_only(loaded)


def checkpoint_of(output: str | os.PathLike[str]) -> pathlib.Path:
    """Return the folder next to an output in which finished layers are kept."""
    return sibling(output, ".refining")


def source_files(model: ModelSource, data: Any = None) -> list[str | os.PathLike[str]]:
    """Return the files and folders that a run reads, which no output may overwrite."""
    files: list[str | os.PathLike[str]] = []
    if isinstance(model, (str, os.PathLike)):
        files += [model, *io.weight_files(model)]
    if isinstance(data, (str, os.PathLike)) and data not in ("", RANDOM):
        files.append(data)
    return files


def _check_counts(*, limit: int | None, verify: int | None) -> None:
    for name, count, least in (("limit", limit, 1), ("verify", verify, 0)):
        if count is not None and (not isinstance(count, numbers.Integral) or count < least):
            raise DataError(
                f"{name} is {count!r}; expected a whole number of samples, at least {least}"
            )


def _check_request(config: QuantConfig, plan: Plan | None, min_sqnr: float | None) -> None:
    """Raise now, before any work, for what cannot be asked for."""
    if min_sqnr is not None and math.isnan(min_sqnr):
        raise ConfigError("min_sqnr is NaN, which no ratio is below; give decibels")
    check_refinement(config)
    if plan is not None and config.mixed_precision is not None:
        raise ConfigError(
            "the plan already decides the formats of layers: skip config.mixed_precision"
        )


def _load(
    model: ModelSource, config: QuantConfig, target: Target | str | None, operators: Operators
) -> Loaded:
    loaded = io.load(model)
    refuse_quantized(loaded)
    free_sizes(loaded)
    settle_inputs(loaded, config.fix_inputs, config.input_shapes)
    if target is None or isinstance(target, str):
        target = find_target(target or config.target)
    return Loaded(loaded=loaded, samples=None, config=config, target=target, operators=operators)
