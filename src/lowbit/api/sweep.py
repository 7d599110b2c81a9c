"""``lowbit.sweep``: one table over models and presets."""

from __future__ import annotations

import csv
import dataclasses
import io as text_io
import pathlib
import time
import uuid
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import msgspec

from lowbit.api.quantize import Result, quantize
from lowbit.config.files import config_json
from lowbit.config.presets import find_preset
from lowbit.data import Data, Preprocessing, Tokenization, open_data
from lowbit.data.shards import Selection
from lowbit.data.split import Split
from lowbit.errors import ConfigError, LowbitError
from lowbit.evaluate.accuracy import Accuracy, LabelledSamples, TopScorer
from lowbit.evaluate.cost import node_costs
from lowbit.evaluate.labels import read_labels
from lowbit.evaluate.latency import measure_latency
from lowbit.graph import io
from lowbit.graph.session import model_inputs
from lowbit.parallel import distributed_map
from lowbit.pipeline.normalizing import ReusedModel
from lowbit.pipeline.pipeline import Progress, ignore_progress
from lowbit.report.sweep_page import SweepRow
from lowbit.store import Store, content_key
from lowbit.version import __version__


@dataclasses.dataclass(frozen=True)
class _Task:
    """One model and one preset, as a task for a worker."""

    model: str
    preset: str
    file: str

    def __str__(self) -> str:
        return f"{self.model} as {self.preset}"


@dataclasses.dataclass(frozen=True)
class _Trial:
    """The settings that all tasks share."""

    data: Any
    limit: int | None
    preprocessing: Preprocessing | Tokenization | str | None
    labels: str | None
    timed: bool
    state_dir: str | None
    run: str
    """A word of this sweep: what a process keeps is of no use to the next, as files may change."""

    def __call__(self, task: _Task) -> SweepRow:
        store = None if self.state_dir is None else Store.open(self.state_dir)
        key = self._key(task) if store is not None else ""
        known = None if store is None else store.get(key)
        if known is not None and (not task.file or pathlib.Path(task.file).exists()):
            return msgspec.json.decode(known, type=SweepRow)
        row = self._measured(task)
        if store is not None:
            store.put(key, msgspec.json.encode(row))
        return row

    def _key(self, task: _Task) -> str:
        config = config_json(find_preset(task.preset))
        rest = (str(self.limit), str(self.timed), task.file, __version__)
        return content_key("sweep", self._content(task.model), config, *rest)

    def _content(self, model: str) -> str:
        """Return a hash of the model, the data and the labels, once for all presets in a row."""
        known = _CONTENTS.get((self, model)) if isinstance(self.data, str) else None
        if known is None:
            data = self._opened(model, None if self.labels else self.limit)
            parts = [data.digest(index) for index in range(len(data))]
            if self.labels is not None:
                parts.append(repr(read_labels(self.labels, data)).encode())
            files = [pathlib.Path(model), *io.weight_files(model)]
            known = content_key(*(file.read_bytes() for file in files), *parts)
            if isinstance(self.data, str):
                _CONTENTS.put((self, model), known)
        return known

    def _opened(self, model: str, limit: int | None) -> Data:
        inputs = model_inputs(io.load(model))
        return open_data(self.data, inputs, preprocessing=self.preprocessing, limit=limit)

    def _measured(self, task: _Task) -> SweepRow:
        row = SweepRow(model=pathlib.Path(task.model).name, preset=task.preset)
        start = time.perf_counter()
        try:
            result = quantize(
                self._reused(task.model),
                task.file or None,
                data=self.data,
                preset=task.preset,
                limit=self.limit,
                preprocessing=self.preprocessing,
                allow_ruined=True,
                state_dir=self.state_dir,
            )
        except LowbitError as error:
            return msgspec.structs.replace(row, refused=str(error))
        took = time.perf_counter() - start
        return self._filled(msgspec.structs.replace(row, seconds=took), task, result)

    def _reused(self, model: str) -> ReusedModel:
        """Return a model, the same for all presets in a row."""
        key = (self.run, model)
        known = _MODELS.get(key)
        if known is None:
            known = ReusedModel(model)
            _MODELS.put(key, known)
        return known

    def _filled(self, row: SweepRow, task: _Task, result: Result) -> SweepRow:
        report, verdict = result.report, result.report.verdict
        feed = None if result.samples is None else result.samples.first()
        latency = None
        if feed is not None and self.timed:
            latency = measure_latency(result.state.loaded, result.quantized, feed)
        accuracy = () if self.labels is None else self._accuracy(task, result)
        return msgspec.structs.replace(
            row,
            level="" if verdict is None else verdict.level,
            figure="" if verdict is None else verdict.worst.describe(),
            sqnr_db=None if verdict is None else verdict.worst.sqnr_db,
            size_before=report.size_before,
            size_after=report.size_after,
            float_share=None if feed is None else _float_share(result, feed),
            latency=latency,
            accuracy=accuracy,
            file=task.file,
        )

    def _accuracy(self, task: _Task, result: Result) -> tuple[Accuracy, ...]:
        """Return the accuracy on samples that were not calibrated on, if there are others."""
        key = (self, task.model)
        known = _LABELLED.get(key)
        if known is None:
            data = self._opened(task.model, None)
            labels = read_labels(str(self.labels), data)
            used = _calibrated(result.samples)
            kept = [i for i in range(len(data)) if (data.names[i] if data.names else i) not in used]
            kept = kept or list(range(len(data)))
            chosen = [labels[index] for index in kept]
            feeds = Selection(data, kept)
            known = LabelledSamples.of(result.state.loaded, feeds, chosen, TopScorer())
            _LABELLED.put(key, known)
        return known.accuracy(result.quantized)


T = TypeVar("T")


class _Last(Generic[T]):
    """A cache of the last value made in this process: presets of one model come one after another."""

    def __init__(self) -> None:
        self._key: object = None
        self._value: T | None = None

    def get(self, key: object) -> T | None:
        """Return it if it is of this key."""
        return self._value if self._value is not None and self._key == key else None

    def put(self, key: object, value: T) -> None:
        """Keep it instead of what was there."""
        self._key, self._value = key, value


_CONTENTS: _Last[str] = _Last()
_MODELS: _Last[ReusedModel] = _Last()
_LABELLED: _Last[LabelledSamples] = _Last()


def _calibrated(samples: Split | None) -> set[int | str]:
    """Return the names of the samples that calibrate, or their numbers where they have none."""
    if samples is None:
        return set()
    names = samples.data.names
    numbers = (i for i in range(samples.total) if i not in samples.held_out)
    return {names[i] if names else i for i in numbers}


def sweep(
    models: str | Sequence[str],
    *,
    presets: str | Sequence[str],
    data: Any,
    out: str | None = None,
    limit: int | None = None,
    preprocessing: Preprocessing | Tokenization | str | None = None,
    labels: str | None = None,
    timed: bool = True,
    state_dir: str | None = None,
    progress: Progress = ignore_progress,
) -> tuple[SweepRow, ...]:
    """Quantize models with presets and return one row for each pair.

    Args:
        models: Paths of float models, or one.
        presets: Names of presets, or one.
        data: As for ``lowbit.quantize``; the same for all models.
        out: A folder for the quantized models; none are written if not given.
        limit: How many samples to calibrate on.
        preprocessing: How images or texts become inputs.
        labels: Where the labels of all samples are, for accuracy.
        timed: Measure how long the models take here.
        state_dir: A folder or fsspec URL for finished rows: what is there is not done again.
        progress: Called with stage, done and total.
    """
    models, presets = ([given] if isinstance(given, str) else given for given in (models, presets))
    if not presets:
        raise ConfigError("a sweep needs at least one preset (--presets XINT8,A8W8)")
    for preset in presets:
        find_preset(preset)
    if out is not None:
        pathlib.Path(out).mkdir(parents=True, exist_ok=True)
    tasks = [_Task(m, preset, _file(out, m, preset)) for m in models for preset in presets]
    trial = _Trial(data, limit, preprocessing, labels, timed, state_dir, uuid.uuid4().hex)
    rows = []
    # Each run uses all processors, so several at once only where there are workers.
    for row in distributed_map(trial, tasks, name="sweep", threads=1):
        rows.append(row)
        progress("sweep", len(rows), len(tasks))
    return tuple(rows)


def _file(out: str | None, model: str, preset: str) -> str:
    if out is None:
        return ""
    return str(pathlib.Path(out) / f"{pathlib.Path(model).stem}.{preset}.onnx")


def _float_share(result: Result, feed: Any) -> float:
    """Return the share of the multiply-adds that is computed in float."""
    costs = node_costs(result.state.adapted, feed)
    every = sum(cost.multiply_adds for cost in costs.values())
    kept = (costs.get(row.node) for row in result.plan.float_nodes)
    return sum(cost.multiply_adds for cost in kept if cost is not None) / every if every else 0.0


def sweep_csv(rows: Sequence[SweepRow]) -> str:
    """Return the table as CSV."""
    text = text_io.StringIO()
    writer = csv.writer(text)
    writer.writerow(
        "model preset verdict figure sqnr_db size_before size_after float_share seconds float_ms "
        "quantized_ms accuracy float_accuracy drop drop_low drop_high refused".split()
    )
    for row in rows:
        latency = row.latency
        times = ("", "") if latency is None else (latency.float_ms, latency.quantized_ms)
        best = row.accuracy[0] if row.accuracy else None
        drop: tuple[object, ...] = ("",) * 5
        if best is not None:
            drop = (best.quantized_score, best.float_score, best.gap, best.low, best.high)
        figures = (row.sqnr_db, row.size_before, row.size_after, row.float_share, row.seconds)
        writer.writerow(
            (row.model, row.preset, row.level, row.figure, *figures, *times, *drop, row.refused)
        )
    return text.getvalue()
