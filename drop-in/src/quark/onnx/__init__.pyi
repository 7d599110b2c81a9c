from lowbit.quark.onnx import *
