from lowbit.quark.onnx.utils.model_utils import *
