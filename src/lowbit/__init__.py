"""Quantize ONNX models after training, for AMD Ryzen AI NPUs and every target that reads Q/DQ."""

__version__ = "0.1.0"
