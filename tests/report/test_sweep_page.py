"""The page of a sweep shows every row, and draws those that can be drawn."""

from __future__ import annotations

from lowbit.report.sweep_page import SweepRow, show_sweep, sweep_page

ROWS = (
    SweepRow(model="<m>.onnx", preset="A8W8", level="usable", figure="y: SQNR 17 dB", sqnr_db=17.0),
    SweepRow(model="<m>.onnx", preset="BF16", level="good", figure="y: SQNR 43 dB", sqnr_db=43.0),
    SweepRow(model="<m>.onnx", preset="W4", refused="nothing would be quantized"),
)


def test_rows_are_listed_and_those_with_a_figure_drawn() -> None:
    page = sweep_page(ROWS)

    assert page.count("<tr>") == 1 + len(ROWS)
    assert page.count("<circle") == 2
    assert "nothing would be quantized" in page
    assert "<m>" not in page


def test_columns_that_no_row_fills_are_left_out() -> None:
    page = sweep_page(ROWS)

    assert "<th>accuracy</th>" not in page
    assert "<th>ms, float and now</th>" not in page
    heads = page.partition("</tr>")[0].count("<th>")
    assert page.count("<td>") == heads * len(ROWS)


def test_axes_have_numbers() -> None:
    drawing = sweep_page(ROWS).partition("<svg")[2]

    assert ">0</text>" in drawing
    assert f">{43 * 1.1:.0f}</text>" in drawing


def test_the_terminal_names_verdicts_and_refusals(console) -> None:
    screen = console(200)

    show_sweep(screen, ROWS)

    text = screen.file.getvalue()
    for word in ("usable", "good", "refused", "nothing would be quantized"):
        assert word in text
