import json
import math

from lowbit.numerics.metrics import SignalNoise
from lowbit.report.values import Report, Score, count_formats, scores


def _report(*ratios: float) -> Report:
    layers = tuple(
        Score(tensor=f"t{k}", sqnr_db=ratio, cosine=1.0, max_error=0.0)
        for k, ratio in enumerate(ratios)
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


def test_the_steepest_falls_come_first_and_rises_are_none() -> None:
    report = _report(math.inf, math.inf, 50.0, math.inf, 40.0, 40.0, 10.0, 12.0)

    assert [s.tensor for s in report.steepest_drops()] == ["t2", "t4", "t6"]


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
