"""Write a model as protobuf text."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from lowbit.graph import io
from lowbit.quark.models.stored import write_text
from lowbit.quark.onnx.tools import front


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert one file into another."""

    def work() -> None:
        parser = front.make_parser("convert_onnx_to_onnxtxt", __doc__)
        front.add_files(parser)
        args = front.parse_files(parser, arguments)
        io.check_writable(args.output)
        write_text(io.load(args.input), args.output)

    return front.guarded("convert_onnx_to_onnxtxt", work)


if __name__ == "__main__":
    sys.exit(main())
