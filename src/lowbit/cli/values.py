"""What the text after an option means: counts, fractions, lists and sizes."""

from __future__ import annotations

import argparse
import fractions
import math
import re


def count(text: str) -> int:
    """Return a number of samples."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return value


def percent(text: str) -> float:
    """Return a percentile that leaves something in range."""
    value = _number(text)
    if not 50 < value <= 100:
        raise argparse.ArgumentTypeError(f"{text} is not above 50 and at most 100")
    return value


def decibels(text: str) -> float:
    """Return a ratio in decibels."""
    return _number(text)


def positive(text: str) -> float:
    """Return a number above zero."""
    value = _number(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text} is not above zero")
    return value


def factor(text: str) -> float:
    """Return a number that may be written as a fraction: ``1/255``."""
    return _number(text)


def channels(text: str) -> tuple[float, ...]:
    """Return one number, or one for each of R, G and B: ``0.485,0.456,0.406``."""
    return tuple(_number(part) for part in text.split(","))


def size(text: str) -> int | tuple[int, int]:
    """Return pixels: one side (``256``), or height and width (``480,640``)."""
    sides = [count(part) for part in text.split(",")]
    if len(sides) > 2:
        raise argparse.ArgumentTypeError(f"{text!r} is neither one side nor height,width")
    return sides[0] if len(sides) == 1 else (sides[0], sides[1])


def pattern(text: str) -> str:
    """Return a glob, or ``re:`` and a regular expression that can be compiled."""
    if text.startswith("re:"):
        try:
            re.compile(text[3:])
        except re.error as error:
            raise argparse.ArgumentTypeError(
                f"{text[3:]!r} is no regular expression: {error}"
            ) from error
    return text


def _number(text: str) -> float:
    try:
        value = float(fractions.Fraction(text)) if "/" in text else float(text)
    except (ValueError, ZeroDivisionError):
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number")
    return value
