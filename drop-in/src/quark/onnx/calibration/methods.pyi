from lowbit.quark.onnx.calibration.methods import *
