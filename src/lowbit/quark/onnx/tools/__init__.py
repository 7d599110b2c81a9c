"""Command-line tools: ``python -m lowbit.quark.onnx.tools.NAME``."""
