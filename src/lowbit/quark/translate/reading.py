"""From a dictionary of extra options to the typed table, with everything wrong said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
import numpy as np

from lowbit.errors import did_you_mean
from lowbit.quark.errors import NotSupportedError, QuarkConfigError, say
from lowbit.quark.translate.options import OPTIONS, ExtraOptions, Option

T = TypeVar("T", bound=msgspec.Struct)


def read_options(given: Mapping[str, Any], *, lenient: bool) -> ExtraOptions:
    """Return the options as a value; the dictionary stays as it is.

    A misspelt key is an error, or only a warning when ``lenient``.
    """
    options = read_struct("extra_options", given, ExtraOptions, lenient=lenient)
    for key, value in given.items():
        if key in OPTIONS:
            _judge(OPTIONS[key], _python(value))
    return options


def read_struct(title: str, given: Mapping[str, Any], kind: type[T], *, lenient: bool) -> T:
    """Return a dictionary of parameters as a value of ``kind``, under the same rules."""
    keys = [field.encode_name for field in msgspec.structs.fields(kind)]
    known: dict[str, Any] = {}
    for key, value in given.items():
        if key in keys:
            known[key] = _python(value)
            continue
        message = f"{title} has no {key!r}{did_you_mean(str(key), keys)}"
        if not lenient:
            raise QuarkConfigError(message)
        say(f"{message} (it is ignored)")
    try:
        return msgspec.convert(known, kind)
    except msgspec.ValidationError as error:
        raise QuarkConfigError(f"{title}: {error}") from error


def _judge(option: Option, value: Any) -> None:
    if value is None or value in option.anyway:
        return
    if option.effect == "ignored":
        say(f"{option.key}={value!r} has no effect: {option.why}")
    if option.effect == "refused" and _asks(value):
        raise NotSupportedError(f"{option.key}={value!r} is not supported: {option.why}")


def _asks(value: Any) -> bool:
    """Whether a value asks for something beyond the default of doing nothing."""
    return value is not False and value not in ("", [], {})


def _python(value: Any) -> Any:
    """Return a number of NumPy as Python's own."""
    return value.item() if isinstance(value, np.generic) else value
