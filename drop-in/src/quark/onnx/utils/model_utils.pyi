from lowbit.quark.onnx.model_helpers import *
