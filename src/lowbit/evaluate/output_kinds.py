"""Classify the outputs of a model, and choose the tensor at which each is measured.

A number in decibels says little about labels, and a saturated softmax hides what happens before it.
Structure tells most: a Softmax makes classes, a Sigmoid scores, a suppression ends what can be compared
position by position. Where it does not, the float model's values on a sample do.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, TypeAlias

import numpy as np
import onnx_ir as ir

from lowbit.evaluate.detections import find_scores, split_scores, weighted
from lowbit.evaluate.outputs import OutputSlice, find_slices
from lowbit.evaluate.random_outputs import before_noise, is_drawn
from lowbit.graph.editing import node_inputs
from lowbit.graph.naming import is_cache_name, operator_name, tensor_name
from lowbit.graph.session import Array
from lowbit.numerics.metrics import softmax
from lowbit.ops.families import ATTENTION, LAYOUT, PROBABILITIES, SELECT, SOFTMAXES
from lowbit.ops.linear import linear_operator

Kind: TypeAlias = Literal["classes", "labels", "embedding", "scores", "values"]

_EMBEDDING = re.compile(r"embed|feature|hidden|pool|vector|latent", re.IGNORECASE)
_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)
_FEW_LABELS = 16
_LEAST_EMBEDDING = 32
_PEAKED = 0.1
_NEAR_ZERO, _NEAR_ZERO_SHARE = 0.05, 0.01


@dataclasses.dataclass(frozen=True, slots=True)
class MeasuredOutput:
    """One comparison with the float model: which tensor, and by which figure.

    Attributes:
        part: The tensor, or a run of its channels.
        kind: What its numbers are.
        output: The output of the model that it stands for.
        axis: Where the classes lie.
        logits: Whether the values are before their softmax or sigmoid.
        scores: What says where the values are read, if they are those of detections.
        step: What is not computed yet where the values are before their output.
    """

    part: OutputSlice
    kind: Kind
    output: str
    axis: int = -1
    logits: bool = False
    scores: OutputSlice | None = None
    step: Literal["selection", "rounding", "noise"] = "selection"

    def of(self, array: Array, float_outputs: Mapping[str, Array]) -> Array:
        """Return what is compared of its tensor's value in either model."""
        part = self.part.of(array)
        if self.scores is None or self.scores.output not in float_outputs:
            return part
        return weighted(part, self.scores.of(float_outputs[self.scores.output]))

    @property
    def tensor(self) -> str:
        """The tensor that is compared."""
        return self.part.output

    @property
    def name(self) -> str:
        """The name for reports: the output, with the run of channels if it is one."""
        if self.tensor == self.output:
            where = "" if self.scores is None else f" (weighted by {self.scores.name})"
            return f"{self.part.name}{where}"
        return f"{self.output} (before its {'activation' if self.logits else self.step})"


def measured_tensors(model: ir.Model) -> list[str]:
    """Return the tensors whose values are needed: outputs, and what stands before some of them."""
    found = [tensor_name(value) for value in model.graph.outputs]
    for value in model.graph.outputs:
        found += [tensor_name(v) for v in _before(value)]
    return list(dict.fromkeys(found))


@dataclasses.dataclass(frozen=True, slots=True)
class SeenValues:
    """The values of each tensor in some samples.

    Attributes:
        strongest: The value with the largest number: one where something is seen.
        open_axes: The axes whose sizes differ between samples: these hold positions, never channels.
    """

    strongest: Mapping[str, Array]
    open_axes: Mapping[str, frozenset[int]]


def seen_in(samples: Iterable[Mapping[str, Array]]) -> SeenValues:
    """Return what samples show of each tensor, in one pass over them."""
    found: dict[str, Array] = {}
    open_axes: dict[str, frozenset[int]] = {}
    for outputs in samples:
        for name, array in outputs.items():
            best = found.setdefault(name, array)
            if isinstance(array, np.ndarray) and isinstance(best, np.ndarray):
                open_axes[name] = open_axes.get(name, frozenset()) | _axes_that_differ(array, best)
            if _largest(array) > _largest(best):
                found[name] = array
    return SeenValues(found, open_axes)


def _axes_that_differ(a: Array, b: Array) -> frozenset[int]:
    return frozenset(
        i for i, sizes in enumerate(zip(a.shape, b.shape, strict=False)) if len(set(sizes)) > 1
    )


def _largest(array: Array) -> float:
    known = isinstance(array, np.ndarray) and array.dtype.kind in "fiu" and array.size
    return float(array.max()) if known else -math.inf


def find_measured(
    model: ir.Model, seen: SeenValues, known: Mapping[str, str]
) -> tuple[MeasuredOutput, ...]:
    """Return what to compare, from what samples show of the float model.

    ``known`` are the tensors that the quantized model has too.
    """
    values = seen.strongest
    found: list[MeasuredOutput] = []
    for output in _telling_outputs(model):
        name = tensor_name(output)
        if isinstance(values.get(name), np.ndarray):
            found += _measured(output, name, seen, known)
        else:
            found += _of_sequence(name, values)
    return tuple(_where_read(list(dict.fromkeys(found)), values))


def _where_read(
    rows: list[MeasuredOutput], values: Mapping[str, Array]
) -> Iterator[MeasuredOutput]:
    """Yield them with the scores that say where they are read."""
    plain = [row for row in rows if row.kind in ("scores", "values") and not row.logits]
    arrays = {row.part: row.part.of(values[row.tensor]) for row in plain}
    for row in rows:
        scores = find_scores(row.part, arrays) if row.part in arrays else None
        yield row if scores is None else dataclasses.replace(row, scores=scores)


def _telling_outputs(model: ir.Model) -> list[ir.Value]:
    """Return the outputs without caches of keys and values: what they lose shows in what is made of them."""
    has_caches = any(is_cache_name(str(value.name)) for value in model.graph.inputs)
    outputs = list(model.graph.outputs)
    found = [v for v in outputs if not (has_caches and is_cache_name(tensor_name(v)))]
    return found or outputs


def _of_sequence(name: str, values: Mapping[str, Array]) -> list[MeasuredOutput]:
    """Return the measures of the arrays of a sequence, which are called ``name[0 of 2]`` and so on."""
    parts = {n: array for n, array in values.items() if n.startswith(f"{name}[") and array.size}
    return [
        _as_values(OutputSlice(part), array, part)
        if array.dtype.kind == "f"
        else MeasuredOutput(OutputSlice(part), "labels", part)
        for part, array in parts.items()
        if array.dtype.kind in "fiub"
    ]


def _measured(
    output: ir.Value, name: str, seen: SeenValues, known: Mapping[str, str]
) -> list[MeasuredOutput]:
    values, open_axes = seen.strongest, seen.open_axes.get(name, frozenset())
    array = values[name]
    if is_drawn(output):
        rows = [
            _as_values(OutputSlice(n), values[n], name)
            for n in map(tensor_name, before_noise(output))
            if n in known and n in values and values[n].dtype.kind == "f" and values[n].size
        ]
        return [dataclasses.replace(row, step="noise") for row in rows]
    selected = [tensor_name(v) for v in _selected(output)]
    # Of a mask, which is no float, nothing but the output tells.
    if rows := [
        _as_values(OutputSlice(n), values[n], name)
        for n in selected
        if n in values and n in known and values[n].dtype.kind == "f"
    ]:
        return rows
    if array.dtype.kind in "iub":
        plain = _rounded(output)
        inner = values.get(tensor_name(plain)) if plain is not None else None
        if (
            plain is not None
            and inner is not None
            and tensor_name(plain) in known
            and inner.dtype.kind == "f"
        ):
            row = _as_values(OutputSlice(tensor_name(plain)), inner, name)
            return [dataclasses.replace(row, step="rounding")]
        return [MeasuredOutput(OutputSlice(name), "labels", name)] if array.size else []
    if array.dtype.kind != "f" or not array.size:
        return []
    activation = _activation(output)
    if activation is not None:
        found = _activated(activation, name, array, values, known)
        if found is not None:
            return [found]
    if activation is None and (found := _bare(output, name, array, open_axes)) is not None:
        return [found]
    slices = [
        s
        for part in find_slices({name: array}, {name: open_axes})
        for s in split_scores(part, array)
    ]
    return [_as_values(part, part.of(array), name) for part in slices]


def is_near_zero(largest: float, largest_of_all: float) -> bool:
    """Whether channels with this largest value are negligible next to those of the whole tensor."""
    return largest < min(_NEAR_ZERO, _NEAR_ZERO_SHARE * largest_of_all)


def _activated(
    node: ir.Node,
    name: str,
    array: Array,
    values: Mapping[str, Array],
    known: Mapping[str, str],
) -> MeasuredOutput | None:
    """Return the measure of an output of a softmax, or of a few sigmoids: before it if possible."""
    before = tensor_name(node.inputs[0]) if node.inputs[0] is not None else ""
    inner = values.get(before)
    has = before in known and inner is not None and inner.dtype.kind == "f"
    if node.op_type in SOFTMAXES:
        axis = node.attributes.get_int("axis", -1)
        if has and inner is not None:
            return MeasuredOutput(OutputSlice(before), "classes", name, axis, logits=True)
        return MeasuredOutput(OutputSlice(name), "classes", name, -1)
    few = array.ndim <= 2 and array.shape[-1] <= _FEW_LABELS
    if few and has:
        return MeasuredOutput(OutputSlice(before), "labels", name, logits=True)
    dead = float(array.max()) < _PEAKED
    if dead and has:
        return MeasuredOutput(OutputSlice(before), "values", name, logits=True)
    return None


def _bare(
    output: ir.Value, name: str, array: Array, open_axes: frozenset[int]
) -> MeasuredOutput | None:
    """Return the measure of rows that look like logits, probabilities or an embedding."""
    whole = find_slices({name: array}, {name: open_axes})[0].axis is None
    rows = array.ndim == 2 or (array.ndim == 3 and whole)
    if not rows or array.shape[-1] < 2 or array.ndim - 1 in open_axes:
        return None
    part = OutputSlice(name)
    # A spectrogram is called features, too, and its size matters.
    is_vector = array.ndim == 2 or array.shape[:2] == (1, 1)
    if _EMBEDDING.search(name) and (is_vector or _follows_attention(output)):
        return MeasuredOutput(part, "embedding", name)
    flat = array.reshape(-1, array.shape[-1]).astype(np.float64)
    total = flat.sum(axis=-1)
    if flat.min() >= 0 and np.allclose(total, 1, atol=1e-3):
        return MeasuredOutput(part, "classes", name)
    best = float(softmax(flat).max(axis=-1).mean())
    if best > max(_PEAKED, 4 / array.shape[-1]) and (array.ndim == 2 or _is_wide(array)):
        return MeasuredOutput(part, "classes", name, logits=True)
    # A few numbers are a regression: their size matters, not only their direction.
    is_embedding = array.ndim == 2 and array.shape[-1] >= _LEAST_EMBEDDING
    return MeasuredOutput(part, "embedding", name) if is_embedding else None


def _follows_attention(output: ir.Value) -> bool:
    """Whether a transformer computes an output: its rows are embeddings of tokens."""
    seen: set[ir.Node] = set()
    stack: list[ir.Value | None] = [output]
    while stack:
        value = stack.pop()
        node = value.producer() if value is not None else None
        if node is None or node in seen:
            continue
        if node.op_type in SOFTMAXES or operator_name(node) in ATTENTION:
            return True
        seen.add(node)
        stack += node_inputs(node)
    return False


def _is_wide(array: Array) -> bool:
    """Whether the last axis of a sequence can hold a vocabulary."""
    return bool(array.shape[-1] >= 256)


def _as_values(part: OutputSlice, array: Array, output: str) -> MeasuredOutput:
    kind: Kind = "values"
    if array.size and float(array.min()) >= 0 and float(array.max()) <= 1:
        kind = "scores"
    return MeasuredOutput(part, kind, output)


def _activation(output: ir.Value) -> ir.Node | None:
    """Return the softmax or sigmoid that makes an output, with nothing but movement after it."""
    value: ir.Value | None = output
    while value is not None and (node := value.producer()) is not None and node.domain == "":
        if node.op_type in PROBABILITIES:
            return node
        if node.op_type not in LAYOUT:
            return None
        value = node.inputs[0]
    return None


def _rounded(output: ir.Value) -> ir.Value | None:
    """Return the floats of which an output is the integers, such as those of an image of 8 bits.

    One off is little there, and as wrong as any other number by the agreement of labels.
    """
    value: ir.Value | None = output
    while value is not None and (node := value.producer()) is not None and node.domain == "":
        value = node.inputs[0]
        if value is None or node.op_type not in LAYOUT:
            return None
        if node.op_type == "Cast" and (value.dtype is None or value.dtype in _FLOATS):
            return value
    return None


def _selected(output: ir.Value) -> list[ir.Value]:
    """Return the float values among which an output is a selection, if it is one."""
    seen: set[ir.Node] = set()
    stack = [output]
    found: dict[ir.Value, None] = {}
    while stack and len(seen) < 64:
        node = stack.pop().producer()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.op_type in SELECT:
            found |= dict.fromkeys(v for v in node.inputs[:2] if v is not None and v.producer())
            continue
        if _ends_by_data(node):
            read = [(v, v.producer()) for v in node_inputs(node)]
            found |= {v: None for v, by in read if by is not None and by.op_type != "Constant"}
            continue
        if linear_operator(node) is not None:
            continue  # what a layer computes of a selection, such as that of experts, is none
        stack += [v for v in node.inputs if v is not None]
    return [v for v in found if v.dtype is None or v.dtype in _FLOATS]


def _ends_by_data(node: ir.Node) -> bool:
    """Whether a loop computes when to end: a decoder, of which one other token changes all that follow."""
    if node.op_type != "Loop":
        return False
    body = node.attributes["body"].as_graph()
    goes_on: ir.Value | None = body.outputs[0]
    while goes_on is not None and (last := goes_on.producer()) is not None:
        if last.op_type not in LAYOUT:
            return last.op_type != "Constant"
        goes_on = last.inputs[0]
    return False


def _before(output: ir.Value) -> list[ir.Value]:
    if is_drawn(output):
        return before_noise(output)
    node = _activation(output)
    inner = [] if node is None or node.inputs[0] is None else [node.inputs[0]]
    rounded = _rounded(output)
    return [*inner, *_selected(output), *([] if rounded is None else [rounded])]
