from lowbit.quark.onnx.quantization.auto_search.studies import *
