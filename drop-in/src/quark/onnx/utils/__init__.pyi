from lowbit.quark.onnx.utils import *
