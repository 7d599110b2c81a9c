from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from lowbit.errors import ConfigError
from lowbit.numerics.formats import IntegerFormat
from lowbit.targets import find_target
from lowbit.targets.target import ShiftLimits, Target, read_target

_SMALL = {
    "name": "toy",
    "operators": ["Conv", "Relu"],
    "activation_formats": ["int8"],
    "weight_formats": ["int8", "int4"],
    "power_of_two": True,
    "align": [{"operators": ["Concat"], "rule": "merged"}],
    "fuse": [{"producers": ["Conv"], "consumers": ["Relu"]}],
    "limits": {"read": 5},
}


def _write(tmp_path: Path, content: object) -> Path:
    path = tmp_path / "toy.json"
    path.write_bytes(content if isinstance(content, bytes) else msgspec.json.encode(content))
    return path


def test_a_users_target_is_read_from_its_file(tmp_path: Path) -> None:
    target = find_target(str(_write(tmp_path, _SMALL)))

    assert target.name == "toy"
    assert target.weight_formats == (IntegerFormat.INT8, IntegerFormat.INT4)
    assert target.limits == ShiftLimits(read=5)
    assert target.movers == "follow"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"operatorz": []}, "operatorz"),
        ({"activation_formats": ["int9"]}, "int9"),
        ({"align": [{"operators": [], "rule": "guess"}]}, "guess"),
        ({"limits": {"reed": 3}}, "reed"),
        ({"power_of_two": "yes"}, "power_of_two"),
    ],
)
def test_mistakes_in_a_target_file_are_named(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    path = _write(tmp_path, {**_SMALL, **change})

    with pytest.raises(ConfigError, match=rf"toy\.json.*{message}"):
        read_target(path)


def test_what_is_no_json_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not JSON"):
        read_target(_write(tmp_path, b"name: toy"))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.json: No such file"):
        find_target(str(tmp_path / "none.json"))


def test_unknown_names_get_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'onnxruntime'"):
        find_target("onnxruntim")


def test_a_target_is_a_value_that_survives_a_file(tmp_path: Path) -> None:
    target = find_target("ryzen-ai-cnn")

    assert read_target(_write(tmp_path, target)) == target
    assert isinstance(target, Target)
