from lowbit.quark.onnx.tools.convert_onnx_to_onnxtxt import *
