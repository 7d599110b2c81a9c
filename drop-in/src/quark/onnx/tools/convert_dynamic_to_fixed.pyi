from lowbit.quark.onnx.tools.convert_dynamic_to_fixed import *
