from lowbit.quark.onnx.quantization.config.data_type import *
