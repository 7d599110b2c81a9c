"""The page of a sweep shows every row, and draws those that can be drawn."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lowbit.report.sweep_page import SweepRow, _round_numbers, show_sweep, sweep_page

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
    assert ">40</text>" in drawing


def test_the_terminal_names_verdicts_and_refusals(console) -> None:
    screen = console(200)

    show_sweep(screen, ROWS)

    text = screen.file.getvalue()
    for word in ("usable", "good", "refused", "nothing would be quantized"):
        assert word in text


def test_the_terminal_names_each_model_once_and_every_preset_whole(console) -> None:
    screen = console(80)
    rows = [
        SweepRow(model=model, preset=preset, level="good", figure="y: SQNR 43 dB", sqnr_db=43.0)
        for model in ("mobilenet_v2.onnx", "squeezenet1_1.onnx")
        for preset in ("U8S8_PERCHANNEL", "XINT8")
    ]

    show_sweep(screen, rows)

    text = screen.file.getvalue()
    assert text.count("mobilenet_v2.onnx") == text.count("squeezenet1_1.onnx") == 1
    assert text.count("U8S8_PERCHANNEL") == 2


@given(st.floats(-30, 0), st.floats(0.001, 5000))
def test_numbers_along_an_axis_are_round_few_and_inside(low: float, length: float) -> None:
    numbers = _round_numbers(low, low + length)

    assert 2 <= len(numbers) <= 6
    assert low - 1e-6 * length <= numbers[0] < numbers[-1] <= low + length * (1 + 1e-6)
    steps = np.diff(numbers)
    leading = steps / 10.0 ** np.floor(np.log10(steps * (1 + 1e-6)))
    np.testing.assert_allclose(steps, steps[0], rtol=1e-3)
    assert min(abs(leading[0] - digit) for digit in (1, 2, 5)) < 0.01
