from lowbit.quark.onnx.operators.custom_ops import *
