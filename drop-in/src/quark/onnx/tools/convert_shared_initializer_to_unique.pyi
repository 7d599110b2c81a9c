from lowbit.quark.onnx.tools.convert_shared_initializer_to_unique import *
