"""Sensitivity: variants of a quantized model in which single quantizers are switched off or on.

Each Q/DQ pair and each integer constant becomes an ``If``: quantized, or as in float. The switches
are inputs with a default, and so are the scales of activations and the float weights. One session
measures any quantizer alone, any in float, or any with other numbers, and computes only the branch
that is taken. Nothing is fused, so the arithmetic is exact.

A change to one quantizer leaves everything before it as it was. The values that the tails of the
switched model read are computed once for each sample, with everything quantized and with everything
in float, and a variant runs the shortest tail that holds its change.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from lowbit.analyze.quantizers import Quantizer
from lowbit.evaluate.outputs import OutputSlice, SliceErrors
from lowbit.evaluate.runner import Outputs, ReferenceSample
from lowbit.graph.editing import add_constant, bypass, drop_unused, take_over
from lowbit.graph.naming import tensor_name
from lowbit.graph.session import Array, copy_of
from lowbit.graph.sharing import Sharing, sharing_of
from lowbit.graph.submodels import Tail, open_tails
from lowbit.numerics.formats import FloatArray
from lowbit.parallel import ordered_map


@dataclasses.dataclass(frozen=True, slots=True)
class Switch:
    """The names of the inputs that change one quantizer.

    ``name`` is false to compute in float, ``scale`` replaces an activation's scale, and
    ``float_value`` what a weight is in float; ``result`` is what the rest of the graph reads, and
    ``first_node`` the number of the first node concerned.
    """

    name: str
    scale: str | None
    float_value: str | None
    result: str
    first_node: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Switched:
    """The model, and the switch of each quantized tensor."""

    model: ir.Model
    switches: Mapping[str, Switch]


def add_switches(
    model: ir.Model, quantizers: Sequence[Quantizer], floats: Mapping[str, FloatArray]
) -> Switched:
    """Return a copy of ``model`` with a switch for each quantizer.

    ``floats`` are the float values of constants, by the name of their dequantized value; a weight
    without one stays as it is and gets no switch.
    """
    editor = _SwitchEditor(model.clone(), floats)
    for index, quantizer in enumerate(quantizers):
        if quantizer.kind == "activation":
            editor.activation(quantizer, f"lowbit/{index}")
        elif quantizer.results[0] in floats:
            editor.weight(quantizer, f"lowbit/{index}")
    return editor.finish()


class _SwitchEditor:
    """Puts switches into one model, which it owns."""

    def __init__(self, model: ir.Model, floats: Mapping[str, FloatArray]) -> None:
        self._model = model
        self._graph = model.graph
        self._floats = floats
        self._values = ir.convenience.create_value_mapping(model.graph)
        self._nodes = {node.name: node for node in model.graph}
        self._switches: dict[str, Switch] = {}
        self._first: dict[str, ir.Node] = {}

    def activation(self, quantizer: Quantizer, prefix: str) -> None:
        """Switch an activation: its consumers read the Q/DQ pair, or the pair's input."""
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
        scale_name = f"{prefix}/scale" if swaps else None
        result = tensor_name(choice.outputs[0])
        found = Switch(f"{prefix}/switch", scale_name, None, result)
        self._remember(quantizer.tensor, found, choice)

    def weight(self, quantizer: Quantizer, prefix: str) -> None:
        """Switch a weight and its bias: consumers read the dequantized integers, or the float values."""
        switch = self._input(f"{prefix}/switch", np.array(True))
        parts = [quantizer.results[0], *(quantizer.bias or ())[:1]]
        for number, part in enumerate(name for name in parts if name in self._floats):
            value = self._values[part]
            producer, consumers = value.producer(), tuple(value.consumers())
            if producer is None or not consumers:
                continue
            name = f"{prefix}/{number}"
            source = self._input(f"{name}/float", self._floats[part])
            plain = ir.node("Identity", [source], name=f"{name}/plain")
            plain.outputs[0].name = f"{name}/plain/out"
            quantized = _copies([producer], {}, name)
            choice = self._choose(switch, quantized, [plain], [value], name)
            # Next to its consumer, not among the constants at the start: a cut in between is cheap.
            self._graph.insert_before(consumers[0], choice)
            if number == 0:
                result = tensor_name(choice.outputs[0])
                found = Switch(f"{prefix}/switch", None, f"{name}/float", result)
                self._remember(quantizer.tensor, found, choice)

    def finish(self) -> Switched:
        """Drop what is no longer read and return the result."""
        drop_unused(self._graph)
        order = {node: index for index, node in enumerate(self._graph)}
        return Switched(
            self._model,
            {
                name: dataclasses.replace(switch, first_node=order[self._first[name]])
                for name, switch in self._switches.items()
            },
        )

    def _remember(self, tensor: str, switch: Switch, first: ir.Node) -> None:
        self._switches[tensor], self._first[tensor] = switch, first

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
        """Return an ``If`` that the consumers of all results now read."""
        first, *others = results
        branches = {
            "then_branch": ir.Graph([], [quantized[-1].outputs[0]], nodes=quantized, name="then"),
            "else_branch": ir.Graph([], [plain[-1].outputs[0]], nodes=plain, name="else"),
        }
        choice = ir.node("If", [switch], branches, name=f"{name}/if")
        take_over(first, choice.outputs[0])
        for other in others:
            bypass(choice.outputs[0], other)
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


Base = Literal["float", "quantized"]
Listener = Callable[[Outputs, Outputs], None]
"""A callback with the values of a sample, all in float and all quantized."""

_BASES: tuple[Base, ...] = ("float", "quantized")
_TAILS = 4
_LARGE_PASSES = 4
"""All values of a large image take a gigabyte: they are looked at in several passes."""


@dataclasses.dataclass(frozen=True, slots=True)
class Variant:
    """The difference from a base: the inputs to set, and the number of the first node concerned."""

    base: Base
    changes: Mapping[str, Array]
    first_node: int


@dataclasses.dataclass(frozen=True, slots=True)
class _Kept:
    """Values that the tails read, their outputs by base, and the float outputs."""

    values: Mapping[Base, Outputs]
    want: Outputs


class VariantRunner:
    """Measures how far variants are from the float reference, on a few samples."""

    def __init__(
        self,
        model: ir.Model,
        tails: Sequence[Tail],
        switches: Sequence[str],
        slices: Sequence[OutputSlice],
    ) -> None:
        self._model, self._tails = model, tails
        self._off = {name: np.array(False) for name in switches}
        self._slices = slices
        self._outputs = list(dict.fromkeys(part.output for part in slices))
        self._samples: list[_Kept] = []
        self._at_once = 1

    def load(self, samples: Sequence[ReferenceSample], listener: Listener) -> None:
        """Run both bases on the samples, report all values, and keep the inputs of the tails."""
        whole = self._tails[0]
        kept = {name for tail in self._tails for name in tail.inputs} | set(self._outputs)
        sharing = sharing_of(samples[0].feed if samples else None, self._model)
        self._at_once = sharing.samples
        for sample in samples:
            read: dict[Base, dict[str, Array]] = {
                base: {k: v for k, v in sample.feed.items() if k in kept} for base in _BASES
            }
            known: Outputs = sample.feed
            for names in _seen_at_once(whole.session.outputs, sharing):
                values: dict[Base, Outputs] = {}
                for base in _BASES:
                    feed = {**sample.feed, **(self._off if base == "float" else {})}
                    arrays = dict(zip(names, whole.session.run(names, feed), strict=True))
                    values[base] = {**known, **arrays}
                    read[base] |= {k: copy_of(v) for k, v in arrays.items() if k in kept}
                listener(values["float"], values["quantized"])
                known = {}
            self._samples.append(_Kept(read, sample.outputs))

    def noise(self, variants: Sequence[Variant], samples: int) -> list[float]:
        """Return the noise of each variant as a share of the signal, over the first samples."""
        chosen = self._samples[:samples]
        jobs = ((variant, kept) for variant in variants for kept in chosen)
        results = ordered_map(lambda job: self._run(*job), jobs, self._at_once)
        totals = []
        for _ in variants:
            errors = SliceErrors(self._slices)
            for kept in chosen:
                errors.add(kept.want, next(results))
            totals.append(errors.noise)
        return totals

    def noise_of(self, base: Base, samples: int) -> float:
        """Return the noise of a base over the first samples."""
        errors = SliceErrors(self._slices)
        for kept in self._samples[:samples]:
            errors.add(kept.want, kept.values[base])
        return errors.noise

    def share(self, first_node: int) -> float:
        """Return which share of the model runs for a change at a node."""
        return self._tail(first_node).share

    def _tail(self, first_node: int) -> Tail:
        return [tail for tail in self._tails if tail.start <= first_node][-1]

    def _run(self, variant: Variant, kept: _Kept) -> dict[str, Array]:
        tail = self._tail(variant.first_node)
        values = kept.values[variant.base]
        feed = {name: values[name] for name in tail.inputs}
        settings = {**(self._off if variant.base == "float" else {}), **variant.changes}
        feed |= {name: value for name, value in settings.items() if name in tail.defaults}
        return dict(zip(self._outputs, tail.session.run(self._outputs, feed), strict=True))


def _seen_at_once(names: Sequence[str], sharing: Sharing) -> Iterator[Sequence[str]]:
    """Yield values that are looked at in one pass: all, or a few of a large sample."""
    count = _LARGE_PASSES if sharing.one_by_one else 1
    size = max(1, -(-len(names) // count))
    return (names[start : start + size] for start in range(0, len(names), size))


@contextlib.contextmanager
def open_variant_runner(
    switched: Switched, slices: Sequence[OutputSlice], observed: Sequence[str]
) -> Iterator[VariantRunner]:
    """Yield a runner without samples; its sessions end with it."""
    switches = [switch.name for switch in switched.switches.values()]
    with open_tails(switched.model, _TAILS, observed, "the model with switches") as tails:
        yield VariantRunner(switched.model, tails, switches, slices)
