"""The reference of the command line, written from the parser: ``python -m lowbit.cli.manual``.

So docs/cli.md cannot go stale; a test compares it with what this gives.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from lowbit.cli.options import make_parser
from lowbit.cli.parser import Parser

_HEAD = """\
# Commands and options

This page is written from the parser by `make docs`. [The command line by example](command-line.md) shows what the commands print.
"""


def manual() -> str:
    """Return the page."""
    parser = make_parser()
    parts = [_HEAD, *_commands(parser)]
    for name, command in parser.commands.items():
        parts.append(f"## lowbit {name}\n\n{command.description}\n")
        parts += [_group(group) for group in command.groups() if _rows(group)]
    return "\n".join(parts)


def _commands(parser: Parser) -> Iterator[str]:
    rows = [f"| [`{n}`](#lowbit-{n}) | {p.description} |" for n, p in parser.commands.items()]
    yield "\n".join(("| command | what it does |", "|---|---|", *rows)) + "\n"


def _group(group: argparse._ArgumentGroup) -> str:
    """Return the arguments of one group as a table, with its heading where it has one."""
    plain = group.title in {"positional arguments", "options"}
    heading = "" if plain else f"**{str(group.title).capitalize()}.** {group.description or ''}\n\n"
    lines = ("| argument | what it does |", "|---|---|", *_rows(group))
    return heading + "\n".join(lines) + "\n"


def _rows(group: argparse._ArgumentGroup) -> list[str]:
    return [
        f"| `{_name(action)}` | {_cell(action.help)} |"
        for action in group._group_actions  # noqa: SLF001  # argparse has no public list
        if action.help is not argparse.SUPPRESS and action.dest != "help"
    ]


def _name(action: argparse.Action) -> str:
    value = "" if action.nargs == 0 else str(action.metavar or action.dest)
    repeated = " ..." if action.nargs == "+" else ""
    shown = " ".join((*action.option_strings[:1], value)).strip().replace("|", "\\|")
    return f"{shown}{repeated}"


def _cell(text: str | None) -> str:
    # argparse writes a percent sign as two.
    return (text or "").replace("|", "\\|").replace("%%", "%")


if __name__ == "__main__":
    sys.stdout.write(manual())
