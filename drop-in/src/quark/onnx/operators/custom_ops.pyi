from lowbit.quark.onnx.operators import *
