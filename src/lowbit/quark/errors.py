"""Errors of Quark's API. Each is also of the kind Quark raises, for scripts that catch it."""

from __future__ import annotations

import warnings

from lowbit.errors import ConfigError, DataError, LowbitError, ModelError


class QuarkConfigError(ConfigError, ValueError):
    """A configuration of Quark's that means nothing, or contradicts itself."""


class QuarkDataError(DataError, ValueError):
    """There is nothing to calibrate on."""


class MissingModelError(ModelError, FileNotFoundError):
    """The model to quantize does not exist."""


class NotSupportedError(LowbitError, NotImplementedError):
    """Something Quark has and lowbit does not, or not yet."""


class CompatibilityWarning(UserWarning):
    """Something a script asks for has no effect, or another than it may expect."""


def say(message: str) -> None:
    """Warn; Python shows the same message once."""
    warnings.warn(message, CompatibilityWarning, stacklevel=2)
