"""The result's tables, from reports made by hand."""

from __future__ import annotations

import itertools
import json
import math

import msgspec
import pytest

from lowbit.evaluate.accuracy import Accuracy
from lowbit.evaluate.latency import Latency
from lowbit.planning.plan import FloatNode
from lowbit.report.result import show_budget, show_comparison, show_models, show_result
from lowbit.report.values import (
    Budget,
    BudgetRow,
    Cause,
    Promotion,
    Report,
    Score,
    Step,
    SuggestedFix,
)
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
    layers=tuple(
        msgspec.structs.replace(score(f"t{i}", ratio), upstream_db=before)
        for i, (before, ratio) in enumerate(itertools.pairwise([math.inf, 40, 30, 35, 10, 9, 50]))
    ),
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
    doubts=("calibrated on random data",),
    notes=("one layer was refined",),
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
        "on 4 samples held out of calibration",
        "4.0 kB -> 1.0 kB (4.00 times smaller)",
        "3.0 s (load 1.0 s, verify 2.0 s)",
        "30 nodes stay in float",
        "2 more reasons",
        "6 scales moved by the target's constraints, the 5 costliest",
        "exact",
        "note: calibrated on random data",
        "note: one layer was refined",
    ):
        assert words in text


def test_where_the_error_arises_is_told_with_the_ratio_before_and_after(console) -> None:
    screen = console(80)

    show_result(screen, REPORT, "int8.onnx")

    lines = screen.file.getvalue().split("the error arises at")[1].split("worst layers")[0]
    assert [
        line.split() for line in lines.splitlines() if line.startswith("t") and "d" not in line
    ] == [
        ["t3", "35.00", "10.00"],
        ["t4", "10.00", "9.00"],
        ["t1", "40.00", "30.00"],
        ["t0", "exact", "40.00"],
    ]


def test_the_costliest_adjustment_comes_first(console) -> None:
    screen = console(80)

    show_result(screen, REPORT, "int8.onnx")

    rows = screen.file.getvalue().split("cost dB")[1]
    assert rows.index("6.02") < rows.index("1.50") < rows.index("0.50")
    assert "w0" not in rows


def test_a_bare_report_has_no_empty_tables(console) -> None:
    screen = console(80)
    bare = msgspec.structs.replace(
        REPORT,
        layers=(),
        float_nodes=(),
        adjustments=(),
        doubts=(),
        notes=(),
        quantized={},
        size_after=0,
    )

    show_result(screen, bare, "int8.onnx")

    text = screen.file.getvalue()
    for words in ("in float\n", "moved", "arises", "worst", "note", "smaller"):
        assert words not in text
    assert "quantized   nothing" in text


def test_a_comparison_tells_outputs_and_layers(console) -> None:
    screen = console(80)

    show_comparison(screen, REPORT)

    text = screen.file.getvalue()
    assert "on 4 samples" in text
    assert "worst layers" in text
    assert "calibrated  " not in text


def test_steps_tell_before_after_and_whether_they_were_kept(console) -> None:
    screen = console(100)
    steps = (
        Step(name="bias correction", before=0.0123, after=0.00456, kept=True, note="+4.31 dB"),
        Step(name="equalization", before=0.00456, after=0.005, kept=False, note="-0.40 dB"),
    )

    show_result(screen, msgspec.structs.replace(REPORT, steps=steps, held_out=False), "int8.onnx")

    text = screen.file.getvalue()
    assert "steps tried on held-out samples" in text
    assert "on 4 samples, also calibrated on" in text
    rows = [line.split() for line in text.splitlines() if line.endswith(("kept", "dropped"))]
    assert rows[1:] == [
        ["bias", "correction", "0.0123", "0.00456", "kept"],
        ["equalization", "0.00456", "0.005", "dropped"],
    ]
    assert "  -0.40 dB" in text


def test_a_comparison_tells_accuracy_slices_and_times(console) -> None:
    screen = console(120)
    accuracy = Accuracy(
        name="top1",
        unit="%",
        samples=100,
        float_score=72,
        quantized_score=70.5,
        fused_score=70.25,
        gap=1.5,
        low=-0.1,
        high=3.1,
        tolerance=0.5,
        samples_needed=923,
    )
    latency = Latency(
        float_ms=2,
        quantized_ms=1,
        runs=3,
        threads=1,
        conversion_share=0.1,
        unfused=(),
        verdict="twice as fast",
    )
    report = msgspec.structs.replace(
        REPORT,
        accuracy=(accuracy,),
        latency=latency,
        slices=(score("y[:, 0:4]", 33.0),),
        fused=(score("y", 19.5),),
    )

    show_comparison(screen, report)

    text = screen.file.getvalue()
    lines = [line.split() for line in text.splitlines()]
    assert ["top1", "%", "72.00", "70.50", "70.25", "1.50", "-0.10", "to", "3.10"] in lines
    assert "for a narrower interval than on 4 samples: top1 923 samples for 0.5 %" in text
    assert "slices of outputs" in text
    assert "y[:, 0:4]" in text
    assert "outputs through fused kernels" in text
    assert "twice as fast" in text


# The error budget


def budget(rows=(), **changes) -> Budget:
    plain = {"sqnr_db": 10.0, "samples": 2, "measured": 1, "estimated": 1, "float_sqnr_db": 60.0}
    return Budget(rows=tuple(rows), **{**plain, **changes})


def promotion(**changes) -> Promotion:
    plain = {
        "words": "the 2 worst activations kept in float",
        "tensors": ("a", "b"),
        "sqnr_db": 12.2185,
        "gain_db": 2.2185,
        "noise_recovered": 0.4,
        "config": "{}",
    }
    return Promotion(**{**plain, **changes})


def row(tensor: str, sensitivity: float, **more) -> BudgetRow:
    plain = {"kind": "activation", "op_type": "Conv", "format": "int8", "own_sqnr_db": 31.5}
    return BudgetRow(tensor=tensor, sensitivity=sensitivity, **{**plain, **more})


def test_the_budget_tells_tensors_causes_and_suggested_fixes(console) -> None:
    screen = console(120)
    fixes = (
        SuggestedFix(what="the whole range", config='{"tensors":[]}', sqnr_db=12.5, gain_db=2.5),
        SuggestedFix(what="in float", config="--preset A8W8", sqnr_db=9.0, gain_db=-1.0),
    )
    cause = Cause(name="clipped range", detail="5 % of the values")
    rows = [
        row("r1", 0.825, recovered=0.75, samples=2, causes=(cause,), suggested_fixes=fixes),
        row("r2", 0.05, recovered=-0.125, samples=1),
        row("r3", 0.001),
    ]

    show_budget(screen, budget(rows))

    text = screen.file.getvalue()
    lines = [line.split() for line in text.splitlines()]
    assert "error budget, on 2 samples at 10.00 dB" in text
    # Noise goes down where the tensor in float recovers some, up where its error made up for another's.
    assert ["r1", "(int8)", "31.50", "82.5%", "-75.0%"] in lines
    assert ["r2", "(int8)", "31.50", "5.0%", "+12.5%"] in lines
    assert ["r3", "(int8)", "31.50", "~0.1%"] in lines
    assert "  clipped range: 5 % of the values" in text
    assert ["1", "r1", "the", "whole", "range", "+2.50"] in lines
    assert "tried without gain: r1: in float (-1.00 dB)" in text
    # How to ask for it is printed where it helps.
    assert '  {"tensors":[]}' in text.splitlines()
    assert "--preset A8W8" not in text
    assert "1 tensors are measured (1 of them on 2 samples, the others on one), 1 estimated" in (
        " ".join(text.split())
    )
    assert "promoted" not in text


def test_json_is_never_broken_over_lines(console) -> None:
    screen = console(40)
    line = json.dumps({"tensors": [{"tensor": "/long" * 30, "spec": {"type": "integer"}}]})
    fix = SuggestedFix(what="16 bits", config=line, sqnr_db=12.5, gain_db=2.5)

    show_budget(
        screen,
        budget([row("r1", 0.8, suggested_fixes=(fix,))], promotion=promotion(config=line)),
    )

    assert [text for text in screen.file.getvalue().splitlines() if text.strip() == line] != []
    assert screen.file.getvalue().count(line) == 2


def test_a_long_budget_shows_the_worst(console) -> None:
    screen = console(80)

    show_budget(screen, budget([row(f"t{i}", 1 / (i + 1), samples=1) for i in range(12)]))

    shown = [line.split()[0] for line in screen.file.getvalue().splitlines() if "(int8)" in line]
    assert shown == [f"t{i}" for i in range(8)]
    assert max(map(len, screen.file.getvalue().splitlines())) <= 80


@pytest.mark.parametrize(
    ("rest", "expected"),
    # 10 dB is a noise of 0.1 and 12.2185 dB of 0.06: of 0.1 less 0.05 that is 80 %.
    [(13.0103, "80% of what the tensors listed here add"), (60.0, None), (9.0, None)],
)
def test_what_is_recovered_is_told_of_what_can_be_told_apart(console, rest, expected) -> None:
    screen = console(200)

    show_budget(screen, budget(float_sqnr_db=rest, promotion=promotion()))

    printed = screen.file.getvalue()
    assert "the 2 worst activations kept in float, measured together: 10.00 -> 12.22 dB" in printed
    assert "40% of the noise recovered" in printed
    assert ("listed here add" in printed) == (expected is not None)
    assert (expected or "") in printed
    assert "quantized again" not in printed


def test_promotion_that_makes_it_worse_is_no_help_and_not_to_be_copied(console) -> None:
    screen = console(100)
    worse = promotion(sqnr_db=9.0, gain_db=-1.0, noise_recovered=-0.26, config='{"tensors":[]}')

    show_budget(screen, budget(promotion=worse))

    printed = screen.file.getvalue()
    assert "measured together: 10.00 -> 9.00 dB, no help" in printed
    assert "tensors" not in printed.partition("no help")[2]


def test_a_weight_is_told_by_the_node_that_reads_it(console) -> None:
    screen = console(100)

    rows = [row("onnx::Conv_553", 0.4, kind="weight", node="/features.1/Conv"), row("r1", 0.2)]
    show_budget(screen, budget(rows))

    lines = [line.strip() for line in screen.file.getvalue().splitlines()]
    assert lines[lines.index(next(x for x in lines if x.startswith("onnx::"))) + 1] == (
        "weight of /features.1/Conv"
    )
    assert sum("weight of" in line for line in lines) == 1


def test_a_new_run_with_promoted_tensors_is_told(console) -> None:
    screen = console(200)

    show_budget(screen, budget(promotion=promotion(requantized_sqnr_db=14.0)))

    assert "quantized again with it: 14.00 dB" in screen.file.getvalue()


@pytest.mark.parametrize(("page", "said"), [("", "--report page.html"), ("both.html", "both.html")])
def test_several_models_have_a_row_each_and_a_page(console, page: str, said: str) -> None:
    screen = console(100)

    show_models(screen, {"a.onnx": REPORT, "b.onnx": REPORT}, page)

    lines = screen.file.getvalue().splitlines()
    assert [line.split()[0] for line in lines if ".onnx" in line] == ["a.onnx", "b.onnx"]
    assert f"{said} shows them side by side, tensor by tensor." in lines
