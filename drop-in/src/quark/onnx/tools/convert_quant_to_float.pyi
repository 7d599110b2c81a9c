from lowbit.quark.onnx.tools.convert_quant_to_float import *
