from lowbit.quark.onnx.quantization.config.algorithm import *
