from lowbit.quark.onnx.tools.convert_nchw_to_nhwc import *
