"""``lowbit --completion SHELL``: a script that completes commands, options and their values."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from lowbit.cli.parser import Parser


def completion(shell: str, parser: Parser, values: Mapping[str, tuple[str, ...]]) -> str:
    """Return the script; ``values`` are the words of options that the parser leaves open."""
    return SHELLS[shell](parser, values)


def _options(command: Parser) -> Iterator[tuple[str, argparse.Action]]:
    for action in command.actions():
        for name in action.option_strings:
            if name.startswith("--"):
                yield name, action


def _words(action: argparse.Action, values: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    known = getattr(action.type, "names", ())
    return values.get(action.option_strings[0], tuple(known))


def _takes_value(action: argparse.Action) -> bool:
    return action.nargs != 0


def _bash(parser: Parser, values: Mapping[str, tuple[str, ...]]) -> str:
    cases: list[str] = []
    choices: dict[str, tuple[str, ...]] = {}
    for name, command in parser.commands.items():
        options = list(_options(command))
        cases.append(f'    {name}) options="{" ".join(option for option, _ in options)}" ;;')
        choices |= {option: words for option, a in options if (words := _words(a, values))}
    chosen = [
        f'    {option}) COMPREPLY=($(compgen -W "{" ".join(words)}" -- "$current")); return ;;'
        for option, words in choices.items()
    ]
    return "\n".join(
        (
            "_lowbit() {",
            '  local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}" options=""',
            "  COMPREPLY=()",
            "  if [ $COMP_CWORD -eq 1 ]; then",
            f'    COMPREPLY=($(compgen -W "{" ".join(parser.commands)} --help --version" -- "$current"))',
            "    return",
            "  fi",
            '  case "$previous" in',
            *chosen,
            "  esac",
            '  case "${COMP_WORDS[1]}" in',
            *cases,
            "  esac",
            '  case "$current" in',
            '    -*) COMPREPLY=($(compgen -W "$options" -- "$current")) ;;',
            '    *) COMPREPLY=($(compgen -f -- "$current")) ;;',
            "  esac",
            "}",
            "complete -o filenames -F _lowbit lowbit",
            "",
        )
    )


def _zsh(parser: Parser, values: Mapping[str, tuple[str, ...]]) -> str:
    lines = ["#compdef lowbit", "_lowbit() {", "  if (( CURRENT == 2 )); then"]
    commands = " ".join(f"'{name}:{_plain(_about(p))}'" for name, p in parser.commands.items())
    lines += [f"    local -a commands=({commands})", "    _describe command commands", "    return"]
    lines += ["  fi", '  case "${words[2]}" in']
    for name, command in parser.commands.items():
        specs = []
        for option, action in _options(command):
            words = _words(action, values)
            after = f":value:({' '.join(words)})" if words else ":value:_files"
            value = after if _takes_value(action) else ""
            specs.append(f"'*{option}[{_plain(action.help or '')}]{value}'")
        lines.append(f"    {name}) _arguments {' '.join(specs)} '*:file:_files' ;;")
    lines += ["  esac", "}", "compdef _lowbit lowbit", ""]
    return "\n".join(lines)


def _fish(parser: Parser, values: Mapping[str, tuple[str, ...]]) -> str:
    lines = []
    for name, command in parser.commands.items():
        about = _plain(_about(command))
        lines.append(f"complete -c lowbit -f -n __fish_use_subcommand -a {name} -d '{about}'")
        for option, action in _options(command):
            words = _words(action, values)
            needs = (
                f" -x -a '{' '.join(words)}'" if words else " -r" if _takes_value(action) else ""
            )
            lines.append(
                f"complete -c lowbit -n '__fish_seen_subcommand_from {name}' -l {option[2:]}"
                f" -d '{_plain(action.help or '')}'{needs}"
            )
    return "\n".join([*lines, ""])


def _about(command: Parser) -> str:
    return (command.description or "").rstrip(".")


def _plain(text: str) -> str:
    """Return a help text without what a shell's quotes and brackets would trip over."""
    return "".join(" " if letter in "'[]:\\`$\"\n" else letter for letter in text)


SHELLS: Mapping[str, Callable[[Parser, Mapping[str, tuple[str, ...]]], str]] = MappingProxyType(
    {"bash": _bash, "zsh": _zsh, "fish": _fish}
)
