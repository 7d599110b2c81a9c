from lowbit.quark.onnx.tools.convert_onnxtxt_to_onnx import *
