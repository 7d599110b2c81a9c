from lowbit.quark.onnx.auto_search import *
