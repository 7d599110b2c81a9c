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
from lowbit.report.tables import Name, below, make_table, number, show, size


class SweepRow(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one model with one preset.

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
        "preset, and what the verdict rests on",
        "verdict",
        *_FIGURES[1:-1],
        "ms",
        figures=len(_FIGURES) - 1,
    )
    model = ""
    for row in rows:
        if row.model != model:
            table.add_row(Name(row.model, style="bold"))
            model = row.model
        level = Text(row.level or "refused", style=LEVEL_COLOURS.get(row.level, "bold red"))
        accuracy, *cells = _cells(row)
        words = [word for word in (row.figure or row.refused, accuracy) if word]
        table.add_row(Group(Name(row.preset), *map(below, words)), level, *cells)
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
    times = (
        "" if latency is None else f"{number(latency.float_ms)} / {number(latency.quantized_ms)}"
    )
    return _accuracy(row), size(row.size_after), share, f"{row.seconds:.1f} s", times


_COLOURS = {"good": "#2a9d4a", "usable": "#7fb800", "poor": "#e69500", "ruined": "#d1242f"}
_WIDTH, _HEIGHT, _MARGIN = 720, 340, 56


def sweep_page(rows: Sequence[SweepRow]) -> str:
    """Return a page without any script: the table, and SQNR over size for each model."""
    body = "".join(_drawing(name, rows) for name in dict.fromkeys(row.model for row in rows))
    cells = [_line(row) for row in rows]
    # A column that no row fills, such as accuracy without labels, is left out.
    filled = [any(row[i] for row in cells) for i in range(len(_HEADINGS))]
    head = "".join(f"<th>{w}</th>" for w, shown in zip(_HEADINGS, filled, strict=True) if shown)
    lines = "".join(
        f"<tr>{''.join(cell or '<td></td>' for cell, shown in zip(row, filled, strict=True) if shown)}</tr>"
        for row in cells
    )
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport "
        f"content='width=device-width'><title>lowbit sweep</title><style>{_STYLE}</style>"
        "<h1>Models and presets</h1><div class=wide tabindex=0 role=region aria-label='the table'>"
        f"<table><tr>{head}</tr>{lines}</table></div>{body}</html>\n"
    )


_HEADINGS = ("model", "preset", "verdict", *_FIGURES, "the verdict rests on")
_STYLE = (
    ":root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;"
    "max-width:84rem;padding:0 1rem}table{border-collapse:collapse;width:100%}"
    "th,td{text-align:left;vertical-align:top;padding:.3rem .6rem;border-bottom:1px solid #8884;white-space:nowrap}"
    "td:last-child{min-width:12rem;white-space:normal;overflow-wrap:anywhere}h2{overflow-wrap:anywhere}"
    "td.accuracy{min-width:9rem;white-space:normal}"
    ".wide{overflow-x:auto}svg{width:100%;max-width:60rem;height:auto}text{fill:currentColor;font-size:13px}"
    ".axis{stroke:#888}.grid{stroke:#8883}@media(max-width:600px){text{font-size:20px}body{margin:1rem auto;padding:0 .6rem}}"
)


def _line(row: SweepRow) -> tuple[str, ...]:
    """Return the cells of a row; an empty one is an empty word."""
    colour = _COLOURS.get(row.level, "#d1242f")
    verdict = f"<td><b style=color:{colour}>{html.escape(row.level or 'refused')}</b></td>"
    words = (row.model, row.preset, *_cells(row), row.figure or row.refused)
    cells = (f"<td>{html.escape(word)}</td>" if word else "" for word in words)
    model, preset, accuracy, *rest = cells
    return model, preset, verdict, accuracy.replace("<td>", "<td class=accuracy>", 1), *rest


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
    points, lowest = [], math.inf
    for (row, ratio), megabytes in sorted(
        zip(shown, sizes, strict=True), key=lambda point: point[0][1]
    ):
        x = _MARGIN + megabytes / right * (_WIDTH - 2 * _MARGIN)
        y = _HEIGHT - _MARGIN - (ratio - low) / (high - low) * (_HEIGHT - 2 * _MARGIN)
        colour = _COLOURS.get(row.level, "#888")
        # Names of points at the right are before them, so that none is cut off.
        lowest = min(y + 4, lowest - 18)  # no name over another
        beyond, anchor = (-9, "end") if x > _WIDTH / 2 else (9, "start")
        points.append(
            f"<circle cx={x:.1f} cy={y:.1f} r=6 fill={colour}></circle>"
            f"<text x={x + beyond:.1f} y={lowest:.1f} text-anchor={anchor}>"
            f"{html.escape(row.preset)} {ratio:.1f} dB, {size(row.size_after)}</text>"
        )
    bottom = _HEIGHT - _MARGIN
    axes = (
        f"<line class=axis x1={_MARGIN} y1={bottom} x2={_WIDTH - _MARGIN} y2={bottom}></line>"
        f"<line class=axis x1={_MARGIN} y1={_MARGIN} x2={_MARGIN} y2={bottom}></line>"
        f"<text x={_WIDTH - _MARGIN} y={_HEIGHT - 8} text-anchor=end>size, MB</text>"
        f"<text x={_MARGIN} y={_MARGIN - 22}>SQNR, dB</text>{_ticks(right, low, high)}"
    )
    title = f"<h2>{html.escape(model)}: SQNR over size</h2>"
    described = f"SQNR over size of {html.escape(model, quote=True)}; the table has the numbers"
    svg = f"<svg viewBox='0 0 {_WIDTH} {_HEIGHT}' role=img aria-label='{described}'>"
    return f"{title}<div class=wide>{svg}{axes}{''.join(points)}</svg></div>"


def _ticks(right: float, low: float, high: float) -> str:
    """Return round numbers along each axis, with lines across for those of SQNR."""
    words, bottom = [], _HEIGHT - _MARGIN
    for value in _round_numbers(low, high):
        y = bottom - (value - low) / (high - low) * (_HEIGHT - 2 * _MARGIN)
        words.append(
            f"<line class=grid x1={_MARGIN} y1={y:.0f} x2={_WIDTH - _MARGIN} y2={y:.0f}></line>"
            f"<text x={_MARGIN - 8} y={y + 4:.0f} text-anchor=end>{value:g}</text>"
        )
    for value in _round_numbers(0.0, right):
        x = _MARGIN + value / right * (_WIDTH - 2 * _MARGIN)
        words.append(f"<text x={x:.0f} y={bottom + 20} text-anchor=middle>{value:g}</text>")
    return "".join(words)


def _round_numbers(low: float, high: float) -> list[float]:
    """Return three to six multiples of 1, 2 or 5 times a power of ten between two ends."""
    power = 10.0 ** math.floor(math.log10(high - low))
    step = next(s for s in (power / 5, power / 2, power, 2 * power) if (high - low) / s < 6)
    first, last = math.ceil(low / step), math.floor(high / step)
    return [float(f"{k * step:.6g}") for k in range(first, last + 1)]
