"""How alike two folders of results are, as tables."""

from __future__ import annotations

import math

from rich.console import Console

from lowbit.evaluate import Evaluation, FileScore
from lowbit.terminal.figures import cosine, number
from lowbit.terminal.layout import make_table, show
from lowbit.terminal.names import Name

_FEW = 20
_TITLES = {"cosine": "cosine similarity", "l2": "L2 distance", "psnr": "PSNR dB", "ssim": "SSIM"}


def show_evaluation(console: Console, found: Evaluation, *, everything: bool) -> None:
    """Print mean and worst of each figure, and the files: all, or the most unlike ones."""
    table = make_table(f"{len(found.files)} results", "figure", "mean", "worst", "worst in")
    for column in table.columns[1:3]:
        column.justify, column.no_wrap = "right", True
    for row in found.summary:
        figures = (_shown(row.figure, row.mean), _shown(row.figure, row.worst))
        table.add_row(_TITLES[row.figure], *figures, Name(row.worst_name))
    show(console, table)
    few = not everything and len(found.files) > _FEW
    files = sorted(found.files, key=_unlike)[:_FEW] if few else found.files
    title = f"the {_FEW} most unlike (--all lists every file)" if few else "files"
    rows = make_table(title, "file", "shape", "cosine", "L2", "PSNR dB", "SSIM", figures=5)
    for score in files:
        shape = "x".join(map(str, score.shape)) or "scalar"
        shown = (_shown(figure, getattr(score, figure)) for figure in _TITLES)
        rows.add_row(Name(score.name), shape, *shown)
    show(console, rows)


def _unlike(score: FileScore) -> float:
    return -math.inf if math.isnan(score.cosine) else score.cosine


def _shown(figure: str, value: float) -> str:
    if math.isnan(value):
        return "-"
    if figure == "psnr":
        return "equal" if value == math.inf else f"{value:.2f}"
    return number(value) if figure == "l2" else cosine(value)
