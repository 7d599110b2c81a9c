"""What a device or runtime can do, as data."""

from lowbit.targets.builtin import find_target
from lowbit.targets.target import FusedPair, OperatorFormats, ShiftLimits, Target

__all__ = ["FusedPair", "OperatorFormats", "ShiftLimits", "Target", "find_target"]
