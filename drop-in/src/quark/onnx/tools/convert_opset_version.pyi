from lowbit.quark.onnx.tools.convert_opset_version import *
