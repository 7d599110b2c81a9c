from lowbit.quark.onnx.quantization.config.custom_config import *
