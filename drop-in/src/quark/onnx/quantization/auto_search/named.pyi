from lowbit.quark.onnx.quantization.auto_search.named import *
