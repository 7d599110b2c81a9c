"""Targets: the capabilities of a device or runtime, as data."""

from lowbit.targets.builtin import find_target
from lowbit.targets.target import FusedPair, OperatorFormats, ShiftLimits, Target

__all__ = ["FusedPair", "OperatorFormats", "ShiftLimits", "Target", "find_target"]
