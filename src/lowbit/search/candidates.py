"""Candidates of a search: models that differ from one in a few layers, built and run.

What a candidate shares with the base is found once: scales and stored weights of the other layers, and
the values of all tensors before the first layer that differs. Only the rest of it is run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import pickle
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from lowbit.calibrate.statistics import Stats
from lowbit.config.config import QuantConfig
from lowbit.errors import LowbitError
from lowbit.evaluate.runner import Outputs, Run, run_model
from lowbit.graph.differences import Advancing, frontier
from lowbit.graph.session import Array, Feed
from lowbit.graph.submodels import Extractor
from lowbit.graph.worker_sessions import content_hash, packed, unpacked_model
from lowbit.ops.traits import OPERATORS
from lowbit.parallel import distributed_map, ordered_map, worker_count
from lowbit.pipeline import stages
from lowbit.pipeline.pipeline import Clock, Pipeline, ignore_progress
from lowbit.pipeline.verify import quantized_names
from lowbit.scales.solver_cache import SolverCache
from lowbit.search.trials import run_trials
from lowbit.state import Calibrated, Prepared, Quantized, extended
from lowbit.store import content_key
from lowbit.version import __version__

_ROOM_FOR_WEIGHTS = 256 << 20
_CHUNKS_PER_WORKER = 2
_SETTING = "setting"


_MODELS = ("loaded", "normalized", "float_model", "calibrated_model", "adapted")


@dataclasses.dataclass(frozen=True)
class Setting:
    """The setting of candidates: the base they differ from, the output to compute, and feeds.

    ``measured`` are the tensors that whole candidates are measured at, as the float model calls them;
    ``marks`` are what stages noted on nodes, by name, which files of models do not hold.
    """

    base: Calibrated
    output: str
    feeds: Sequence[Feed]
    measured: tuple[str, ...] = ()
    marks: Mapping[str, Mapping[str, object]] = dataclasses.field(default_factory=dict)

    @property
    def is_portable(self) -> bool:
        """Whether another process can have it: rows of operators are functions and stay here."""
        return self.base.operators is OPERATORS

    def without_models(self) -> Setting:
        """Return it for other processes: models go by their files, and most are not read there."""
        nodes = self.base.adapted.graph.all_nodes()
        marks = {str(node.name): dict(node.meta) for node in nodes if node.meta}
        fields = dict.fromkeys(_MODELS)
        base = extended(self.base, Calibrated, samples=None, operators={}, **fields)
        return dataclasses.replace(self, base=base, marks=marks)

    def with_model(self, model: ir.Model) -> Setting:
        """Return it as candidates can be built from it."""
        for node in model.graph.all_nodes():
            node.meta.update(self.marks.get(str(node.name), {}))
        fields = dict.fromkeys(_MODELS, model)
        return dataclasses.replace(
            self, base=extended(self.base, Calibrated, operators=OPERATORS, **fields)
        )

    def digest(self) -> str | None:
        """Return a hash of everything that outputs depend on except the configuration, if there is one."""
        statistics = digest_of_stats(self.base.stats)
        if statistics is None or not self.is_portable:
            return None
        with packed(self.base.adapted) as files:
            model = content_hash(files)
        fed = (array.tobytes() for feed in self.feeds for array in feed.values())
        return content_key(
            model, statistics, repr(self.base.target), self.output, *fed, __version__
        )


def digest_of_stats(stats: Stats) -> str | None:
    """Return a hash of statistics; nothing where a method keeps some of its own."""
    whole = hashlib.sha256()
    for name, s in stats.tensors.items():
        if s.custom is not None:
            return None
        whole.update(repr((name, s.low, s.high, s.count, s.average)).encode())
        arrays = [s.counts, *((s.totals.sums, s.totals.squares) if s.totals is not None else ())]
        for array in arrays:
            whole.update(b"" if array is None else array.tobytes())
    return whole.hexdigest()


class Candidates:
    """The candidates of one setting; those run in the order of their layers cost least."""

    def __init__(self, setting: Setting) -> None:
        """Build nothing yet."""
        self._setting = setting
        self._known = SolverCache(_ROOM_FOR_WEIGHTS)
        self._pipeline = Pipeline(Clock(ignore_progress))
        self._base: Quantized | None = None
        self._values: Advancing | None = None

    def built(self, config: QuantConfig) -> Quantized:
        """Return the candidate of a configuration."""
        base = self._setting.base
        planned = stages.plan(extended(base, Prepared, config=config))
        return self._pipeline.finish(stages.with_stats(planned, base.stats), self._known)

    def outputs(self, config: QuantConfig) -> list[Array]:
        """Return the output of a candidate for each feed."""
        output, model = self._setting.output, self.built(config).emitted.model
        if self._base is None or self._values is None:
            self._base = self._pipeline.finish(self._setting.base, self._known)
            self._values = Advancing(self._base.emitted.model, self._setting.feeds)
        names = frontier(self._base.emitted.model, model, [output])
        values = self._values.at(names)
        if output in names:
            return [row[output] for row in values]
        inputs = {name: values[0][name].dtype for name in names}
        part = Extractor(model).session(inputs, [output], name="a candidate")
        found = [np.array(part.run([output], row)[0]) for row in values]
        part.close()
        return found

    def screened(self, config: QuantConfig) -> Screening:
        """Return what a whole candidate gives for each feed, as far as statistics serve for it."""
        base = self._setting.base
        try:
            planned = stages.plan(extended(base, Prepared, config=config))
            if stages.lacks_statistics(planned.plan, base.stats):
                return Screening()
            built = self._pipeline.finish(stages.with_stats(planned, base.stats), self._known)
        except LowbitError as error:
            return Screening(refused=str(error))
        names = quantized_names(built, self._setting.measured)
        run = Run.quantized_model(built.emitted.model, list(dict.fromkeys(names.values())))
        return Screening(names, tuple(run_model(run, self._setting.feeds)))


@dataclasses.dataclass(frozen=True)
class Screening:
    """The outputs of a candidate for each feed, with its tensor names; or why there are none.

    There is nothing in it where more statistics have to be collected first.
    """

    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    outputs: tuple[Outputs, ...] | None = None
    refused: str = ""


@dataclasses.dataclass(frozen=True)
class _Chunk:
    """Candidates that one worker runs, one after another."""

    names: tuple[str, ...]
    configs: tuple[QuantConfig, ...]

    def __str__(self) -> str:
        return " to ".join(dict.fromkeys((self.names[0], self.names[-1])))


@dataclasses.dataclass(frozen=True)
class _Task:
    """The work on a chunk in another process, which keeps what it knows of the setting."""

    key: str

    def __call__(self, chunk: _Chunk, shared: Mapping[str, Array]) -> list[list[Array]]:
        with _OPENED.lock:  # threads of one worker take turns: what is kept belongs to one place
            candidates = _OPENED.get(self.key, shared)
            return [candidates.outputs(config) for config in chunk.configs]


@dataclasses.dataclass(frozen=True)
class _ScreeningTask:
    """The same for whole candidates."""

    key: str

    def __call__(self, chunk: _Chunk, shared: Mapping[str, Array]) -> Screening:
        with _OPENED.lock:
            return _OPENED.get(self.key, shared).screened(chunk.configs[0])


class _Opened:
    """The candidates that this process works on."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._key = ""
        self._candidates: Candidates | None = None

    def get(self, key: str, shared: Mapping[str, Array]) -> Candidates:
        """Return the candidates of a setting, opened if need be."""
        if self._candidates is None or self._key != key:
            files = {name: data for name, data in shared.items() if name != _SETTING}
            setting: Setting = pickle.loads(shared[_SETTING].tobytes())  # noqa: S301 - our own
            self._key = key
            self._candidates = Candidates(setting.with_model(unpacked_model(files)))
        return self._candidates


_OPENED = _Opened()


def run_candidates(
    setting: Setting, named: Sequence[tuple[str, QuantConfig]], threads: int = 1
) -> Iterator[list[Array]]:
    """Yield the outputs of candidates in order, run by the chosen engine or by threads."""
    workers = worker_count() if setting.is_portable else None
    size = max(1, -(-len(named) // ((workers or threads) * _CHUNKS_PER_WORKER)))
    chunks = [
        _Chunk(*map(tuple, zip(*named[at : at + size], strict=True)))
        for at in range(0, len(named), size)
    ]
    if workers is not None:
        with _shared(setting) as shared:
            task = _Task(uuid.uuid4().hex)
            found = distributed_map(task, chunks, name="sensitivity", shared=shared)
            yield from (outputs for part in found for outputs in part)
    elif threads == 1:
        candidates = Candidates(setting)
        yield from (candidates.outputs(config) for _, config in named)
    else:
        parts = ordered_map(
            lambda chunk: [*map(Candidates(setting).outputs, chunk.configs)], chunks, threads
        )
        yield from (outputs for part in parts for outputs in part)


def screen_candidates(
    setting: Setting, named: Sequence[tuple[str, QuantConfig]], seconds: float | None = None
) -> list[Screening]:
    """Return what whole candidates give, in order, as many as the chosen engine runs in the time."""
    chunks = [_Chunk((name,), (config,)) for name, config in named]
    with _shared(setting) as shared:
        task = _ScreeningTask(uuid.uuid4().hex)
        return run_trials(task, chunks, name="candidates", shared=shared, seconds=seconds)


@contextlib.contextmanager
def _shared(setting: Setting) -> Iterator[dict[str, Array]]:
    """Yield what every worker needs of a setting."""
    rest = np.frombuffer(pickle.dumps(setting.without_models()), np.uint8)
    with packed(setting.base.adapted) as files:
        yield {_SETTING: rest, **files}
