from lowbit.quark.onnx.quantization.config import *
