"""An argument parser that names the nearest word for a mistyped command, option or choice."""

from __future__ import annotations

import argparse
import fractions
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from lowbit.errors import ConfigError, did_you_mean


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


def fixed_input(text: str) -> tuple[str, Any]:
    """Return an input and the value it is fixed to: ``sr=16000``, ``flags=[0, 1]``."""
    name, value = _assigned(text, "sr=16000")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def input_shape(text: str) -> tuple[str, tuple[int | str, ...]]:
    """Return an input and its shape: ``x=1,3,320,320``; a word, or -1, is a free size."""
    name, sizes = _assigned(text, "x=1,3,320,320")
    words = [word.strip() for word in sizes.split(",")] if sizes else []
    if not all(re.fullmatch(r"-1|\d+|[A-Za-z_]\w*", word) for word in words):
        raise argparse.ArgumentTypeError(f"{sizes!r} is no shape, such as 1,3,320,320 or N,3,-1,-1")
    return name, tuple(int(word) if word.lstrip("-").isdigit() else word for word in words)


def _assigned(text: str, example: str) -> tuple[str, str]:
    name, sign, value = text.rpartition("=")
    if not name or not sign:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE ({example})")
    return name, value


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


_NUMBER = re.compile(r"-[\d.]")


class Parser(argparse.ArgumentParser):
    """``ArgumentParser`` whose complaints are errors like all others, with suggestions."""

    def __init__(self, **settings: Any) -> None:
        # Newer versions of argparse hand settings of their own to the parsers of commands.
        super().__init__(
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **settings,
        )
        self.commands: Mapping[str, Parser] = {}

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Return what the words ask for; the command is ``None`` when there is none."""
        self.check_options([word for word in words[:1] if word.startswith("-")])
        if words and not words[0].startswith("-"):
            self._find_command(words[0]).check_options(words[1:])
        return self.parse_args(_joined(words))

    def check_options(self, words: Sequence[str]) -> None:
        """Refuse an unknown option before argparse misses an argument because of it."""
        for word in words:
            if word == "--":
                return
            name = word.split("=", 1)[0]
            is_option = name.startswith("-") and name != "-" and not _NUMBER.match(name)
            if is_option and name not in self._option_string_actions:
                known = [option for option in self._option_string_actions if option[1] == "-"]
                self.error(f"unknown option {name!r}{did_you_mean(name, known, 1)}")

    def actions(self) -> Sequence[argparse.Action]:
        """Return the arguments and options, for what describes them: argparse has no public list."""
        return tuple(self._actions)

    def groups(self) -> Sequence[argparse._ArgumentGroup]:
        """Return the groups of arguments, in the order of the help."""
        return tuple(self._action_groups)

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the whole usage: ``main`` prints one line."""
        raise ConfigError(f"{message} (see `{self.prog} --help`)")

    def _find_command(self, word: str) -> Parser:
        if word not in self.commands:
            near = did_you_mean(word, self.commands, 1)
            self.error(f"unknown command {word!r}{near} (known: {', '.join(self.commands)})")
        return self.commands[word]


def _joined(words: Sequence[str]) -> list[str]:
    """Return the words with negative values tied to their options: ``--mean=-1,-1,-1``.

    argparse takes a list that starts with a minus for an option.
    """
    joined: list[str] = []
    for word in words:
        if joined and _NUMBER.match(word) and joined[-1].startswith("--") and joined[-1] != "--":
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def one_of(names: Sequence[str]) -> Callable[[str], str]:
    """Return an argument type that takes one of the names and suggests the nearest otherwise."""

    def choose(word: str) -> str:
        if word not in names:
            near = did_you_mean(word, names, 1)
            raise argparse.ArgumentTypeError(
                f"{word!r} is unknown{near} (known: {', '.join(names)})"
            )
        return word

    choose.names = tuple(names)  # type: ignore[attr-defined]  # read by shell completion
    return choose


def words(text: str) -> tuple[str, ...]:
    """Return the words of a list with commas."""
    found = tuple(word.strip() for word in text.split(",") if word.strip())
    if not found:
        raise argparse.ArgumentTypeError(
            "expected names with commas between them, such as XINT8,A8W8"
        )
    return found
