"""The configuration: immutable values, checked when they are read."""

DEFAULT_PRESET = "A8W8"
