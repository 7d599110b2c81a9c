"""A quantized graph of many nodes of which any part can be tried in float, run part by part.

To open such a graph as a whole with a switch at each quantizer takes longer than everything else. So it is
cut at values that are not quantized, and a part is opened for each kind of it that the choices ask for: as it
is, in float, or between the two. One pass serves any number of choices, and what they have in common up to a
part is run once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from lowbit.analyze.quantizers import Quantizer
from lowbit.evaluate.runner import Outputs, ReferenceSample
from lowbit.graph.editing import constant, node_inputs
from lowbit.graph.layerwise_run import varying_values
from lowbit.graph.message import part_message
from lowbit.graph.naming import tensor_name
from lowbit.graph.session import Array, Session, copy_of
from lowbit.numerics.formats import FloatArray

_PART_NODES = 100
"""Nodes of a part, quantizers not counted: onnxruntime's time to open a graph grows faster than they do."""

_Values = dict[str, Array]
_Kind = tuple[frozenset[str], tuple[tuple[str, float], ...]]
"""The settings of a part in a choice: tensors in float, and factors of scales."""


@dataclasses.dataclass(frozen=True)
class Switching:
    """Tensors that are not quantized, and what the scales of others are multiplied by."""

    off: frozenset[str] = frozenset()
    factors: tuple[tuple[str, float], ...] = ()

    def __str__(self) -> str:
        return f"a choice with {len(self.off)} tensors in float"


@dataclasses.dataclass(frozen=True, slots=True)
class _Part:
    """A part: what it reads of earlier ones, what it gives, and what is read after it."""

    reads: tuple[str, ...]
    gives: tuple[str, ...]
    alive: frozenset[str]
    tensors: frozenset[str]


class SwitchedParts:
    """Runs one model on a few samples, with quantizers switched off."""

    def __init__(
        self,
        model: ir.Model,
        quantizers: Sequence[Quantizer],
        floats: Mapping[str, FloatArray],
        outputs: Sequence[str],
        samples: Sequence[ReferenceSample],
    ) -> None:
        """Cut the graph; ``floats`` are those of constants, by the names of their dequantized values."""
        self._graph = _CutGraph(model, quantizers, floats)
        self._parts = self._graph.parts(outputs)
        self._outputs, self._samples = outputs, samples

    def run_all(
        self, choices: Sequence[Switching], samples: Sequence[int]
    ) -> Iterator[list[tuple[Outputs, Outputs]]]:
        """Yield for each choice what is wanted of each sample, and what comes out."""
        pasts = [0] * len(choices)
        known = [[dict(self._samples[index].feed) for index in samples]]
        for part in self._parts:
            # Choices with the same past have the same values.
            asked = [(past, _kind_of(part, c)) for past, c in zip(pasts, choices, strict=True)]
            steps = {step: number for number, step in enumerate(dict.fromkeys(asked))}
            known = self._run(part, list(steps), known)
            pasts = [steps[step] for step in asked]
        for past in pasts:
            wanted = (self._samples[index].outputs for index in samples)
            found = ({name: values[name] for name in self._outputs} for values in known[past])
            yield list(zip(wanted, found, strict=True))

    def _run(
        self, part: _Part, steps: Sequence[tuple[int, _Kind]], known: Sequence[Sequence[_Values]]
    ) -> list[list[_Values]]:
        """Return the values after a part, of each past that it is run on in one of its kinds."""
        if not part.gives:
            return [[_kept(part, values) for values in known[past]] for past, _ in steps]
        found: dict[int, list[_Values]] = {}
        for kind in dict.fromkeys(kind for _, kind in steps):
            session: Session | None = None
            for number, (past, own) in enumerate(steps):
                if own != kind:
                    continue
                session = session or self._graph.session(part, kind, known[past][0])
                found[number] = [_after(part, session, values) for values in known[past]]
            if session is not None:
                session.close()
        return [found[number] for number in range(len(steps))]


def _kind_of(part: _Part, choice: Switching) -> _Kind:
    """Return what is special about a part in a choice."""
    factors = tuple(row for row in choice.factors if row[0] in part.tensors)
    return part.tensors & choice.off, factors


def _after(part: _Part, session: Session, values: _Values) -> _Values:
    """Return the values of a sample that are read after a part."""
    made = session.run(part.gives, {name: values[name] for name in part.reads})
    found = {name: copy_of(array) for name, array in zip(part.gives, made, strict=True)}
    return _kept(part, values | found)


def _kept(part: _Part, values: _Values) -> _Values:
    return {name: array for name, array in values.items() if name in part.alive}


class _CutGraph:
    """A graph in which values can be read before they are quantized, and constants in float."""

    def __init__(
        self,
        model: ir.Model,
        quantizers: Sequence[Quantizer],
        floats: Mapping[str, FloatArray],
    ) -> None:
        self._model, self._floats = model, floats
        self._order = {node: index for index, node in enumerate(model.graph)}
        self._values = ir.convenience.create_value_mapping(model.graph, include_subgraphs=False)
        self._fed = {tensor_name(value) for value in model.graph.inputs}
        self._varying = varying_values(model.graph, set(self._fed))
        self._quantizers = {q.tensor: q for q in quantizers}
        self._tensors = {name: q.tensor for q in quantizers for name in _results(q)}
        # Those of values that are computed: a part quantizes what it reads itself.
        pairs = {name for q in quantizers if q.kind == "activation" for name in q.nodes}
        self._repeated = {node for node in model.graph if node.name in pairs}

    def parts(self, outputs: Sequence[str]) -> list[_Part]:
        """Return the parts in order; the last only quantizes outputs, where they are."""
        own = [n for n in self._order if n not in self._repeated and self._is_varying(n)]
        wanted = [[tensor_name(v) for n in some for v in node_inputs(n)] for some in _runs(own)]
        found = [self._upstream(names) for names in (*wanted, outputs)]
        made_in = dict.fromkeys(self._fed, -1)
        for index, some in enumerate(_runs(own)):
            made_in |= {tensor_name(v): index for n in some for v in n.outputs if v.name}
        reads = [[n for n in roots if made_in[n] < i] for i, (roots, _) in enumerate(found)]
        last = {name: index for index, names in enumerate(reads) for name in names}
        alive: list[set[str]] = [set() for _ in found]
        gives: list[list[str]] = [[] for _ in found]
        for name, end in last.items():
            if made_in[name] >= 0:
                gives[made_in[name]].append(name)
            for index in range(max(0, made_in[name]), end):
                alive[index].add(name)
        gives[-1] = [name for name in outputs if name not in reads[-1]]
        alive[-1] = set(outputs)
        rows = zip(reads, gives, alive, found, strict=True)
        return [
            _Part(tuple(sorted(r)), tuple(g), frozenset(a), frozenset(tensors))
            for r, g, a, (_, tensors) in rows
        ]

    def _is_varying(self, node: ir.Node) -> bool:
        return any(value.name in self._varying for value in node.outputs)

    def _upstream(self, names: Iterable[str]) -> tuple[set[str], set[str]]:
        """Return the values that others are computed from by quantizing alone, and the tensors quantized."""
        roots, tensors, seen = set[str](), set[str](), set[str]()
        pending = list(names)
        while pending:
            name = pending.pop()
            if name in seen:
                continue
            seen.add(name)
            if name in self._tensors:
                tensors.add(self._tensors[name])
            producer = self._values[name].producer()
            if name in self._varying and producer not in self._repeated:
                roots.add(name)
            elif producer is not None:
                pending += [tensor_name(value) for value in node_inputs(producer)]
        return roots, tensors

    def session(self, part: _Part, kind: _Kind, given: Mapping[str, Array]) -> Session:
        """Open a part in one of its kinds; ``given`` are values of a sample, for their types."""
        renamed, changed = self._changes(kind)
        nodes, read = self._between(part, renamed)
        constants = {name: changed[name] for name in read if name in changed}
        plain = []
        for value in (self._values[name] for name in read if name not in changed):
            tensor = value.const_value
            if isinstance(tensor, (ir.Tensor, ir.LazyTensor, ir.TensorProtoTensor)):
                plain.append(value)
            elif tensor is not None:
                constants[tensor_name(value)] = tensor.numpy()
        graph = self._model.graph
        view = ir.GraphView(
            [self._values[name] for name in part.reads],
            [self._values[name] for name in part.gives],
            nodes=sorted(nodes, key=self._order.__getitem__),
            initializers=plain,
            opset_imports=graph.opset_imports,
            name=graph.name,
        )
        inputs = {name: given[name].dtype for name in part.reads}
        data = part_message(view, inputs, constants, self._model.ir_version, renamed)
        return Session(data, threads=1, optimize="none", name="a part of the model with switches")

    def _changes(self, kind: _Kind) -> tuple[dict[str, str], dict[str, Array]]:
        """Return what is read instead of values, and the constants among that."""
        off, factors = kind
        renamed: dict[str, str] = {}
        constants: dict[str, Array] = {}
        for quantizer in (self._quantizers[tensor] for tensor in sorted(off)):
            if quantizer.kind == "activation":
                renamed |= dict.fromkeys(quantizer.results, quantizer.source)
            elif quantizer.results[0] in self._floats:
                for name in (n for n in _results(quantizer) if n in self._floats):
                    renamed[name] = f"{name}/float"
                    constants[f"{name}/float"] = self._floats[name]
        for tensor, factor in factors:
            scale = self._scale(tensor)
            data = None if scale is None else constant(scale)
            if scale is not None and data is not None:
                renamed[tensor_name(scale)] = name = f"{tensor_name(scale)}/scaled"
                constants[name] = np.asarray(data * factor, data.dtype)
        return {name: _resolved(renamed, name) for name in renamed}, constants

    def _scale(self, tensor: str) -> ir.Value | None:
        """Return the scale of an activation."""
        quantizer = self._quantizers[tensor]
        node = self._values[quantizer.results[0]].producer()
        has_scale = quantizer.kind == "activation" and quantizer.scale is not None
        return None if node is None or not has_scale else node.inputs[1]

    def _between(self, part: _Part, renamed: Mapping[str, str]) -> tuple[set[ir.Node], list[str]]:
        """Return the nodes of a part and the constants that they read."""
        nodes, constants = set[ir.Node](), list[str]()
        seen, pending = set(part.reads), [renamed.get(name, name) for name in part.gives]
        while pending:
            name = pending.pop()
            if name in seen:
                continue
            seen.add(name)
            value = self._values.get(name)  # a changed constant is none of the graph's
            producer = None if value is None else value.producer()
            if producer is None:
                constants.append(name)
            elif producer not in nodes:
                nodes.add(producer)
                direct = {v for v in producer.inputs if v is not None}
                names = (tensor_name(v) for v in direct)
                pending += [renamed.get(name, name) for name in names]
                # What subgraphs read is read as it is.
                pending += [tensor_name(v) for v in node_inputs(producer) if v not in direct]
        return nodes, constants


def _results(quantizer: Quantizer) -> tuple[str, ...]:
    """Return the dequantized values of a quantizer, that of the bias of a weight among them."""
    if quantizer.kind == "activation":
        return quantizer.results
    return (quantizer.results[0], *(quantizer.bias or ())[:1])


def _resolved(renamed: Mapping[str, str], name: str) -> str:
    """Return what is read instead of a value, if that is itself read as another."""
    while name in renamed:
        name = renamed[name]
    return name


def _runs(nodes: Sequence[ir.Node]) -> Iterator[Sequence[ir.Node]]:
    for start in range(0, len(nodes), _PART_NODES):
        yield nodes[start : start + _PART_NODES]
