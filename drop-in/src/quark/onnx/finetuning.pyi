from lowbit.quark.onnx.algorithm import *
