"""The sequence of stages, for one configuration or for several candidates, timed."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sized

import onnx_ir as ir

from lowbit.calibrate.statistics import Stats
from lowbit.config.config import QuantConfig
from lowbit.config.transforms import CrossLayerEqualization
from lowbit.graph.editing import is_constant, only_consumer
from lowbit.ops.linear import linear_operator
from lowbit.pipeline import stages
from lowbit.pipeline.preparing import prepare
from lowbit.pipeline.stages import Feeds
from lowbit.planning.plan import Plan
from lowbit.scales.solver_cache import ConstantsCache, SolverCache
from lowbit.state import (
    Calibrated,
    Loaded,
    Normalized,
    Planned,
    Quantized,
    Solved,
    Transformed,
    extended,
)
from lowbit.store import Store

Progress = Callable[[str, int, int | None], None]
"""A progress callback: the stage, how much of it is done, and the total if known."""


def ignore_progress(stage: str, done: int, total: int | None) -> None:
    """Do nothing, as the progress of those who do not ask for it."""


@dataclasses.dataclass(slots=True)
class Clock:
    """The time of each stage; a stage inside a charged one counts towards that."""

    progress: Progress
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    _charged: str | None = None

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a stage."""
        if self._charged is not None:
            yield
            return
        self.progress(name, 0, None)
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    @contextlib.contextmanager
    def charge(self, name: str) -> Iterator[None]:
        """Time a stage that goes through others: all is charged to it, or to the one it is in."""
        with self.stage(name):
            before = self._charged
            self._charged = before or name
            try:
                yield
            finally:
                self._charged = before

    def tell(self, name: str, done: int, total: int | None) -> None:
        """Tell the caller how far the running stage is."""
        self.progress(self._charged or name, done, total)


@dataclasses.dataclass(frozen=True, slots=True)
class Pipeline:
    """The stages from a normalized model to a quantized one, timed.

    Attributes:
        clock: Told of every stage.
        keep_histograms: Whether statistics are to serve every other method as well.
        means: Whether statistics are to hold what bias correction reads, asked for yet or not.
        store: Where finished results are kept, and found by a later run.
    """

    clock: Clock
    keep_histograms: bool = False
    means: bool = False
    store: Store | None = None
    _constants: ConstantsCache = dataclasses.field(default_factory=ConstantsCache)

    def build(
        self,
        state: Normalized,
        feeds: Feeds,
        *,
        plan: Plan | None = None,
        stats: Stats | None = None,
    ) -> Quantized:
        """Go through all stages, calibrating on ``feeds`` unless there are statistics."""
        with self.clock.stage("transform"):
            transformed = stages.transform(state)
        planned = self.planned(transformed, plan)
        found = self.calibrated(planned, feeds, stats)
        if plan is None and stages.destroys_head(found):
            config = stages.with_config(state, head="float").config
            planned = self.planned(extended(transformed, Transformed, config=config), None)
            if any(name not in found.stats.tensors for name in planned.plan.observed()):
                found = self.calibrated(planned, feeds, stats)
            else:
                found = stages.with_stats(planned, found.stats)
        return self.finish(found)

    def rebuilt(self, state: Quantized, config: QuantConfig) -> Quantized:
        """Return the model of another configuration; only statistics that are missing are collected.

        The configuration has to have the same transforms: the float model stays.
        """
        planned = self.planned(extended(state, Transformed, config=config))
        samples, stats = state.samples, state.stats
        if samples is not None and stages.lacks_statistics(planned.plan, stats):
            more = self.calibrated(planned, samples.calibration).stats
            stats = dataclasses.replace(stats, tensors={**stats.tensors, **more.tensors})
        return self.finish(stages.with_stats(planned, stats))

    def planned(self, state: Transformed, plan: Plan | None = None) -> Planned:
        """Prepare for the target and plan."""
        with self.clock.stage("prepare"):
            prepared = prepare(state)
        with self.clock.stage("plan"):
            return stages.plan(prepared, plan)

    def calibrated(self, state: Planned, feeds: Feeds, stats: Stats | None = None) -> Calibrated:
        """Calibrate, unless there are statistics."""
        if stats is not None:
            return stages.with_stats(state, stats)
        data = feeds()
        total = len(data) if isinstance(data, Sized) else None
        with self.clock.stage("calibrate"):
            return stages.calibrate(
                state,
                lambda: data,
                everything=self.keep_histograms,
                means=self.means,
                store=self.store,
                progress=lambda done: self.clock.tell("calibrate", done, total),
            )

    def finish(self, state: Calibrated, known: SolverCache | None = None) -> Quantized:
        """Solve, correct biases if asked to, and emit; ``known``: see ``stages.solve``."""
        with self.clock.stage("solve"):
            constants = self._constants.of(state.adapted) if known is None else None
            solved = stages.solve(state, known, constants)
            if state.config.bias_correction:
                solved = stages.correct_biases(solved, known)
        return self.emitted(solved)

    def emitted(self, state: Solved) -> Quantized:
        """Emit."""
        with self.clock.stage("emit"):
            return stages.emit(state)


def plan_only(state: Loaded) -> Planned:
    """Return the planned state; its plan may quantize nothing."""
    transformed = _transformed(stages.normalize(state))
    return stages.plan(prepare(transformed), check=False)


def _transformed(state: Normalized) -> Transformed:
    """Do what shows in a plan: without data equalization changes numbers, and those do not.

    It also parts constants that several layers share, and a plan has the names of the copies.
    """
    equalization = state.config.equalization
    plain = equalization is None or type(equalization) is CrossLayerEqualization
    if state.samples is not None or not plain or _shares_constants(state.normalized):
        return stages.transform(state)
    unchanged = extended(state, Transformed, float_model=state.normalized, transform_notes=())
    return stages.rescale(unchanged)


def _shares_constants(model: ir.Model) -> bool:
    """Whether a constant of a linear layer is read, or given out, somewhere else as well."""
    return any(
        value is not None and is_constant(value) and only_consumer(value) is None
        for node in model.graph
        if linear_operator(node) is not None
        for value in node.inputs[1:]
    )
