"""How alike the results of two models are: ``evaluate BASELINE_FOLDER QUANTIZED_FOLDER``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from lowbit.evaluate import evaluate
from lowbit.quark.onnx.tools import front

_LINES = (
    ("cosine", "cos similarity", "Min"),
    ("l2", "l2 distance", "Max"),
    ("psnr", "psnr", "Min"),
    ("ssim", "ssim", "Min"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print mean and worst of each figure, in Quark's eight lines."""

    def work() -> None:
        parser = front.make_parser("evaluate", __doc__)
        folders = ("baseline_results_folder", "quantized_results_folder")
        for name in folders:
            front.add_word(parser, name, [f"--{name}"], "a folder of .npy, .npz, .png or .jpg")
        args = front.parse(parser, arguments, *folders)
        found = evaluate(args.baseline_results_folder, args.quantized_results_folder)
        by_figure = {row.figure: row for row in found.summary}
        for figure, words, worst in _LINES:
            if figure in by_figure:
                row = by_figure[figure]
                print(f"Mean {words}: {row.mean}\n{worst} {words}: {row.worst}")  # noqa: T201

    return front.guarded("evaluate", work)


if __name__ == "__main__":
    sys.exit(main())
