"""What all tools share: arguments, reading, writing, and errors in one line.

Quark's tools spell their arguments in several ways, and its pages mix them up. Here every tool
takes all of them: two words in order, or ``--input``, ``--input_model``, ``--input_model_path``
and so on. An option that does not exist is an error.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

import onnx_ir as ir

from lowbit.cli.parser import Parser
from lowbit.errors import LowbitError
from lowbit.graph import io

_WRONG = 2
_INPUT = ("--input", "--input_model", "--input_model_path")
_OUTPUT = ("--output", "--output_model", "--output_model_path", "--quantized_model_path")
_BESIDE = ("--save_as_external_data", "--external_data")

Change = Callable[[ir.Model, argparse.Namespace], ir.Model]


def make_parser(tool: str, summary: str) -> Parser:
    """Return a parser without arguments."""
    return Parser(prog=f"python -m quark.onnx.tools.{tool}", description=summary)


def add_word(parser: Parser, name: str, spellings: Sequence[str], what: str) -> None:
    """Add an argument that is a word in its place, or follows one of the spellings."""
    parser.add_argument(f"{name}_word", nargs="?", metavar=name.upper(), help=what)
    parser.add_argument(*spellings, dest=name, metavar=name.upper(), help=argparse.SUPPRESS)


def words_of(parser: Parser, args: argparse.Namespace, *names: str) -> None:
    """Fill in, in order, what was not given by its option. Changes ``args``."""
    words = [w for w in (getattr(args, f"{name}_word") for name in names) if w is not None]
    for name in names:
        if getattr(args, name) is None and words:
            setattr(args, name, words.pop(0))
        if getattr(args, name) is None:
            parser.error(f"{name.upper()} is missing")
    if words:
        parser.error(f"{words[0]!r} is one argument too many")


def add_files(parser: Parser) -> None:
    """Add the model to read, the model to write, and how."""
    add_word(parser, "input", _INPUT, "the model to read")
    add_word(parser, "output", _OUTPUT, "the model to write")
    parser.add_argument(
        *_BESIDE, action="store_true", dest="beside", help="weights in a file apart"
    )


def parse_files(parser: Parser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the arguments of a tool that reads one model and writes another."""
    args = _parse(parser, arguments)
    words_of(parser, args, "input", "output")
    return args


def parse(parser: Parser, arguments: Sequence[str] | None, *names: str) -> argparse.Namespace:
    """Return the arguments of another tool; ``names`` are its words, in order."""
    args = _parse(parser, arguments)
    words_of(parser, args, *names)
    return args


def _parse(parser: Parser, arguments: Sequence[str] | None) -> argparse.Namespace:
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser.check_options(words)
    return parser.parse_args(words)


def convert(
    tool: str,
    summary: str,
    change: Change,
    arguments: Sequence[str] | None = None,
    options: Callable[[Parser], object] = lambda parser: None,
) -> int:
    """Read a model, change it, write it; return the exit code."""

    def work() -> None:
        parser = make_parser(tool, summary)
        add_files(parser)
        options(parser)
        args = parse_files(parser, arguments)
        io.check_writable(args.output)
        io.save(change(io.load(args.input), args), args.output, beside=args.beside)
        print(f"{tool}: wrote {args.output}")  # noqa: T201

    return guarded(tool, work)


def guarded(tool: str, work: Callable[[], None]) -> int:
    """Do the work; what goes wrong on purpose is said in one line."""
    try:
        work()
    except LowbitError as error:
        sys.stderr.write(f"{tool}: error: {error}\n")
        return _WRONG
    return 0
