from lowbit.quark.onnx.calibration import *
