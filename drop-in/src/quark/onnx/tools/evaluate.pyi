from lowbit.quark.onnx.tools.evaluate import *
