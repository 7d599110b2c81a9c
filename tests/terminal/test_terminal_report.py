"""The result's tables, from reports made by hand."""

from __future__ import annotations

import math

import msgspec
import pytest

from lowbit.planning.plan import FloatNode
from lowbit.report.result import show_comparison, show_result
from lowbit.report.values import Report, Score
from lowbit.scales.parameters import Adjustment

LONG = "/model.22/cv3.2/" + "very/" * 30 + "deep/Conv_output_0"


def score(tensor: str, sqnr_db: float) -> Score:
    return Score(tensor=tensor, sqnr_db=sqnr_db, cosine=0.99, max_error=0.5)


REPORT = Report(
    preset="XINT8",
    target="ryzen-ai-cnn",
    version="0",
    data="12 samples from data.npz",
    calibration_samples=8,
    verification_samples=4,
    held_out=True,
    outputs=(score("y", 20.0), score(LONG, math.inf)),
    layers=tuple(score(f"t{i}", ratio) for i, ratio in enumerate([40, 30, 35, 10, 9, 50])),
    quantized={"activation int8": 10, "weight int8": 7},
    float_nodes=tuple(
        FloatNode(node=f"n{i}", op_type="Softmax", why=f"reason {i % 7}") for i in range(30)
    ),
    adjustments=tuple(
        Adjustment(
            tensor=LONG if i == 3 else f"a{i}", before=0.5, after=1.0, why=f"w{i}", cost_db=cost
        )
        for i, cost in enumerate([None, 0.5, 1.5, 6.02, 0.25, 0.125])
    ),
    notes=("calibrated on random data",),
    size_before=4000,
    size_after=1000,
    seconds={"load": 1.0, "verify": 2.0},
)


@pytest.mark.parametrize("width", [80, 160])
def test_everything_is_told_within_the_width(console, width) -> None:
    screen = console(width)

    show_result(screen, REPORT, "int8.onnx")

    text = screen.file.getvalue()
    assert max(map(len, text.splitlines())) <= width
    for words in (
        "XINT8 for ryzen-ai-cnn",
        "int8.onnx",
        "10 x activation int8",
        "on 8 samples",
        "on 4 samples not calibrated on",
        "4.0 kB -> 1.0 kB (4.00 times smaller)",
        "3.0 s (load 1.0 s, verify 2.0 s)",
        "30 nodes stay in float",
        "2 more reasons",
        "6 scales moved by the target's constraints, the 5 costliest",
        "exact",
        "note: calibrated on random data",
    ):
        assert words in text


def test_the_steepest_falls_come_first_and_rises_not_at_all(console) -> None:
    screen = console(80)

    show_result(screen, REPORT, "int8.onnx")

    lines = screen.file.getvalue().split("SQNR falls most at")[1].split("worst layers")[0]
    assert [
        line.split() for line in lines.splitlines() if line.startswith("t") and "d" not in line
    ] == [
        ["t3", "35.00", "10.00", "25.00"],
        ["t1", "40.00", "30.00", "10.00"],
        ["t4", "10.00", "9.00", "1.00"],
    ]


def test_the_costliest_adjustment_comes_first(console) -> None:
    screen = console(80)

    show_result(screen, REPORT, "int8.onnx")

    rows = screen.file.getvalue().split("cost dB")[1]
    assert rows.index("6.02") < rows.index("1.50") < rows.index("0.50")
    assert "w0" not in rows


def test_a_bare_report_leaves_tables_out(console) -> None:
    screen = console(80)
    bare = msgspec.structs.replace(
        REPORT, layers=(), float_nodes=(), adjustments=(), notes=(), quantized={}, size_after=0
    )

    show_result(screen, bare, "int8.onnx")

    text = screen.file.getvalue()
    for words in ("float\n", "moved", "falls", "worst", "note", "smaller"):
        assert words not in text
    assert "quantized   nothing" in text


def test_a_comparison_tells_outputs_and_layers(console) -> None:
    screen = console(80)

    show_comparison(screen, REPORT)

    text = screen.file.getvalue()
    assert "on 4 samples" in text
    assert "worst layers" in text
    assert "calibrated  " not in text
