from lowbit.quark.onnx.quantization.config.spec import *
