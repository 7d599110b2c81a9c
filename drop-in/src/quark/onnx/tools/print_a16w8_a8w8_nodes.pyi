from lowbit.quark.onnx.tools.print_a16w8_a8w8_nodes import *
