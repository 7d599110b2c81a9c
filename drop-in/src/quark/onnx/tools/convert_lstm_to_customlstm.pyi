from lowbit.quark.onnx.tools.convert_lstm_to_customlstm import *
