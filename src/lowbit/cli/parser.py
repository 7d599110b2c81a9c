"""An argument parser that names the nearest word for a mistyped command, option or choice."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from lowbit.errors import ConfigError, did_you_mean

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

    return choose
