"""The older name of ``quark.common.utils.log``."""

from lowbit.quark.common.utils.log import ScreenLogger, log_errors

__all__ = ["ScreenLogger", "log_errors"]
