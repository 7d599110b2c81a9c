"""What a device or runtime can do, as data."""

from lowbit.targets.target import FusedPair, ShiftLimits, Target, find_target

__all__ = ["FusedPair", "ShiftLimits", "Target", "find_target"]
