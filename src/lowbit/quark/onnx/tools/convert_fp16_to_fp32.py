"""Convert a float16 model to float32, inputs and outputs too."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from lowbit.cli.parser import Parser
from lowbit.quark.errors import NotSupportedError
from lowbit.quark.models.precision import half_to_single
from lowbit.quark.onnx.tools import front


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert one file into another."""

    def refuse(text: str) -> str:
        raise NotSupportedError(f"--subgraphs_to_include {text!r}: only whole models are converted")

    def options(parser: Parser) -> None:
        parser.add_argument("--subgraphs_to_include", type=refuse, help="(not supported)")

    return front.convert(
        "convert_fp16_to_fp32", __doc__, lambda model, _: half_to_single(model), arguments, options
    )


if __name__ == "__main__":
    sys.exit(main())
