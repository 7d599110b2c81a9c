from lowbit.quark.onnx.tools.fix_shapes import *
