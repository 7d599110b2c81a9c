from lowbit.quark.onnx.quantization.auto_search import *
