"""Write histograms of weights as tables (CSV), per channel with ``--perchannel``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from lowbit.graph import io
from lowbit.quark.models.histograms import weight_histograms
from lowbit.quark.onnx.tools import front


def main(arguments: Sequence[str] | None = None) -> int:
    """Write one table a weight."""

    def work() -> None:
        parser = front.make_parser("save_weights_hist", __doc__)
        front.add_files(parser)
        parser.add_argument("--perchannel", action="store_true", help="one table a channel")
        args = front.parse_files(parser, arguments)
        folder = Path(args.output)
        count = weight_histograms(io.load(args.input), folder, per_channel=args.perchannel)
        print(f"save_weights_hist: wrote {count} tables to {folder}")  # noqa: T201

    return front.guarded("save_weights_hist", work)


if __name__ == "__main__":
    sys.exit(main())
