from lowbit.quark.onnx.tools.save_tensor_hist import *
