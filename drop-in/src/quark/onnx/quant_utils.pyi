from lowbit.quark.onnx.quant_utils import *
