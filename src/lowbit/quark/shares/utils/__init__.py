"""The older name of ``quark.common``."""
