from lowbit.quark.onnx.quantization.api import *
