"""A report as a value: what it tells of itself, and its JSON."""

from __future__ import annotations

import itertools
import json
import math

import msgspec
import pytest

from lowbit.numerics.metrics import SignalNoise
from lowbit.report.values import Report, Score, count_formats, scores


def _report(*ratios: float) -> Report:
    layers = tuple(
        Score(tensor=f"t{k}", sqnr_db=ratio, cosine=1.0, max_error=0.0, upstream_db=before)
        for k, (before, ratio) in enumerate(itertools.pairwise((math.inf, *ratios)))
    )
    return Report(
        preset="A8W8",
        target="onnxruntime",
        version="0",
        data="",
        calibration_samples=1,
        verification_samples=1,
        held_out=True,
        outputs=layers[-1:],
        layers=layers,
    )


def test_where_most_noise_is_added_comes_first_and_where_it_becomes_less_not_at_all() -> None:
    report = _report(math.inf, math.inf, 50.0, math.inf, 40.0, 40.0, 10.0, 12.0)

    assert [s.tensor for s in report.error_sources()] == ["t6", "t4", "t2"]
    assert report.layers[6].added_noise == pytest.approx(0.1 - 0.0001)


def test_a_layer_of_which_nothing_before_is_known_is_no_source_of_error() -> None:
    lone = Score(tensor="t", sqnr_db=3.0, cosine=1.0, max_error=0.0)

    assert lone.added_noise == 0.0


def test_worst_layers_are_those_of_the_lowest_ratio() -> None:
    assert [s.tensor for s in _report(30.0, 10.0, 20.0).worst_layers(2)] == ["t1", "t2"]


def test_json_has_null_for_an_infinite_ratio() -> None:
    document = json.loads(_report(math.inf).to_json())

    assert document["layers"][0]["sqnr_db"] is None
    assert document["preset"] == "A8W8"


def test_scores_keep_their_order() -> None:
    made = scores({"b": SignalNoise(signal=100.0, noise=1.0), "a": SignalNoise()})

    assert [s.tensor for s in made] == ["b", "a"]
    assert made[0].sqnr_db == 20.0


def test_formats_are_counted_in_order_of_appearance() -> None:
    assert count_formats(["x", "y", "x"]) == {"x": 2, "y": 1}


def test_the_worst_output_is_told_and_the_worst_slice() -> None:
    report = _report(30.0, 20.0)
    slices = tuple(
        Score(tensor=f"y[:, {k}]", sqnr_db=ratio, cosine=1.0, max_error=0.0)
        for k, ratio in enumerate([15.0, 45.0])
    )

    sliced = msgspec.structs.replace(report, slices=slices)

    assert (report.sqnr_db, report.worst_slice_db) == (20.0, 20.0)
    assert (sliced.sqnr_db, sliced.worst_slice_db) == (20.0, 15.0)


def test_without_outputs_nothing_is_known() -> None:
    report = msgspec.structs.replace(_report(30.0), outputs=())

    assert math.isnan(report.sqnr_db)
    assert math.isnan(report.worst_slice_db)


def test_figures_are_those_of_the_sums() -> None:
    # (3, 4) against (3, 3): signal 25, noise 1, cosine 21 / (5 * sqrt(18)).
    made = Score.of(
        "y", SignalNoise(signal=25.0, noise=1.0, other=18.0, product=21.0, max_error=1.0)
    )

    assert made.sqnr_db == pytest.approx(10 * math.log10(25))
    assert made.cosine == pytest.approx(21 / (5 * math.sqrt(18)))
    assert (made.tensor, made.max_error) == ("y", 1.0)


def test_json_holds_every_field_and_is_valid() -> None:
    report = msgspec.structs.replace(_report(math.nan, -math.inf), seconds={"load": 0.5})

    document = json.loads(
        report.to_json(), parse_constant=lambda word: pytest.fail(f"{word} is no JSON")
    )

    assert set(document) == set(Report.__struct_fields__)
    assert [layer["sqnr_db"] for layer in document["layers"]] == [None, None]
    assert document["seconds"] == {"load": 0.5}
