from lowbit.quark.vai_q_onnx import *
