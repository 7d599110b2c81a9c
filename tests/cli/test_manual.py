"""The reference of the command line is what the parser says."""

from __future__ import annotations

import pathlib

from lowbit.cli.manual import manual
from lowbit.cli.options import make_parser

PAGE = pathlib.Path(__file__).parent.parent.parent / "docs" / "cli.md"


def test_the_page_is_written_from_the_parser_as_it_is() -> None:
    assert PAGE.read_text("utf-8") == manual(), "run `make docs`, which writes docs/cli.md anew"


def test_every_command_and_option_is_in_it() -> None:
    page = manual()

    for name, command in make_parser().commands.items():
        section = page.split(f"\n## lowbit {name}\n")[1].split("\n## ")[0]
        for action in command.actions():
            if action.dest != "help":
                assert (action.option_strings or [action.metavar])[0] in section
