"""A sweep over presets as a table in the terminal, and as a page with the trade-off drawn."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

import msgspec
from rich.console import Console, Group
from rich.text import Text

from lowbit.evaluate.accuracy import Accuracy
from lowbit.evaluate.latency import Latency
from lowbit.report.result import LEVEL_COLOURS
from lowbit.report.tables import Name, below, make_table, show, size


class SweepRow(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one model with one preset.

    ``float_share`` is the share of the multiply-adds that stayed in float; ``refused`` says why there
    is no model.
    """

    model: str
    preset: str
    level: str = ""
    figure: str = ""
    sqnr_db: float | None = None
    size_before: int = 0
    size_after: int = 0
    float_share: float | None = None
    seconds: float = 0.0
    latency: Latency | None = None
    accuracy: tuple[Accuracy, ...] = ()
    file: str = ""
    refused: str = ""


def show_sweep(console: Console, rows: Sequence[SweepRow]) -> None:
    """Print each model and preset, and below it what its verdict rests on."""
    table = make_table(
        "models and presets (ms: a run of the float and of the quantized model)",
        "model, preset, and what the verdict rests on",
        "verdict",
        *_FIGURES[1:-1],
        "ms",
        figures=len(_FIGURES) - 1,
    )
    for row in rows:
        level = Text(row.level or "refused", style=LEVEL_COLOURS.get(row.level, "bold red"))
        accuracy, *cells = _cells(row)
        words = [word for word in (row.figure or row.refused, accuracy) if word]
        table.add_row(Group(Name(f"{row.model} {row.preset}"), *map(below, words)), level, *cells)
    show(console, table)


_FIGURES = ("accuracy", "size", "in float", "time", "ms, float and now")


def _accuracy(row: SweepRow) -> str:
    """Return the accuracy and what is lost, surely between two ends: ``71.2 %, -0.4 (-1.1 to 0.3)``."""
    if not row.accuracy:
        return ""
    found = row.accuracy[0]
    unit = f" {found.unit}" if found.unit else ""
    score = f"{found.name} {found.quantized_score:.4g}{unit}"
    return f"{score}, loses {found.gap:.2f} ({found.low:.2f} to {found.high:.2f})"


def _cells(row: SweepRow) -> tuple[str, ...]:
    share = "" if row.float_share is None else f"{row.float_share:.0%}"
    latency = row.latency
    times = "" if latency is None else f"{latency.float_ms:.1f} / {latency.quantized_ms:.1f}"
    return _accuracy(row), size(row.size_after), share, f"{row.seconds:.1f} s", times


_COLOURS = {"good": "#2a9d4a", "usable": "#7fb800", "poor": "#e69500", "ruined": "#d1242f"}
_WIDTH, _HEIGHT, _MARGIN = 720, 340, 56


def sweep_page(rows: Sequence[SweepRow]) -> str:
    """Return a page without any script: the table, and SQNR over size for each model."""
    body = "".join(_drawing(name, rows) for name in dict.fromkeys(row.model for row in rows))
    head = "<tr>" + "".join(f"<th>{w}</th>" for w in _HEADINGS) + "</tr>"
    lines = "".join(_line(row) for row in rows)
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport "
        f"content='width=device-width'><title>lowbit sweep</title><style>{_STYLE}</style>"
        "<h1>Models and presets</h1><div class=wide tabindex=0 role=region aria-label='the table'>"
        f"<table>{head}{lines}</table></div>{body}</html>\n"
    )


_HEADINGS = ("model", "preset", "verdict", "rests on", *_FIGURES)
_STYLE = (
    ":root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;"
    "max-width:70rem;padding:0 1rem}table{border-collapse:collapse;width:100%}"
    "td:nth-child(4){min-width:14rem;overflow-wrap:anywhere}"
    "th,td{text-align:left;vertical-align:top;padding:.3rem .6rem;border-bottom:1px solid #8884}"
    ".wide{overflow-x:auto}svg{width:100%;min-width:600px;height:auto}text{fill:currentColor;font-size:12px}line{stroke:#888}"
)


def _line(row: SweepRow) -> str:
    colour = _COLOURS.get(row.level, "#d1242f")
    verdict = f"<b style=color:{colour}>{html.escape(row.level or 'refused')}</b>"
    cells = (row.figure or row.refused, *_cells(row))
    words = "".join(f"<td>{html.escape(word)}</td>" for word in cells)
    named = f"<td>{html.escape(row.model)}</td><td>{html.escape(row.preset)}</td>"
    return f"<tr>{named}<td>{verdict}</td>{words}</tr>"


def _drawing(model: str, rows: Sequence[SweepRow]) -> str:
    """Return SQNR over size of one model's presets."""
    shown = [
        (row, float(row.sqnr_db))
        for row in rows
        if row.model == model and row.sqnr_db is not None and math.isfinite(row.sqnr_db)
    ]
    if not shown:
        return ""
    sizes = [row.size_after / 1e6 for row, _ in shown]
    ratios = [ratio for _, ratio in shown]
    right, low, high = max(sizes) * 1.15 or 1.0, min(0.0, *ratios), max(*ratios, 20.0) * 1.1
    points = []
    for (row, ratio), megabytes in zip(shown, sizes, strict=True):
        x = _MARGIN + megabytes / right * (_WIDTH - 2 * _MARGIN)
        y = _HEIGHT - _MARGIN - (ratio - low) / (high - low) * (_HEIGHT - 2 * _MARGIN)
        colour = _COLOURS.get(row.level, "#888")
        # Names of points at the right are before them, so that none is cut off.
        beyond, anchor = (-9, "end") if x > _WIDTH / 2 else (9, "start")
        points.append(
            f"<circle cx={x:.1f} cy={y:.1f} r=6 fill={colour}></circle>"
            f"<text x={x + beyond:.1f} y={y + 4:.1f} text-anchor={anchor}>"
            f"{html.escape(row.preset)} {ratio:.1f} dB, {size(row.size_after)}</text>"
        )
    bottom = _HEIGHT - _MARGIN
    axes = (
        f"<line x1={_MARGIN} y1={bottom} x2={_WIDTH - _MARGIN} y2={bottom}></line>"
        f"<line x1={_MARGIN} y1={_MARGIN} x2={_MARGIN} y2={bottom}></line>"
        f"<text x={_WIDTH / 2:.0f} y={_HEIGHT - 18}>size, MB (0 to {right:.1f})</text>"
        f"<text x={_MARGIN} y={_MARGIN - 12}>SQNR, dB ({low:.0f} to {high:.0f})</text>"
    )
    title = f"<h2>{html.escape(model)}: SQNR over size</h2>"
    described = f"SQNR over size of {html.escape(model, quote=True)}; the table has the numbers"
    svg = f"<svg viewBox='0 0 {_WIDTH} {_HEIGHT}' role=img aria-label='{described}'>"
    return f"{title}<div class=wide>{svg}{axes}{''.join(points)}</svg></div>"
