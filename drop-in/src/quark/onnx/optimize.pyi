from lowbit.quark.onnx.optimize import *
