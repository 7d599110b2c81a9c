from lowbit.quark.onnx.tools.remove_bf16_cast import *
