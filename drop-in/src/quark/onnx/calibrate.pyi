from lowbit.quark.onnx.calibrate import *
