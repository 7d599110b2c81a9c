from lowbit.quark.onnx.quantization.config.maps import *
