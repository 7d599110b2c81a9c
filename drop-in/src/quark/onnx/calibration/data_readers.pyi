from lowbit.quark.onnx.calibration.data_readers import *
