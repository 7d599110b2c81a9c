from collections.abc import Sequence

import onnx

def main(arguments: Sequence[str] | None = None) -> int: ...
def replace_inf_in_onnx_weights(
    input_model: str | onnx.ModelProto,
    output_model: str | None = None,
    replace_inf_value: float = 10000.0,
) -> onnx.ModelProto | None: ...
