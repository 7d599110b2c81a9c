"""Format boundaries: some nodes read a tensor under a second name, in a format of their own.

An Identity stands between the two names until the model is emitted, where the requantization pair
follows the first pair.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from lowbit.config.specs import Requantization
from lowbit.errors import PlanError, did_you_mean
from lowbit.graph.editing import REQUANTIZED


def insert_requantization(model: ir.Model, rows: Sequence[Requantization]) -> ir.Model:
    """Return the model in which the consumers of each row read its tensor under the new name."""
    if not rows:
        return model
    model = model.clone()
    graph = model.graph
    values = ir.convenience.create_value_mapping(graph)
    for row in rows:
        value = values.get(row.tensor)
        if value is None:
            near = did_you_mean(row.tensor, values)
            raise PlanError(f"no tensor is called {row.tensor!r}, to be requantized{near}")
        node = ir.node("Identity", [value], name=row.name)
        node.meta[REQUANTIZED] = True
        again = node.outputs[0]
        again.name, again.type, again.shape = row.name, value.type, value.shape
        if row.before:
            value.name, again.name = row.name, row.tensor
            graph.outputs[:] = [again if output is value else output for output in graph.outputs]
        uses = [use for use in value.uses() if use.node.name in row.consumers]
        producer = value.producer()
        if producer is None:
            graph.insert_before(graph[0], node)
        else:
            graph.insert_after(producer, node)
        for consumer, index in uses:
            consumer.replace_input_with(index, again)
    return model
