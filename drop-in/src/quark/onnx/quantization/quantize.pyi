from lowbit.quark.onnx.quantization.quantize import *
