from lowbit.quark.onnx.finetuning import *
