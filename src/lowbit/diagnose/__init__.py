"""See what quantization did: outputs and layers, an error budget with causes and mends."""

from lowbit.diagnose.comparing import compare

__all__ = ["compare"]
