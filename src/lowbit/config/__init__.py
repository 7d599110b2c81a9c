"""The configuration: immutable values, checked when they are read."""
