"""A model that runs forward in steps, over many samples at once.

Each step computes the values asked for and keeps what later steps read, for every sample; what no
later step reads is dropped. So a walk along all layers costs one pass over the data, whatever
happens to the weights between the steps.

Only what must be computed is kept: a DequantizeLinear is repeated rather than its result kept, so
between two steps a quantized model's values are held as integers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from lowbit.graph.naming import tensor_name
from lowbit.graph.session import Array, Feed, Optimize, Session, extracted_session
from lowbit.refine.store import Store

_REPEATED = frozenset(("DequantizeLinear",))


@dataclasses.dataclass(frozen=True, slots=True)
class _Step:
    """What one step reads, computes, keeps for later and drops afterwards."""

    reads: tuple[str, ...]
    targets: tuple[str, ...]
    keeps: tuple[str, ...]
    drops: tuple[str, ...]
    runs: bool


class Flow:
    """The forward run of one model; steps are taken in order, each for all samples."""

    def __init__(
        self,
        model: ir.Model,
        steps: Sequence[Sequence[str]],
        store: Store,
        *,
        optimize: Optimize = "none",
        device: str = "cpu",
        name: str,
    ) -> None:
        """Plan the run: ``steps`` are the values wanted after each step."""
        self._model, self._store, self._name = model, store, name
        self._optimize, self._device = optimize, device
        self._steps = _plan(model, steps)
        self._types: dict[str, np.dtype[Any]] = {}
        self._session: Session | None = None
        self._step = self._steps[0]

    def begin(self, index: int, constants: Mapping[str, Array]) -> None:
        """Make step ``index`` ready; ``constants`` replace values of that name."""
        self._step = step = self._steps[index]
        self._session = None
        if step.runs:
            wanted = dict.fromkeys((*step.targets, *step.keeps))
            outputs = [name for name in wanted if name not in step.reads]
            known = self._ancestors(outputs, step.reads)
            self._session = extracted_session(
                self._model,
                {name: self._types.get(name) for name in step.reads},
                outputs,
                {k: v for k, v in constants.items() if k in known},
                optimize=self._optimize,
                device=self._device,
                name=self._name,
            )

    def run(self, sample: int, feed: Feed | None) -> dict[str, Array]:
        """Take the step for one sample and return the values asked for.

        ``feed`` are the model's inputs, needed in the first step only.
        """
        step = self._step
        have = {name: self._read(sample, name, feed) for name in step.reads}
        if self._session is not None:
            names = self._session.outputs
            have |= dict(zip(names, self._session.run(names, have), strict=True))
        for name in step.keeps:
            array = have[name] if name in have else self._read(sample, name, feed)
            self._types[name] = array.dtype
            self._store.put(sample, name, array)
        for name in step.drops:
            self._store.drop(sample, name)
        return {name: have[name] for name in step.targets}

    def _read(self, sample: int, name: str, feed: Feed | None) -> Array:
        if feed is not None and name in feed:
            return feed[name]
        return self._store.get(sample, name)

    def _ancestors(self, outputs: Sequence[str], stop: Sequence[str]) -> set[str]:
        """Return the names of all values that ``outputs`` depend on, up to ``stop``."""
        values = ir.convenience.create_value_mapping(self._model.graph, include_subgraphs=False)
        found: set[str] = set()
        pending = [values[name] for name in outputs]
        while pending:
            value = pending.pop()
            name = tensor_name(value)
            if name in found or name in stop:
                continue
            found.add(name)
            producer = value.producer()
            if producer is not None:
                pending += [v for v in producer_inputs(producer) if v is not None]
        return found


def producer_inputs(node: ir.Node) -> list[ir.Value]:
    """Return all values a node reads, those inside its subgraphs included."""
    found = [v for v in node.inputs if v is not None]
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            inner = ir.traversal.RecursiveGraphIterator(attribute.as_graph())
            found += [v for n in inner for v in n.inputs if v is not None and v.graph is node.graph]
        elif attribute.type == ir.AttributeType.GRAPHS:
            for graph in attribute.as_graphs():
                inner = ir.traversal.RecursiveGraphIterator(graph)
                found += [
                    v for n in inner for v in n.inputs if v is not None and v.graph is node.graph
                ]
    return found


def _plan(model: ir.Model, steps: Sequence[Sequence[str]]) -> list[_Step]:
    """Say for every step what it reads, keeps and drops."""
    values = ir.convenience.create_value_mapping(model.graph, include_subgraphs=False)
    inputs = {tensor_name(v) for v in model.graph.inputs if not v.is_initializer()}
    varying = _varying(model.graph, inputs)
    made = dict.fromkeys(inputs, -1)
    last: dict[str, int] = {}
    reads: list[set[str]] = []
    for index, targets in enumerate(steps):
        needed: set[str] = set()
        pending = [values[name] for name in targets]
        seen: set[str] = set()
        while pending:
            value = pending.pop()
            name = tensor_name(value)
            if name in seen or name not in varying:
                continue
            seen.add(name)
            producer = value.producer()
            if made.get(name, index) < index and not _is_repeated(producer):
                needed.add(name)
                last[name] = index
                continue
            if producer is not None:
                for output in producer.outputs:
                    if output.name:
                        made.setdefault(output.name, index)
                pending += producer_inputs(producer)
        reads.append(needed)
    planned = []
    for index, targets in enumerate(steps):
        births = inputs if index == 0 else set()
        keeps = [n for n in last if (made[n] == index or n in births) and last[n] > index]
        drops = [n for n in reads[index] if last[n] == index and not (index == 0 and n in inputs)]
        planned.append(
            _Step(
                tuple(sorted(reads[index])),
                tuple(targets),
                tuple(sorted(keeps)),
                tuple(sorted(drops)),
                runs=not set(targets) <= reads[index],
            )
        )
    return planned


def _is_repeated(node: ir.Node | None) -> bool:
    return node is not None and node.op_type in _REPEATED


def _varying(graph: ir.Graph, inputs: set[str]) -> set[str]:
    """Return the values that depend on an input."""
    found = set(inputs)
    for node in graph:
        if any(v.name in found for v in producer_inputs(node)):
            found.update(v.name for v in node.outputs if v.name)
    return found
