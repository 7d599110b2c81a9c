"""A quantized model in which every quantizer has a switch.

Each Q/DQ pair and each integer constant becomes an ``If``: quantized, or as in float. The switches
are inputs with a default, and so are the scales of activations and the float weights. One session
measures any quantizer alone, any left out, or any with other numbers, and computes only the branch
that is taken. Nothing is fused, so the arithmetic is exact.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from lowbit.analyze.quantizers import Quantizer
from lowbit.graph.editing import add_constant
from lowbit.graph.naming import tensor_name
from lowbit.numerics.formats import FloatArray


@dataclasses.dataclass(frozen=True, slots=True)
class Knobs:
    """What the inputs are called that change one quantizer.

    ``switch`` is false to compute in float, ``scale`` replaces an activation's scale, and ``plain``
    what a weight is in float; ``result`` is what the rest of the graph reads, and ``place`` the
    number of the first node concerned.
    """

    switch: str
    scale: str | None
    plain: str | None
    result: str
    place: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Switched:
    """The model, and the knobs of each quantized tensor."""

    model: ir.Model
    knobs: Mapping[str, Knobs]


def add_switches(
    model: ir.Model, quantizers: Sequence[Quantizer], floats: Mapping[str, FloatArray]
) -> Switched:
    """Return a copy of ``model`` with a switch for each quantizer.

    ``floats`` are the float values of constants, by the name of their dequantized value; a weight
    without one stays as it is and gets no switch.
    """
    writer = _Writer(model.clone(), floats)
    for index, quantizer in enumerate(quantizers):
        if quantizer.kind == "activation":
            writer.activation(quantizer, f"lowbit/{index}")
        elif quantizer.results[0] in floats:
            writer.weight(quantizer, f"lowbit/{index}")
    return writer.finish()


class _Writer:
    """Puts switches into one model, which it owns."""

    def __init__(self, model: ir.Model, floats: Mapping[str, FloatArray]) -> None:
        self._model = model
        self._graph = model.graph
        self._floats = floats
        self._values = ir.convenience.create_value_mapping(model.graph)
        self._nodes = {node.name: node for node in model.graph}
        self._knobs: dict[str, Knobs] = {}
        self._first: dict[str, ir.Node] = {}

    def activation(self, quantizer: Quantizer, prefix: str) -> None:
        """Let readers read the pair, or what it quantizes."""
        switch = self._input(f"{prefix}/switch", np.array(True))
        chain = [self._nodes[name] for name in quantizer.nodes[:2]]
        swaps: dict[ir.Value, ir.Value] = {}
        scale = chain[0].inputs[1] if quantizer.scale is not None else None
        if scale is not None and scale.const_value is not None:
            swaps[scale] = self._input(f"{prefix}/scale", scale.const_value.numpy())
        plain = ir.node("Identity", [chain[0].inputs[0]], name=f"{prefix}/plain")
        plain.outputs[0].name = f"{prefix}/plain/out"
        results = [self._values[name] for name in quantizer.results]
        choice = self._choose(switch, _copies(chain, swaps, prefix), [plain], results, prefix)
        self._graph.insert_before(chain[0], choice)
        knob = f"{prefix}/scale" if swaps else None
        knobs = Knobs(f"{prefix}/switch", knob, None, tensor_name(choice.outputs[0]))
        self._remember(quantizer.tensor, knobs, choice)

    def weight(self, quantizer: Quantizer, prefix: str) -> None:
        """Let readers read the integers, or the float weight; the same for its bias."""
        switch = self._input(f"{prefix}/switch", np.array(True))
        parts = [quantizer.results[0], *(quantizer.bias or ())[:1]]
        for number, part in enumerate(name for name in parts if name in self._floats):
            value = self._values[part]
            producer, readers = value.producer(), tuple(value.consumers())
            if producer is None or not readers:
                continue
            name = f"{prefix}/{number}"
            source = self._input(f"{name}/float", self._floats[part])
            plain = ir.node("Identity", [source], name=f"{name}/plain")
            plain.outputs[0].name = f"{name}/plain/out"
            quantized = _copies([producer], {}, name)
            choice = self._choose(switch, quantized, [plain], [value], name)
            # Beside its reader, not among the constants at the start: a cut in between is cheap.
            self._graph.insert_before(readers[0], choice)
            if number == 0:
                result = tensor_name(choice.outputs[0])
                knobs = Knobs(f"{prefix}/switch", None, f"{name}/float", result)
                self._remember(quantizer.tensor, knobs, choice)

    def finish(self) -> Switched:
        """Drop what is no longer read and return the result."""
        for node in reversed(tuple(self._graph)):
            if not any(v.uses() or v.is_graph_output() for v in node.outputs):
                self._graph.remove(node, safe=True)
        for name, value in tuple(self._graph.initializers.items()):
            if not (value.uses() or value.is_graph_output() or value.is_graph_input()):
                del self._graph.initializers[name]
        order = {node: index for index, node in enumerate(self._graph)}
        return Switched(
            self._model,
            {
                name: dataclasses.replace(knobs, place=order[self._first[name]])
                for name, knobs in self._knobs.items()
            },
        )

    def _remember(self, tensor: str, knobs: Knobs, first: ir.Node) -> None:
        self._knobs[tensor], self._first[tensor] = knobs, first

    def _input(self, name: str, data: NDArray[np.generic]) -> ir.Value:
        """Add a constant that a feed may replace."""
        value = add_constant(self._graph, name, np.asarray(data))
        self._graph.inputs.append(value)
        return value

    @staticmethod
    def _choose(
        switch: ir.Value,
        quantized: Sequence[ir.Node],
        plain: Sequence[ir.Node],
        results: Iterable[ir.Value],
        name: str,
    ) -> ir.Node:
        """Return an ``If`` that readers of the results now read."""
        results = list(results)
        branches = {
            "then_branch": ir.Graph([], [quantized[-1].outputs[0]], nodes=quantized, name="then"),
            "else_branch": ir.Graph([], [plain[-1].outputs[0]], nodes=plain, name="else"),
        }
        choice = ir.node("If", [switch], branches, name=f"{name}/if")
        out = choice.outputs[0]
        out.name, out.type, out.shape = f"{name}/out", results[0].type, results[0].shape
        for result in results:
            is_output = result.is_graph_output()
            ir.convenience.replace_all_uses_with(result, out, replace_graph_outputs=True)
            if is_output:
                kept = tensor_name(result)
                result.name, out.name = f"{name}/was", kept
        return choice


def _copies(
    chain: Sequence[ir.Node], swaps: Mapping[ir.Value, ir.Value], name: str
) -> list[ir.Node]:
    """Return the nodes once more, reading other values where ``swaps`` says so."""
    known, copies = dict(swaps), []
    for step, node in enumerate(chain):
        inputs = [known.get(v, v) if v is not None else None for v in node.inputs]
        copy = ir.node(
            node.op_type, inputs, dict(node.attributes), domain=node.domain, name=f"{name}/{step}"
        )
        copy.outputs[0].name = f"{name}/{step}/out"
        known[node.outputs[0]] = copy.outputs[0]
        copies.append(copy)
    return copies
