from lowbit.quark.onnx.tools.front import *
