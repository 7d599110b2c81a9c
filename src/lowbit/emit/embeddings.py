"""Embeddings in the graph: rows of integers are picked first, and only these are dequantized.

A table before a DequantizeLinear would be dequantized as a whole, whenever the model runs.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from lowbit.emit.emission import Emission
from lowbit.graph.editing import Uses, constant_shape, take_over
from lowbit.graph.naming import MICROSOFT
from lowbit.numerics.affine import QParams
from lowbit.ops.weights import is_embedding

_FLOAT = int(ir.DataType.FLOAT)
_SMALLEST_BLOCK = 16


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
    """A table of integers in the graph, and its parameters there; no zero point if all are zero."""

    name: str
    stored: ir.Value
    scale: ir.Value
    zero_point: ir.Value | None
    params: QParams


class EmbeddingNodes:
    """Writes what picks rows of a quantized table."""

    def __init__(self, context: Emission) -> None:
        self._editor = context.editor
        self._packed = context.options.packed

    def picked(self, uses: Uses, params: QParams) -> list[ir.Node]:
        """Return the consumers of a table that can pick rows of its integers."""
        nodes = [node for node, index in uses if index == 0 and is_embedding(node)]
        if params.axis is None or (params.group_size is None and params.axis != 0):
            return []
        if params.format.bits == 4:
            return nodes if self._packs(params) else []
        return nodes if not params.zero_point.any() else []

    def write(self, node: ir.Node, table: Table) -> None:
        """Replace one Gather."""
        if table.params.format.bits == 4:
            made = self._packed_gather(node, table)
        elif table.params.group_size is not None:
            made = self._blocked(node, table)
        else:
            made = self._by_rows(node, table)
        graph = self._editor.graph
        graph.insert_before(node, made)
        take_over(node.outputs[0], made[-1].outputs[0])
        graph.remove(node, safe=True)

    def _packs(self, params: QParams) -> bool:
        size = params.group_size
        fits = size is None or (size >= _SMALLEST_BLOCK and size & (size - 1) == 0)
        return fits and "GatherBlockQuantized" in self._packed

    def _packed_gather(self, node: ir.Node, table: Table) -> list[ir.Node]:
        """Return onnxruntime's operator, since none of ONNX's picks rows of 4 bits."""
        size = table.params.group_size
        inputs = [table.stored, node.inputs[1], self._as_column(table, table.scale, "scale")]
        if table.zero_point is not None:
            inputs.append(self._as_column(table, table.zero_point, "zero_point"))
        if size is None:
            width = constant_shape(table.stored) or (0, 1)
            size = max(_SMALLEST_BLOCK, 1 << (width[1] - 1).bit_length())
        attributes = {"gather_axis": 0, "quantize_axis": 1, "block_size": size}
        name = f"{node.name}_GatherBlockQuantized"
        return [
            self._editor.node("GatherBlockQuantized", inputs, name, attributes, domain=MICROSOFT)
        ]

    def _blocked(self, node: ir.Node, table: Table) -> list[ir.Node]:
        rows, scales = (
            self._gather(node, value, word)
            for value, word in ((table.stored, "rows"), (table.scale, "scales"))
        )
        attributes = {"axis": -1, "block_size": table.params.group_size or 0}
        inputs = [rows.outputs[0], scales.outputs[0]]
        name = f"{node.name}_DequantizeLinear"
        return [rows, scales, self._editor.node("DequantizeLinear", inputs, name, attributes)]

    def _by_rows(self, node: ir.Node, table: Table) -> list[ir.Node]:
        """Return a product instead of a DequantizeLinear, which has no scale for each row of many."""
        rows = self._gather(node, table.stored, "rows")
        scales = self._gather(node, self._as_column(table, table.scale, "scale"), "scales")
        floats = self._editor.node("Cast", [rows.outputs[0]], f"{node.name}_float", {"to": _FLOAT})
        product = self._editor.node(
            "Mul", [floats.outputs[0], scales.outputs[0]], f"{node.name}_scaled"
        )
        return [rows, scales, floats, product]

    def _gather(self, node: ir.Node, value: ir.Value, word: str) -> ir.Node:
        return self._editor.node(
            "Gather", [value, node.inputs[1]], f"{node.name}_{word}", {"axis": 0}
        )

    def _as_column(self, table: Table, value: ir.Value, word: str) -> ir.Value:
        """Return parameters of rows with an axis for the one group that a row is."""
        tensor = value.const_value
        if table.params.group_size is not None or tensor is None:
            return value
        data = np.asarray(tensor.numpy())[:, None]
        return self._editor.tensor(
            f"{table.name}_{word}_of_rows",
            lambda name: ir.Tensor(data, dtype=tensor.dtype, name=name),
        )
