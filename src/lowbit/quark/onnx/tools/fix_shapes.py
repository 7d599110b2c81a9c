"""Write down the shape of every tensor, with the shapes of inputs fixed by ``--fix_shapes``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from lowbit.cli.parser import Parser
from lowbit.quark import rewriting
from lowbit.quark.onnx.tools import front


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert one file into another."""
    return front.convert(
        "fix_shapes",
        __doc__,
        lambda model, args: rewriting.know_shapes(
            rewriting.fix_shapes(model, rewriting.parse_shapes(args.fix_shapes))
        ),
        arguments,
        _options,
    )


def _options(parser: Parser) -> None:
    parser.add_argument("--fix_shapes", default="", metavar="NAME:[DIMS];...")


if __name__ == "__main__":
    sys.exit(main())
