from lowbit.quark.onnx.quantization.config.legacy import *
