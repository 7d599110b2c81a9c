"""Take all quantization out: floats as they were stored."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import onnx
import onnx_ir as ir

from lowbit.graph import io
from lowbit.quark.models.pairs import remove_pairs, to_floats
from lowbit.quark.onnx.tools import front


def convert_quant_to_float(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model in float."""
    return io.to_proto(_changed(io.load(model)))


def _changed(model: ir.Model) -> ir.Model:
    remove_pairs(model.graph, lambda quantizer, dequantizer: True)
    to_floats(model.graph)
    return model


def main(arguments: Sequence[str] | None = None, tool: str = "convert_quant_to_float") -> int:
    """Convert one file into another."""
    return front.convert(tool, __doc__, lambda model, _: _changed(model), arguments)


if __name__ == "__main__":
    sys.exit(main())
