from collections.abc import Sequence

import onnx
import onnx_ir as ir

def main(arguments: Sequence[str] | None = None) -> int: ...
def remove_qdq_between_ops(
    model: onnx.ModelProto,
    between_ops: Sequence[tuple[str, str]],
) -> onnx.ModelProto: ...
def without_pairs(model: ir.Model, between: Sequence[tuple[str, str]]) -> ir.Model: ...
