"""The front that all tools share: arguments, reading, writing, and errors in one line.

Quark's tools spell their arguments in several ways, and its pages mix them up. Here every tool
takes all of them: two words in order, or ``--input``, ``--input_model``, ``--input_model_path``
and so on. An option that does not exist is an error.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Sequence

import onnx
import onnx_ir as ir

from lowbit.cli.parser import Parser
from lowbit.errors import LowbitError
from lowbit.files import check_writable
from lowbit.graph import io

_WRONG = 2
_EXTERNAL_DATA = ("--save_as_external_data", "--external_data")

Change = Callable[[ir.Model, argparse.Namespace], ir.Model]
Work = Callable[[argparse.Namespace], None]
AddOptions = Callable[[Parser], object]


@dataclasses.dataclass(frozen=True, slots=True)
class Word:
    """An argument that is a word in its place, or follows one of its spellings."""

    name: str
    spellings: tuple[str, ...]
    help: str


FILES = (
    Word("input", ("--input", "--input_model", "--input_model_path"), "the model to read"),
    Word(
        "output",
        ("--output", "--output_model", "--output_model_path", "--quantized_model_path"),
        "the model to write",
    ),
)


def no_options(parser: Parser) -> None:
    """Add nothing."""
    del parser


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A row of the table.

    ``summary`` is the docstring of the tool's module; ``description`` is what ``--help`` says
    instead. ``words`` are given in order. ``functions`` are what the module offers to scripts.
    """

    name: str
    summary: str
    work: Work
    words: tuple[Word, ...] = FILES
    options: AddOptions = no_options
    functions: tuple[Callable[..., object], ...] = ()
    description: str = ""
    any_arguments: bool = False
    """Whether arguments are not looked at, because none changes what the tool says."""


def rewrite(name: str, change: Change) -> Work:
    """Return the work of a tool that reads a model, changes it and writes it."""

    def work(args: argparse.Namespace) -> None:
        check_writable(args.output)
        io.save(change(io.load(args.input), args), args.output, external_data=args.external_data)
        print(f"{name}: wrote {args.output}")  # noqa: T201

    return work


def proto_function(
    name: str, change: Callable[[ir.Model], ir.Model], doc: str
) -> Callable[[onnx.ModelProto], onnx.ModelProto]:
    """Return a tool's function of its own name, which scripts call with a ``ModelProto``."""

    def function(model: onnx.ModelProto) -> onnx.ModelProto:
        return io.to_proto(change(io.load(model)))

    function.__module__ = f"{__package__}.{name}"
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


def make_main(tool: Tool) -> Callable[[Sequence[str] | None], int]:
    """Return the ``main`` of a tool's module."""

    def main(arguments: Sequence[str] | None = None) -> int:
        """Run the tool; return the exit code."""
        return run(tool, arguments)

    main.__module__ = f"{__package__}.{tool.name}"
    main.__qualname__ = "main"
    return main


def run(tool: Tool, arguments: Sequence[str] | None = None) -> int:
    """Run a tool; return the exit code. What goes wrong on purpose is said in one line."""
    try:
        tool.work(_parse(tool, arguments))
    except LowbitError as error:
        sys.stderr.write(f"{tool.name}: error: {error}\n")
        return _WRONG
    return 0


def _parse(tool: Tool, arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = _make_parser(tool)
    given = list(sys.argv[1:] if arguments is None else arguments)
    if tool.any_arguments:
        return parser.parse_known_args(given)[0]
    parser.check_options(given)
    args = parser.parse_args(given)
    _fill_words(parser, args, [word.name for word in tool.words])
    return args


def _make_parser(tool: Tool) -> Parser:
    parser = Parser(
        prog=f"python -m quark.onnx.tools.{tool.name}",
        description=tool.description or tool.summary,
    )
    for word in tool.words:
        metavar = word.name.upper()
        parser.add_argument(f"{word.name}_word", nargs="?", metavar=metavar, help=word.help)
        parser.add_argument(
            *word.spellings, dest=word.name, metavar=metavar, help=argparse.SUPPRESS
        )
    if tool.words == FILES:
        # What writes no model, or has words of its own, never took this option.
        parser.add_argument(
            *_EXTERNAL_DATA,
            action="store_true",
            dest="external_data",
            help="weights in a file apart",
        )
    tool.options(parser)
    return parser


def _fill_words(parser: Parser, args: argparse.Namespace, names: Sequence[str]) -> None:
    """Fill in, in order, what was not given by its option. Changes ``args``."""
    words = [w for w in (getattr(args, f"{name}_word") for name in names) if w is not None]
    for name in names:
        if getattr(args, name) is None and words:
            setattr(args, name, words.pop(0))
        if getattr(args, name) is None:
            parser.error(f"{name.upper()} is missing")
    if words:
        parser.error(f"{words[0]!r} is one argument too many")
