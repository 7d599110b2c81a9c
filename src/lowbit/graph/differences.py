"""Find what two models compute alike, so that only the rest of one need be run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from lowbit.graph.editing import node_inputs
from lowbit.graph.naming import tensor_name
from lowbit.graph.session import Array, Feed
from lowbit.graph.submodels import Extractor


def frontier(base: ir.Model, other: ir.Model, outputs: Sequence[str]) -> list[str]:
    """Return the values of ``other`` that are as in ``base``, and from which its outputs follow.

    Values are known by their names, and alike if the same node makes them of values that are.
    """
    made = {tensor_name(v): node for node in base.graph for v in node.outputs}
    constants = base.graph.initializers
    fed = {tensor_name(value) for value in base.graph.inputs}
    alike: dict[ir.Value, bool] = {}

    def is_alike(value: ir.Value) -> bool:
        if value not in alike:
            name = tensor_name(value)
            if value.is_initializer():
                alike[value] = _equal(constants.get(name), value)
            else:
                alike[value] = value.is_graph_input() and name in fed
        return alike[value]

    for node in other.graph:
        same = _same_node(made.get(tensor_name(node.outputs[0])), node)
        same = same and all(is_alike(value) for value in node_inputs(node))
        alike.update(dict.fromkeys(node.outputs, same))
    return _cut(other, outputs, alike)


def _cut(other: ir.Model, outputs: Sequence[str], alike: Mapping[ir.Value, bool]) -> list[str]:
    values = ir.convenience.create_value_mapping(other.graph, include_subgraphs=False)
    found: dict[str, None] = {}
    seen: set[ir.Value] = set()
    waiting = [values[name] for name in outputs]
    while waiting:
        value = waiting.pop()
        producer = value.producer()
        if value in seen or value.is_initializer():
            continue
        seen.add(value)
        if producer is None or alike[value]:
            found[tensor_name(value)] = None
        else:
            waiting += node_inputs(producer)
    return list(found)


def _same_node(mine: ir.Node | None, other: ir.Node) -> bool:
    if mine is None or (mine.op_type, mine.domain) != (other.op_type, other.domain):
        return False
    names = ([v.name if v else None for v in (*n.inputs, *n.outputs)] for n in (mine, other))
    if next(names) != next(names) or mine.attributes.keys() != other.attributes.keys():
        return False
    # Parts with graphs of their own are not looked into.
    return all(
        attribute.type not in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
        and _same_attribute(mine.attributes[name], attribute)
        for name, attribute in other.attributes.items()
    )


def _same_attribute(mine: Any, other: Any) -> bool:
    if mine.type != other.type:
        return False
    if mine.type == ir.AttributeType.TENSOR:
        return bool(np.array_equal(mine.value.numpy(), other.value.numpy()))
    return bool(mine.value == other.value)


def _equal(mine: ir.Value | None, other: ir.Value) -> bool:
    if mine is None or mine.const_value is None or other.const_value is None:
        return False
    one, two = mine.const_value, other.const_value
    if one is two:
        return True
    if one.dtype != two.dtype or one.shape != two.shape:
        return False
    left, right = one.numpy(), two.numpy()
    return left is right or left.tobytes() == right.tobytes()


class Advancing:
    """Values of a model on some samples, computed on from those asked for before.

    Asked for in the order of the graph, all of them cost one pass, and those of one place are kept.
    """

    def __init__(self, model: ir.Model, feeds: Iterable[Feed]) -> None:
        self._model = model
        self._inputs = {tensor_name(v) for v in model.graph.inputs if not v.is_initializer()}
        self._feeds: list[dict[str, Array]] = [dict(feed) for feed in feeds]
        self._values: list[dict[str, Array]] = [{} for _ in self._feeds]

    def at(self, names: Sequence[str]) -> list[dict[str, Array]]:
        """Return the named values for each sample."""
        known = [{**f, **v} for f, v in zip(self._feeds, self._values, strict=True)]
        wanted = [name for name in names if known and name not in known[0]]
        if wanted:
            taken = _needed(self._model, wanted, set(known[0]))
            inputs = {name: known[0][name].dtype for name in taken}
            part = Extractor(self._model).session(inputs, wanted, name="the base of the search")
            for row in known:
                arrays = part.run(wanted, {name: row[name] for name in taken})
                row.update(zip(wanted, map(np.array, arrays), strict=True))
            part.close()
        found = [{name: row[name] for name in names} for row in known]
        self._values = [{n: a for n, a in row.items() if n not in self._inputs} for row in found]
        return found


def _needed(model: ir.Model, wanted: Sequence[str], known: set[str]) -> list[str]:
    """Return those known values from which wanted ones follow."""
    values = ir.convenience.create_value_mapping(model.graph, include_subgraphs=False)
    found: dict[str, None] = {}
    seen: set[ir.Value] = set()
    waiting = [values[name] for name in wanted]
    while waiting:
        value = waiting.pop()
        if value in seen or value.is_initializer():
            continue
        seen.add(value)
        name = tensor_name(value)
        if name in known:
            found[name] = None
        elif (producer := value.producer()) is not None:
            waiting += node_inputs(producer)
    return list(found)
