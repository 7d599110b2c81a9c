"""Run a model on data and write histograms of what it computes as tables (CSV)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from lowbit.graph import io
from lowbit.quark.models.histograms import tensor_histograms
from lowbit.quark.onnx.tools import front


def main(arguments: Sequence[str] | None = None) -> int:
    """Write one table a tensor."""

    def work() -> None:
        parser = front.make_parser("save_tensor_hist", __doc__)
        front.add_word(parser, "input", ["--input_model", "--input"], "the model")
        front.add_word(parser, "data", ["--data_path"], "a folder of .npy files or pictures")
        front.add_word(parser, "output", ["--output_path", "--output"], "a folder for the tables")
        args = front.parse(parser, arguments, "input", "data", "output")
        count = tensor_histograms(io.load(args.input), args.data, Path(args.output))
        print(f"save_tensor_hist: wrote {count} tables to {args.output}")  # noqa: T201

    return front.guarded("save_tensor_hist", work)


if __name__ == "__main__":
    sys.exit(main())
