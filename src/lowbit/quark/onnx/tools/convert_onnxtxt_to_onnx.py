"""Read a model from protobuf text."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from lowbit.graph import io
from lowbit.quark.models.stored import read_text
from lowbit.quark.onnx.tools import front


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert one file into another."""

    def work() -> None:
        parser = front.make_parser("convert_onnxtxt_to_onnx", __doc__)
        front.add_files(parser)
        args = front.parse_files(parser, arguments)
        io.save(read_text(args.input), args.output, beside=args.beside)

    return front.guarded("convert_onnxtxt_to_onnx", work)


if __name__ == "__main__":
    sys.exit(main())
