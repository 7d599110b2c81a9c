"""A model that runs forward layer by layer, over many samples at once.

Each step computes the values asked for and keeps what later steps read, for every sample; what no
later step reads is dropped. So a loop along all layers costs one pass over the data, whatever
happens to the weights between the steps.

Only what must be computed is kept: a DequantizeLinear is repeated rather than its result kept, so
between two steps a quantized model's values are held as integers. Sequences are made again too: only
tensors wait.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from lowbit.graph.editing import node_inputs
from lowbit.graph.memory import GrownMemory
from lowbit.graph.naming import tensor_name
from lowbit.graph.session import Array, Feed, Optimize, Session, refuse_unknown
from lowbit.graph.store import Store
from lowbit.graph.submodels import Extractor

REPEATED = frozenset(("DequantizeLinear",))


@dataclasses.dataclass(frozen=True, slots=True)
class _Step:
    """The values that one step reads, computes, keeps for later and drops afterwards."""

    reads: tuple[str, ...]
    computes: tuple[str, ...]
    targets: tuple[str, ...]
    keeps: tuple[str, ...]
    drops: tuple[str, ...]


class LayerwiseRun:
    """The forward run of one model; steps are taken in order, each for all samples."""

    def __init__(
        self,
        model: ir.Model,
        steps: Sequence[Sequence[str]],
        store: Store,
        *,
        optimize: Optimize = "none",
        device: str = "cpu",
        threads: int = 1,
        name: str,
    ) -> None:
        """Plan the run: ``steps`` are the values wanted after each step."""
        self._extractor, self._store, self._name = Extractor(model), store, name
        self._optimize, self._device, self._threads = optimize, device, threads
        refuse_unknown((name for step in steps for name in step), self._extractor.values)
        self._steps = _plan(model.graph, self._extractor.values, steps)
        self._types: dict[str, np.dtype[Any]] = {}
        self._session: Session | None = None
        self._step: _Step | None = None
        self._memory = GrownMemory()

    def begin(self, index: int, constants: Mapping[str, Array]) -> None:
        """Make step ``index`` ready; ``constants`` replace values of that name."""
        self._step = step = self._steps[index]
        self.end()
        if step.computes:
            known = self._ancestors(step.computes, step.reads) if constants else ()
            self._session = self._extractor.session(
                {name: self._types.get(name) for name in step.reads},
                step.computes,
                {name: constants[name] for name in known if name in constants},
                threads=self._threads,
                optimize=self._optimize,
                device=self._device,
                name=self._name,
            )

    def run(self, sample: int, feed: Feed | None) -> dict[str, Array]:
        """Take the step for one sample and return the values asked for.

        ``feed`` are the model's inputs, needed in the first step only.
        """
        step = self._step
        if step is None:
            raise RuntimeError("no step has begun")
        have = {name: self._read(sample, name, feed) for name in step.reads}
        if self._session is not None:
            have |= dict(zip(step.computes, self._session.run(step.computes, have), strict=True))
        for name in step.keeps:
            array = have[name] if name in have else self._read(sample, name, feed)
            self._types[name] = array.dtype
            self._store.put(sample, name, array)
        for name in step.drops:
            self._store.drop(sample, name)
        return {name: have[name] for name in step.targets}

    def end(self) -> None:
        """Close the step that has begun; what it took is freed, and kept for the next one if that is little."""
        if self._session is not None:
            self._session.close(release=False)
            self._memory.release()
        self._session = None

    def _read(self, sample: int, name: str, feed: Feed | None) -> Array:
        if feed is not None and name in feed:
            return feed[name]
        return self._store.get(sample, name)

    def _ancestors(self, outputs: Sequence[str], stop: Sequence[str]) -> list[str]:
        """Return the names of all values that ``outputs`` depend on, up to ``stop``."""
        found: dict[str, None] = {}
        limits = set(stop)
        pending = [self._extractor.values[name] for name in outputs]
        while pending:
            value = pending.pop()
            name = tensor_name(value)
            if name in found or name in limits:
                continue
            found[name] = None
            producer = value.producer()
            if producer is not None:
                pending += node_inputs(producer)
        return list(found)


def _plan(
    graph: ir.Graph, values: Mapping[str, ir.Value], steps: Sequence[Sequence[str]]
) -> list[_Step]:
    """Say for every step what it reads, computes, keeps and drops."""
    inputs = {tensor_name(v) for v in graph.inputs if not v.is_initializer()}
    varying = varying_values(graph, inputs)
    made_in = dict.fromkeys(inputs, -1)
    reads = [
        _reads(index, [values[name] for name in targets], varying, made_in)
        for index, targets in enumerate(steps)
    ]
    last = {name: index for index, names in enumerate(reads) for name in names}
    made: dict[int, set[str]] = collections.defaultdict(set)
    for name in last:
        # The first step is the only one that has the feed: it keeps the inputs that later ones read.
        made[max(made_in[name], 0)].add(name)
    planned = []
    for index, targets in enumerate(steps):
        keeps = {n for n in made[index] if last[n] > index}
        drops = {n for n in reads[index] if last[n] == index and made_in[n] < index}
        if index == 0:
            drops -= inputs
        computes = [n for n in dict.fromkeys((*targets, *sorted(keeps))) if n not in inputs]
        planned.append(
            _Step(
                tuple(sorted(reads[index])),
                tuple(n for n in computes if n not in reads[index]),
                tuple(targets),
                tuple(sorted(keeps)),
                tuple(sorted(drops)),
            )
        )
    return planned


def _reads(
    index: int, targets: Sequence[ir.Value], varying: set[str], made_in: dict[str, int]
) -> set[str]:
    """Return the values of earlier steps that a step begins with. Adds to ``made_in``."""
    reads: set[str] = set()
    pending, seen = list(targets), set[str]()
    while pending:
        value = pending.pop()
        name = tensor_name(value)
        if name in seen or name not in varying:
            continue
        seen.add(name)
        producer = value.producer()
        repeated = producer is not None and _is_repeated(value, producer)
        if made_in.get(name, index) < index and not repeated:
            reads.add(name)
        elif producer is not None:
            for output in producer.outputs:
                if output.name:
                    made_in.setdefault(output.name, index)
            pending += node_inputs(producer)
    return reads


def _is_repeated(value: ir.Value, producer: ir.Node) -> bool:
    """Whether a value is computed again rather than kept: cheap ones, and lists of tensors."""
    return producer.op_type in REPEATED or isinstance(value.type, ir.SequenceType | ir.OptionalType)


def varying_values(graph: ir.Graph, inputs: set[str]) -> set[str]:
    """Return the values that depend on an input."""
    found = set(inputs)
    for node in graph:
        if any(value.name in found for value in node_inputs(node)):
            found.update(value.name for value in node.outputs if value.name)
    return found
