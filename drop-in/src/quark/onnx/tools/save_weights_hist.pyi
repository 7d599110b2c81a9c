from lowbit.quark.onnx.tools.save_weights_hist import *
