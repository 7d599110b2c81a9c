from lowbit.quark.onnx.tools.convert_resize_fs_to_pof2s import *
