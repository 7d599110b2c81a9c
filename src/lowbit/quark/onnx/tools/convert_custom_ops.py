"""Rename Quark's operators to their older names; ``--reverse_conversion True`` renames back."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from lowbit.cli.parser import Parser
from lowbit.quark.models.custom import rename
from lowbit.quark.onnx.tools import front

_YES = ("true", "yes", "1")


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert one file into another."""
    return front.convert(
        "convert_custom_ops",
        __doc__,
        lambda model, args: rename(model, back=args.reverse_conversion.lower() in _YES),
        arguments,
        _options,
    )


def _options(parser: Parser) -> None:
    parser.add_argument("--reverse_conversion", default="False", nargs="?", const="True")


if __name__ == "__main__":
    sys.exit(main())
