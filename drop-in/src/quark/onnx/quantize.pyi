from lowbit.quark.onnx.quantize import *
