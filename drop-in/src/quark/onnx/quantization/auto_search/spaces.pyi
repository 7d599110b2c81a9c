from lowbit.quark.onnx.quantization.auto_search.spaces import *
