from lowbit.quark.onnx.calibration.calibrators import *
