from lowbit.quark.onnx.quantization.quant_utils import *
