"""What a search measured, as values, as a sentence, and as a file that may be edited."""

from __future__ import annotations

import json

import msgspec
import pytest
from helpers.three_layers import TO_INT8, config_with, quantize_mixed, three_layers

import lowbit
from lowbit.api.quantize import planned_state
from lowbit.config.mixed_precision import LayerOption, MixedPrecision
from lowbit.errors import ConfigError, OutputError
from lowbit.search.sensitivity_file import (
    LayerSensitivity,
    MixedPrecisionResult,
    read_sensitivities,
    write_sensitivities,
)

ROWS = (
    LayerSensitivity(
        name="first", nodes=("first",), option=1, score=0.25, scores=(0.5, 0.25), changed=True
    ),
    LayerSensitivity(
        name="rest", nodes=("second", "third"), option=0, score=0.75, scores=(0.75,), enabled=False
    ),
)
SEARCH = MixedPrecision(options=(TO_INT8, TO_INT8))


@pytest.fixture(scope="module")
def planned():
    return planned_state(three_layers(), config=config_with())


def test_the_layers_that_changed_are_those_of_the_rows_that_did() -> None:
    result = MixedPrecisionResult(metric="l2", baseline=0.1, score=0.25, layers=ROWS)

    assert result.changed == ("first",)
    assert result.describe() == ("mixed precision: 1 of 3 layers in another format, l2 0.1 -> 0.25")
    noted = msgspec.structs.replace(result, note="measured only")
    assert noted.describe() == f"{result.describe()} (measured only)"


def test_a_result_can_be_written_as_json_and_read_back() -> None:
    result = quantize_mixed(threshold=None).mixed_precision

    assert msgspec.json.decode(msgspec.json.encode(result), type=MixedPrecisionResult) == result


def test_what_is_written_is_read_back_but_for_the_decision(planned, tmp_path) -> None:
    path = tmp_path / "measured.json"

    write_sensitivities(str(path), ROWS, planned, SEARCH)

    assert read_sensitivities(str(path), planned, SEARCH) == tuple(
        msgspec.structs.replace(row, changed=False) for row in ROWS
    )
    document = json.loads(path.read_text())
    assert document["version"] == lowbit.__version__
    assert document["results"][1] == {
        "name": "rest",
        "candidate_nodes": ["second", "third"],
        "score": 0.75,
        "all_config_scores": [0.75],
        "best_config_index": 0,
        "enabled": False,
    }
    assert [file.name for file in tmp_path.iterdir()] == ["measured.json"]


def test_without_a_file_nothing_is_known(planned, tmp_path) -> None:
    assert read_sensitivities(str(tmp_path / "none.json"), planned, SEARCH) is None


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"threshold": 3.0}, True),
        ({"objective": "quality"}, True),
        ({"most": 1, "ranks": (0,), "not_ranks": (1,)}, True),
        ({"workers": 4, "cache": "elsewhere.json", "requantize": True}, True),
        ({"metric": "kl"}, False),
        ({"options": (LayerOption(weight=TO_INT8.weight),)}, False),
        ({"include": ("first",)}, False),
        ({"data_size": 2}, False),
        ({"sharing": "unshare"}, False),
    ],
)
def test_scores_are_known_as_long_as_nothing_changes_that_they_depend_on(
    planned, tmp_path, changes, same
) -> None:
    path = str(tmp_path / "measured.json")
    write_sensitivities(path, ROWS, planned, SEARCH)

    found = read_sensitivities(path, planned, msgspec.structs.replace(SEARCH, **changes))

    assert (found is not None) == same


def test_scores_of_another_model_or_plan_are_not_known(planned, tmp_path) -> None:
    path = str(tmp_path / "measured.json")
    write_sensitivities(path, ROWS, planned, SEARCH)
    renamed = three_layers()
    renamed.graph.node[0].name = "another"
    excluded = msgspec.structs.replace(config_with(), exclude=("third",))

    for other in (
        planned_state(renamed, config=config_with()),
        planned_state(three_layers(), config=excluded),
    ):
        assert read_sensitivities(path, other, SEARCH) is None


@pytest.mark.parametrize("content", ["{}", "", "[1, 2]", '{"version": 3}'])
def test_another_file_is_named(planned, tmp_path, content) -> None:
    path = tmp_path / "measured.json"
    path.write_text(content)

    with pytest.raises(ConfigError, match=r"mixed_precision\.cache .*measured\.json holds no"):
        read_sensitivities(str(path), planned, SEARCH)


def test_a_search_keeps_what_it_measured_and_obeys_what_was_edited(tmp_path) -> None:
    path = tmp_path / "measured.json"
    first = quantize_mixed(cache=str(path)).mixed_precision
    known = json.loads(path.read_text())
    assert [row["name"] for row in known["results"]] == [row.name for row in first.layers]
    for row in known["results"]:
        row["enabled"] = row["name"] != "second"
    path.write_text(json.dumps(known))

    again = quantize_mixed(cache=str(path)).mixed_precision
    other = quantize_mixed(cache=str(path), include=("second",)).mixed_precision

    assert set(again.changed) == {"first", "third"}
    assert other.changed == ("second",)
    path.write_text("{}")
    with pytest.raises(ConfigError, match="holds no sensitivities"):
        quantize_mixed(cache=str(path))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"best_config_index": 2}, "best_config_index is 2, expected 0 to 1"),
        ({"best_config_index": -1}, "best_config_index is -1"),
        ({"candidate_nodes": ["nobody"]}, r"names \['nobody'\], which the model does not have"),
        ({"candidate_nodes": []}, "names nothing"),
        ({"all_config_scores": [0.1, 0.2, 0.3]}, "3 scores for 2 options"),
        ({"score": None}, "Expected `float`"),
    ],
)
def test_rows_edited_to_what_cannot_be_used_are_named(planned, tmp_path, change, words) -> None:
    path = tmp_path / "measured.json"
    write_sensitivities(str(path), ROWS, planned, SEARCH)
    known = json.loads(path.read_text())
    known["results"][0] |= change
    path.write_text(json.dumps(known))

    with pytest.raises(ConfigError, match=words):
        read_sensitivities(str(path), planned, SEARCH)


def test_a_file_that_cannot_be_written_is_named(planned, tmp_path) -> None:
    with pytest.raises(OutputError, match=r"cannot write mixed_precision\.cache"):
        write_sensitivities(str(tmp_path / "no" / "file"), ROWS, planned, SEARCH)
