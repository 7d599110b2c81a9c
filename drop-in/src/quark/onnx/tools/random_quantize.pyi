from lowbit.quark.onnx.tools.random_quantize import *
