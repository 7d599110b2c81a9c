"""Analyze the error of a quantized model: sensitivity, error budget, suggested fixes."""

from __future__ import annotations
