"""Explain in a sentence what a plan leaves in float, for models of which nothing, or too little, is quantized."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import onnx_ir as ir

from lowbit.graph.nesting import subgraphs
from lowbit.ops.families import READ_SHAPES
from lowbit.ops.linear import LINEAR, has_constant_weight, linear_operator

_MOST = 4


def why_nothing(model: ir.Model, whys: Iterable[str]) -> str:
    """Return what was found in a model of which nothing would be quantized, and why its nodes stay."""
    found = _counted(node.op_type for node in model.graph)
    parts = [f"nothing would be quantized. The model has {found or 'no nodes'}"]
    if hidden := layers_in_subgraphs(model):
        parts.append(hidden)
    elif not any(linear_operator(node) is not None for node in model.graph):
        parts.append(f"it has no linear layer ({', '.join(LINEAR)}), so there is nothing to gain")
    elif not any(has_constant_weight(node) for node in model.graph):
        parts.append("none of its linear layers has constant weights")
    if reasons := _counted(whys):
        parts.append(f"nodes stay in float because: {reasons}")
    return "; ".join(parts) + ". `lowbit plan --all` lists the reason for each"


def layers_in_subgraphs(model: ir.Model) -> str:
    """Return which linear layers stay in float inside If, Loop and Scan, in a sentence, or nothing."""
    outer: Counter[str] = Counter()
    for node in model.graph:
        inner = [
            each
            for part in subgraphs(node)
            for each in ir.traversal.RecursiveGraphIterator(part)
            if linear_operator(each) is not None
        ]
        if inner:
            outer[node.op_type] += len(inner)
    if not outer:
        return ""
    text = " and ".join(f"{count} linear layers inside {name}" for name, count in outer.items())
    names = " ".join(f"--fix-input {name}=VALUE" for name in _choosing_inputs(model))
    way_out = f"; an input chooses the branch: fix it ({names})" if names else ""
    return f"{text} stay in float{way_out}"


def _choosing_inputs(model: ir.Model) -> list[str]:
    """Return the inputs by whose numbers the top-level branches are chosen."""
    stack = [n.inputs[0] for n in model.graph if n.op_type == "If" and n.domain == ""]
    seen: set[ir.Value] = set()
    while stack:
        value = stack.pop()
        if value is None or value in seen:
            continue
        seen.add(value)
        producer = value.producer()
        # The shape of an input is no number of it.
        if producer is not None and producer.op_type not in READ_SHAPES:
            stack += producer.inputs
    return [str(v.name) for v in model.graph.inputs if v in seen and not v.is_initializer()]


def _counted(words: Iterable[str]) -> str:
    counts = Counter(words).most_common()
    text = ", ".join(f"{word} ({count})" for word, count in counts[:_MOST])
    return text + (f" and {len(counts) - _MOST} more kinds" if len(counts) > _MOST else "")
