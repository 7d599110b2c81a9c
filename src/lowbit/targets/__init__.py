"""What a device or runtime can do, as data."""

from lowbit.targets.target import FusedPair, OperatorFormats, ShiftLimits, Target, find_target

__all__ = ["FusedPair", "OperatorFormats", "ShiftLimits", "Target", "find_target"]
