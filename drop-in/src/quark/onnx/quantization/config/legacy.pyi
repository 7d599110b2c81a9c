from lowbit.quark.onnx.quantization.config.config import *
