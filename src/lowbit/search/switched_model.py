"""A quantized model of which any part can be tried in float, run from where it first differs from float.

Nothing before the first quantizer that is on has to be run again: it is in float for every choice, and the
values that cross a few cuts are kept from one float pass.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import pickle
import sys
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from lowbit.analyze.quantizers import Quantizer, find_quantizers, read_constants
from lowbit.analyze.sensitivity import Switch, Switched, add_switches
from lowbit.evaluate.runner import Outputs, ReferenceSample
from lowbit.graph.parts import is_large
from lowbit.graph.session import Array, copy_of
from lowbit.graph.sharing import sharing_of
from lowbit.graph.submodels import Tail, open_tails
from lowbit.graph.tensors import tensors_size
from lowbit.graph.worker_sessions import packed, unpacked_model
from lowbit.numerics.formats import FloatArray
from lowbit.parallel import cpu_count, distributed_map, ordered_map, worker_count
from lowbit.search.switched_parts import SwitchedParts, Switching
from lowbit.state import Loaded, Quantized

_CUTS = 4

MANY_NODES = 6000
"""Quantized models of more nodes are run part by part."""

_MOST_BYTES = 512 << 20
"""Constants of a model that is opened with switches: they are in it in float as well, several times over."""

_MEMORY_FOR_CUTS = 128 << 20
_REST = "rest"


class SwitchedModel:
    """Runs one model on a few samples, with quantizers switched off."""

    def __init__(
        self,
        model: ir.Model,
        tails: Sequence[Tail],
        switches: Mapping[str, Switch],
        outputs: Sequence[str],
        samples: Sequence[ReferenceSample],
    ) -> None:
        self._model, self._tails, self._switches, self._outputs = model, tails, switches, outputs
        self._samples, self._key = samples, uuid.uuid4().hex
        self._kept: dict[int, Outputs] = {}
        self._room = _MEMORY_FOR_CUTS

    def run_all(
        self, choices: Sequence[Switching], samples: Sequence[int]
    ) -> Iterator[list[tuple[Outputs, Outputs]]]:
        """Yield the same for several choices: by workers, if there are more of them than processors here."""
        if len(choices) < 2 or (worker_count() or 0) <= cpu_count():
            yield from (list(self.run(choice, samples)) for choice in choices)
            return
        rest = pickle.dumps((self._switches, self._outputs, self._samples))
        with packed(self._model) as files:
            shared = {_REST: np.frombuffer(rest, np.uint8), **files}
            task = _Task(self._key, tuple(samples))
            for found in distributed_map(task, choices, name="promotion", shared=shared):
                wanted = (self._samples[index].outputs for index in samples)
                yield list(zip(wanted, found, strict=True))

    def run(self, choice: Switching, samples: Sequence[int]) -> Iterator[tuple[Outputs, Outputs]]:
        """Yield what is wanted of each sample, and what comes out."""
        on = [s.first_node for name, s in self._switches.items() if name not in choice.off]
        names = [s.name for name, s in self._switches.items() if name in choice.off]
        scales = self._scales(choice.factors)
        tail = [t for t in self._tails if t.start <= min(on, default=sys.maxsize)][-1]

        def work(index: int) -> dict[str, Array]:
            values = self._values(index) if tail.start else self._samples[index].feed
            own = self._tails[0] if values is None else tail
            feed = self._samples[index].feed if values is None else values
            given = {name: feed[name] for name in own.inputs}
            given |= {name: np.array(False) for name in names if name in own.defaults}
            given |= {name: array for name, array in scales.items() if name in own.defaults}
            return dict(zip(self._outputs, own.session.run(self._outputs, given), strict=True))

        first = self._samples[0].feed if self._samples else None
        at_once = sharing_of(first, self._model).samples
        for index, got in zip(samples, ordered_map(work, samples, at_once), strict=True):
            yield self._samples[index].outputs, got

    def _scales(self, factors: Sequence[tuple[str, float]]) -> dict[str, Array]:
        """Return scales that are to be fed."""
        found: dict[str, Array] = {}
        for tensor, factor in factors:
            name = self._switches[tensor].scale if tensor in self._switches else None
            known = None if name is None else self._model.graph.initializers[name].const_value
            if name is not None and known is not None:
                scale = known.numpy()
                found[name] = np.asarray(scale * factor, scale.dtype)
        return found

    def _values(self, index: int) -> Outputs | None:
        """Return what the tails read of a sample in float; ``None`` where there is no room for it."""
        if index in self._kept:
            return self._kept[index]
        if self._room <= 0:
            return None
        feed, whole = self._samples[index].feed, self._tails[0]
        names = sorted({name for tail in self._tails for name in tail.inputs if name not in feed})
        off = {s.name: np.array(False) for s in self._switches.values() if s.name in whole.defaults}
        arrays = whole.session.run(names, {**feed, **off}) if names else []
        values = {name: copy_of(array) for name, array in zip(names, arrays, strict=True)}
        self._room -= sum(map(_bytes_of, values.values()))
        self._kept[index] = {**feed, **values}
        return self._kept[index]


@contextlib.contextmanager
def open_switched(
    state: Quantized, outputs: Sequence[str], samples: Sequence[ReferenceSample]
) -> Iterator[SwitchedModel | SwitchedParts]:
    """Yield a quantized model with switches; its sessions end with it."""
    if is_run_in_parts(state):
        quantizers, floats = _known(state)
        yield SwitchedParts(state.emitted.model, quantizers, floats, outputs, samples)
        return
    switched = _switched(state)
    values = ir.convenience.create_value_mapping(switched.model.graph, include_subgraphs=False)
    switched.model.graph.outputs[:] = [values[name] for name in outputs]
    with _opened(switched.model, switched.switches, outputs, samples) as found:
        yield found


@contextlib.contextmanager
def _opened(
    model: ir.Model,
    switches: Mapping[str, Switch],
    outputs: Sequence[str],
    samples: Sequence[ReferenceSample],
) -> Iterator[SwitchedModel]:
    threads = sharing_of(samples[0].feed if samples else None, model).threads
    with open_tails(model, _CUTS, (), "the model with switches", threads=threads) as tails:
        yield SwitchedModel(model, tails, switches, outputs, samples)


@dataclasses.dataclass(frozen=True)
class _Task:
    """The work on a choice in another process, which keeps the model open."""

    key: str
    samples: tuple[int, ...]

    def __call__(self, choice: Switching, shared: Mapping[str, Array]) -> list[Outputs]:
        with _KEPT.lock:
            model = _KEPT.get(self.key, shared)
            return [
                {name: copy_of(array) for name, array in got.items()}
                for _, got in model.run(choice, self.samples)
            ]


class _Kept:
    """The model that this process works on."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._key = ""
        self._stack = contextlib.ExitStack()
        self._model: SwitchedModel | None = None
        atexit.register(self._stack.close)

    def get(self, key: str, shared: Mapping[str, Array]) -> SwitchedModel:
        """Return the model, opened if need be."""
        if self._model is None or self._key != key:
            self._stack.close()
            files = {name: data for name, data in shared.items() if name != _REST}
            rest = pickle.loads(shared[_REST].tobytes())  # noqa: S301 - our own
            self._model = self._stack.enter_context(_opened(unpacked_model(files), *rest))
            self._key = key
        return self._model


_KEPT = _Kept()


def _switched(state: Quantized) -> Switched:
    return add_switches(state.emitted.model, *_known(state))


def _known(state: Quantized) -> tuple[tuple[Quantizer, ...], dict[str, FloatArray]]:
    """Return what is quantized, and what constants are in float."""
    quantizers = find_quantizers(state.emitted.model)
    constants = read_constants(state.emitted.model, state.adapted, quantizers)
    known = {n: c.float_value for n, c in constants.items() if c.float_value is not None}
    return quantizers, known


def can_be_switched(state: Loaded) -> bool:
    """Whether a model is small enough to be opened with switches."""
    return tensors_size(state.loaded) <= _MOST_BYTES


def is_run_in_parts(state: Quantized) -> bool:
    """Whether a model has too many nodes to be opened as a whole with its switches."""
    model = state.emitted.model
    return len(model.graph) > MANY_NODES and is_large(model) and not model.functions


def _bytes_of(value: Array) -> int:
    """Return how much memory a value takes, a sequence too."""
    return sum(map(_bytes_of, value)) if isinstance(value, list) else np.asarray(value).nbytes
