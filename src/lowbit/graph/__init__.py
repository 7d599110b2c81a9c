"""Models: reading, writing, normalizing, running. Knows ONNX; does not know quantization.

The only package that may import onnx, onnxruntime and onnxscript.
"""
