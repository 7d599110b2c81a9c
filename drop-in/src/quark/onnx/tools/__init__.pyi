from lowbit.quark.onnx.tools import *
