"""Refine a draft: the one place that knows which method does what."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from lowbit.config.refinement import AdaQuant, Gptq, LayerReconstruction, Refinement
from lowbit.graph.session import Feed, providers_of
from lowbit.numerics.formats import FloatArray
from lowbit.refine.checkpoint import Checkpoint
from lowbit.refine.devices import Device
from lowbit.refine.dynamic import with_dynamic_batch
from lowbit.refine.finetune import FineTuner
from lowbit.refine.flow import Flow
from lowbit.refine.goals import Goals
from lowbit.refine.gptq import gptq
from lowbit.refine.modules import Draft, Module, Outcome, find_modules
from lowbit.refine.reconstruct import reconstruct
from lowbit.refine.selection import Selection
from lowbit.refine.store import SpillingStore, Store, disk_store
from lowbit.refine.walk import Feeds, Solve, Walk, batched

Progress = Callable[[int, int, Outcome], None]
"""Told how many modules are done, how many there are, and how the last one fared."""

_RECONSTRUCTED = frozenset(("Conv", "ConvTranspose", "Gemm", "MatMul"))
# Positions of each sample that tuning looks at: neighbours show much the same.
_TUNED_AT = 128


@dataclasses.dataclass(frozen=True, slots=True)
class Refined:
    """Integers or floats of refined weights by tensor, float biases by node, and how it went.

    ``modules`` is how many there are; fewer outcomes than that mean it was interrupted.
    """

    weights: Mapping[str, NDArray[np.integer]]
    floats: Mapping[str, FloatArray]
    biases: Mapping[str, FloatArray]
    outcomes: tuple[Outcome, ...]
    modules: int
    skipped: tuple[tuple[str, str], ...]

    @property
    def note(self) -> str:
        """A sentence for the report."""
        kept = [o for o in self.outcomes if o.kept]
        words = f"refined {len(kept)} of {self.modules} layers"
        ratios = [o.after / o.before for o in kept if o.before > 0]
        if ratios:
            mean = float(np.exp(np.mean(np.log(np.maximum(ratios, 1e-9)))))
            words += f": their error on held-out samples fell to {mean:.0%} on average"
        if len(self.outcomes) < self.modules:
            words += f"; interrupted after {len(self.outcomes)}"
        if self.skipped:
            node, why = self.skipped[0]
            words += f"; {len(self.skipped)} left alone ({node}: {why})"
        return words


@dataclasses.dataclass(frozen=True, slots=True)
class _Way:
    """How the walk goes, by the configuration."""

    ops: frozenset[str]
    positions: int
    seed: int = 0
    float_inputs: bool = False
    at_once: bool = False
    on_disk: bool = False
    cache_dir: str | None = None
    alone: bool = False
    batch: int = 1
    moments: bool = False

    @classmethod
    def of(cls, config: Refinement) -> _Way:
        """Return a configuration's way."""
        if isinstance(config, (LayerReconstruction, Gptq)):
            return cls(_RECONSTRUCTED, config.positions, moments=True)
        return cls(
            ops=frozenset(config.target_op_type),
            positions=_TUNED_AT,
            seed=config.fixed_seed,
            float_inputs=config.drop_ratio < 1,
            at_once=config.mem_opt_level == 0,
            on_disk=config.mem_opt_level == 2,
            cache_dir=config.cache_dir,
            alone=config.parallel,
            batch=config.batch_size if config.dynamic_batch else 1,
        )


def check(config: Refinement) -> Device:
    """Raise now, before any work, for a device that is not there; return where tuning runs."""
    providers_of(config.infer_device)
    return Device("cpu" if isinstance(config, Gptq) else config.optim_device)


def refine(
    draft: Draft,
    config: Refinement,
    feeds: Feeds,
    progress: Progress = lambda done, total, outcome: None,
    checkpoint: Checkpoint | None = None,
    *,
    samples: int = 1,
) -> Refined:
    """Return better integers for the weights of a draft, and biases that fit them.

    ``samples``: about how many feeds there are, if known, so that of many each is looked at less.
    An interruption (Ctrl-C) ends it early, with what is done so far.
    """
    device = check(config)
    way = _Way.of(config)
    modules, skipped = find_modules(draft, way.ops, integers=not isinstance(config, AdaQuant))
    outcomes: list[Outcome] = []
    if modules:
        limited: Feeds = functools.partial(_first, feeds, config.data_size)
        if way.batch > 1:
            draft = with_dynamic_batch(draft)
            limited = functools.partial(batched, limited, way.batch)
        done = checkpoint.outcomes(modules) if checkpoint is not None else []
        chosen = Selection.of(draft, modules, config, limited, done)
        listener = _Listener(chosen, checkpoint, progress, len(modules))
        stop = threading.Event()
        used = min(samples, config.data_size or samples)
        with _walk(draft, modules, way, limited, done, config.infer_device, used) as walk:
            solve = _solver(draft, config, device, stop)
            outcomes = _until_stopped(done, walk.run(solve, listener), stop)
    found = list(zip(modules, outcomes, strict=False))
    return Refined(
        {m.weight: o.codes for m, o in found if m.params is not None},
        {m.weight: o.codes for m, o in found if m.params is None},
        {o.node: o.bias for o in outcomes if o.bias is not None},
        tuple(outcomes),
        len(modules),
        tuple(skipped),
    )


def _solver(draft: Draft, config: Refinement, device: Device, stop: threading.Event) -> Solve:
    if isinstance(config, LayerReconstruction):
        return functools.partial(reconstruct, draft, config, device)
    if isinstance(config, Gptq):
        return functools.partial(gptq, draft, config)
    return FineTuner(draft, config, device, stop).solve


def _until_stopped(
    done: Sequence[Outcome], found: Iterator[Outcome], stop: threading.Event
) -> list[Outcome]:
    """Collect outcomes until there are no more, or somebody presses Ctrl-C."""
    outcomes = list(done)
    try:
        outcomes.extend(found)
    except KeyboardInterrupt:
        stop.set()
    return outcomes


@contextlib.contextmanager
def _walk(
    draft: Draft,
    modules: Sequence[Module],
    way: _Way,
    feeds: Feeds,
    done: Sequence[Outcome],
    device: str,
    samples: int,
) -> Iterator[Walk]:
    """Yield the walk over the modules that are left."""
    rest = modules[len(done) :]
    with contextlib.ExitStack() as stack:
        stored = stack.enter_context(disk_store(way.cache_dir)) if way.on_disk else None
        floats, quantized = (_store(stack, way) for _ in range(2))
        goals = Goals(
            draft.floats,
            rest,
            floats,
            positions=way.positions,
            seed=way.seed,
            device=device,
            inputs=way.float_inputs,
            at_once=way.at_once,
            moments=samples if way.moments else None,
        )
        sources = [[module.source.name] for module in rest]
        flow = Flow(draft.quantized, sources, quantized, device=device, name="the quantized model")
        yield Walk(draft, modules, feeds, goals, flow, done, stored, alone=way.alone)


def _store(stack: contextlib.ExitStack, way: _Way) -> Store:
    if way.on_disk:
        return stack.enter_context(disk_store(way.cache_dir))
    return SpillingStore(stack.enter_context(disk_store(None)))


@dataclasses.dataclass(frozen=True, slots=True)
class _Listener:
    """Lets the selection decide, keeps the outcome, and tells the caller."""

    selection: Selection | None
    checkpoint: Checkpoint | None
    progress: Progress
    total: int

    def solved(self, index: int, module: Module, outcome: Outcome) -> Outcome:
        """Return the outcome to go on with."""
        if self.selection is not None:
            outcome = self.selection.choose(module, outcome)
        if self.checkpoint is not None:
            self.checkpoint.save(index, outcome)
        self.progress(index + 1, self.total, outcome)
        return outcome


def _first(feeds: Callable[[], Iterable[Feed]], count: int | None) -> Iterable[Feed]:
    return itertools.islice(feeds(), count)
