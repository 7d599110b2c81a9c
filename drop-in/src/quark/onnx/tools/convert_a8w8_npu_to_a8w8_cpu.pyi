from lowbit.quark.onnx.tools.convert_a8w8_npu_to_a8w8_cpu import *
