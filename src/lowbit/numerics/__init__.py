"""Arithmetic on arrays. Nothing here knows about graphs, ONNX or configuration."""
