"""Where the error of a quantized model comes from: sensitivity, error budget, suggested fixes."""

from __future__ import annotations
