"""See what quantization did: outputs and layers, an error budget with causes and mends."""

from lowbit.diagnose.comparing import compare, examine

__all__ = ["compare", "examine"]
