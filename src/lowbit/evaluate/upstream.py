"""Find where error arises: the SQNR of a tensor against that of the tensors it is computed from."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import onnx_ir as ir

from lowbit.graph.editing import node_inputs
from lowbit.graph.naming import tensor_name

Wiring: TypeAlias = tuple[Sequence[str], Sequence[str]]
"""The tensors that a node reads, and those that it writes."""


def wiring(graph: ir.Graph, names: Mapping[str, str] | None = None) -> Iterable[Wiring]:
    """Yield what each node reads and writes, by other ``names`` where there are some."""
    names = names or {}
    for node in graph:
        pairs = (node_inputs(node), node.outputs)
        read, written = ([tensor_name(v) for v in values] for values in pairs)
        yield [names.get(n, n) for n in read], [names.get(n, n) for n in written]


def ratios_upstream(nodes: Iterable[Wiring], ratios: Mapping[str, float]) -> dict[str, float]:
    """Return for each measured tensor the lowest SQNR of those measured nearest before it.

    What nothing was measured before is computed from exact values.
    """
    upstream = dict.fromkeys(ratios, math.inf)
    reached: dict[str, float] = {}
    for read, written in nodes:
        lowest = min((reached.get(n, ratios.get(n, math.inf)) for n in read), default=math.inf)
        for name in written:
            if name in read:  # quantized and dequantized: still the same tensor
                continue
            if name in ratios:
                upstream[name] = lowest
            reached[name] = ratios.get(name, lowest)
    return upstream
