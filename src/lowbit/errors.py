"""The errors that lowbit raises, one class for each kind.

Every message names the thing, the value, what was expected and the way out. The command line
prints the message once, without a traceback, and exits with 2.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_LONG = 6
"""The length from which on a word counts as long."""


class LowbitError(Exception):
    """Base of everything lowbit raises on purpose."""


class ModelError(LowbitError):
    """The model cannot be read, is not ONNX, is already quantized, or cannot be run."""


class DataError(LowbitError):
    """The calibration data is missing, empty, or does not fit the model's inputs."""


class ConfigError(LowbitError):
    """A preset, option or configuration file asks for something that does not exist."""


class PlanError(LowbitError):
    """A rule matches nothing, or a plan does not fit the model."""


class CalibrationError(LowbitError):
    """Statistics are missing, not finite, or not of the kind a method needs."""


class WorkerError(LowbitError):
    """A piece of work failed on every worker that tried it."""


class OutputError(LowbitError):
    """The result cannot be written where it was asked for."""


class VerificationError(LowbitError):
    """The quantized model is not valid, does not load, or is further from float than allowed."""


class GateError(VerificationError):
    """A figure is beyond the limit it was held against."""


class RuinedError(VerificationError):
    """The quantized model is too far from float to be of any use."""


class GoalMissedError(VerificationError):
    """The best model that was found is written, but does not meet the goal."""


def visible(text: str) -> str:
    """Return a text in one line with a code for each character that has no shape of its own.

    Names come from files: what is in them must not move a terminal's cursor or change its colours.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def did_you_mean(word: str, known: Iterable[str], count: int = 3) -> str:
    """Return "; did you mean 'x'?" for the nearest known names, or "" when none is near."""
    by_lower = {name.lower(): name for name in known}
    # Long names have many letters in common by chance.
    cutoff = 0.5 if len(word) < _LONG else 0.7
    near = difflib.get_close_matches(word.lower(), by_lower, n=count, cutoff=cutoff)
    if not near:
        # A long name that merely contains the word is a likelier intention than a near spelling.
        near = [name for name in by_lower if word.lower() in name][:count]
    if not near:
        return ""
    return "; did you mean " + " or ".join(repr(by_lower[name]) for name in near) + "?"
