"""Gates: figures of a report held against limits."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET

import msgspec
import pytest

from lowbit.analyze.gates import figures_of, read_gate, refuse_failed, to_junit, try_gates
from lowbit.errors import ConfigError, GateError
from lowbit.evaluate.accuracy import Accuracy
from lowbit.evaluate.latency import Latency
from lowbit.report.values import Report, Score


@pytest.fixture
def report() -> Report:
    accuracy = Accuracy(
        name="top1",
        unit="%",
        samples=100,
        float_score=72,
        quantized_score=70.5,
        fused_score=None,
        gap=1.5,
        low=0.1,
        high=2.9,
        tolerance=1,
        samples_needed=900,
    )
    score = Score(tensor="y", sqnr_db=18.0, cosine=0.99, max_error=0.5)
    return Report(
        preset="A8W8",
        target="t",
        version="0",
        data="d",
        calibration_samples=0,
        verification_samples=100,
        held_out=True,
        outputs=(score,),
        accuracy=(accuracy,),
    )


@pytest.mark.parametrize(
    ("text", "failed"),
    [
        ("top1_drop>1", True),
        ("top1_drop > 1.5", False),
        ("top1_drop>=1.5", True),
        ("sqnr<20", True),
        ("sqnr<=17.9", False),
        ("cosine < 9.9e-1", False),
        ("top1<70", False),
        ("top1_drop_high>2", True),
    ],
)
def test_a_gate_fails_when_its_condition_holds(report, text, failed) -> None:
    (outcome,) = try_gates([read_gate(text)], report)

    assert outcome.failed is failed


def test_what_is_no_number_fails() -> None:
    assert read_gate("sqnr<3").fails(math.nan)


@pytest.mark.parametrize(
    "text", ["", "sqnr", "sqnr=3", "sqnr<x", "3>sqnr", "sqnr<1e", "sqnr<3 or 1"]
)
def test_other_forms_are_refused(text) -> None:
    with pytest.raises(ConfigError, match="not of the form"):
        read_gate(text)


def test_a_figure_that_was_not_measured_is_an_error(report) -> None:
    with pytest.raises(ConfigError, match="'time_ratio', which this comparison does not have"):
        try_gates([read_gate("time_ratio>1")], report)


def test_all_failed_gates_are_named(report) -> None:
    outcomes = try_gates(
        [read_gate("top1_drop>1"), read_gate("sqnr<20"), read_gate("sqnr<1")], report
    )

    with pytest.raises(GateError, match=r"2 of 3 gates failed: top1_drop>1 .*1\.5.*sqnr<20 .*18"):
        refuse_failed(outcomes)


def test_junit_has_a_case_for_each_gate(report) -> None:
    outcomes = try_gates([read_gate("top1_drop>1"), read_gate("sqnr<1")], report)

    suite = ET.fromstring(to_junit(outcomes, "int8.onnx", 2.5))  # noqa: S314

    assert (suite.get("tests"), suite.get("failures"), suite.get("time")) == ("2", "1", "2.500")
    first, second = suite.findall("testcase")
    assert first.find("failure").get("message") == "top1_drop>1: top1_drop is 1.5"
    assert second.find("failure") is None


def test_every_figure_of_a_report_can_be_named(report) -> None:
    def score(sqnr_db: float, cosine: float, max_error: float) -> Score:
        return Score(tensor="t", sqnr_db=sqnr_db, cosine=cosine, max_error=max_error)

    latency = Latency(
        float_ms=2.0,
        quantized_ms=3.0,
        runs=1,
        threads=1,
        conversion_share=0.0,
        unfused=(),
        verdict="",
    )
    whole = msgspec.structs.replace(
        report,
        slices=(score(15.0, 0.9, 2.0), score(40.0, 1.0, 0.1)),
        fused=(score(17.0, 0.98, 0.5),),
        layers=(score(30.0, 1.0, 0.1), score(12.0, 1.0, 0.1)),
        size_before=400,
        size_after=100,
        latency=latency,
    )

    assert figures_of(whole) == {
        "sqnr": 15.0,
        "cosine": 0.9,
        "max_error": 2.0,
        "fused_sqnr": 17.0,
        "layer_sqnr": 12.0,
        "size_ratio": 0.25,
        "time_ratio": 1.5,
        "quantized_ms": 3.0,
        "top1": 70.5,
        "top1_drop": 1.5,
        "top1_drop_high": 2.9,
    }
    assert set(figures_of(report)) == {
        "sqnr",
        "cosine",
        "max_error",
        "top1",
        "top1_drop",
        "top1_drop_high",
    }


def test_gates_that_are_open_refuse_nothing(report) -> None:
    refuse_failed(try_gates([read_gate("sqnr<1")], report))
    refuse_failed(())


def test_a_mistyped_figure_names_the_nearest(report) -> None:
    with pytest.raises(ConfigError, match=r"names 'sqrn'.*did you mean 'sqnr'.*needs --labels"):
        try_gates([read_gate("sqrn<3")], report)


def test_of_a_report_without_outputs_every_gate_fails(report) -> None:
    empty = msgspec.structs.replace(report, outputs=())

    (outcome,) = try_gates([read_gate("cosine<0.1")], empty)

    assert outcome.failed
