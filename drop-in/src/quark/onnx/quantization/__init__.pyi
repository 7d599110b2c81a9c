from lowbit.quark.onnx.quantization import *
