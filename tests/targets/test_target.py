from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from lowbit.config.specs import BLOCKS, FloatSpec, IntegerSpec, Spec
from lowbit.errors import ConfigError
from lowbit.numerics.formats import FloatFormat, IntegerFormat
from lowbit.targets.builtin import BUILTIN
from lowbit.targets.target import OperatorFormats, ShiftLimits, Target, read_target

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
    target = read_target(_write(tmp_path, _SMALL))

    assert target.name == "toy"
    assert target.weight_formats == (IntegerFormat.INT8, IntegerFormat.INT4)
    assert target.limits == ShiftLimits(read=5)
    assert target.fuse[0].clips is None
    assert target.data_movement == "beside_quantized"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"operatorz": []}, "operatorz"),
        ({"activation_formats": ["int9"]}, "int9"),
        ({"align": [{"operators": [], "rule": "guess"}]}, "guess"),
        ({"limits": {"reed": 3}}, "reed"),
        ({"power_of_two": "yes"}, "power_of_two"),
        ({"data_movement": "follow"}, "follow"),
    ],
)
def test_mistakes_in_a_target_file_are_named(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    path = _write(tmp_path, {**_SMALL, **change})

    with pytest.raises(ConfigError, match=rf"toy\.json.*{message}"):
        read_target(path)


def test_a_field_that_must_be_there_is_named(tmp_path: Path) -> None:
    content = {key: value for key, value in _SMALL.items() if key != "operators"}

    with pytest.raises(ConfigError, match=r"toy\.json.*operators"):
        read_target(_write(tmp_path, content))


def test_content_that_is_no_json_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not JSON"):
        read_target(_write(tmp_path, b"name: toy"))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.json: No such file"):
        read_target(tmp_path / "none.json")


@pytest.mark.parametrize("name", BUILTIN)
def test_a_target_is_a_value_that_survives_a_file(tmp_path: Path, name: str) -> None:
    target = BUILTIN[name]

    assert read_target(_write(tmp_path, target)) == target
    assert isinstance(target, Target)


def _with_formats(*formats: OperatorFormats) -> Target:
    return msgspec.structs.replace(BUILTIN["onnxruntime"], name="toy", formats=formats)


def test_the_last_entry_of_an_operators_formats_holds() -> None:
    target = _with_formats(
        OperatorFormats(operators=("Conv", "Gemm"), weight=(IntegerFormat.INT16,)),
        OperatorFormats(operators=("Conv",), weight=(IntegerFormat.INT4, IntegerFormat.INT8)),
    )

    assert target.formats_of("Conv")[1] == (IntegerFormat.INT4, IntegerFormat.INT8)
    assert target.formats_of("Gemm") == (target.activation_formats, (IntegerFormat.INT16,))
    assert target.formats_of("Relu") == (target.activation_formats, target.weight_formats)


@pytest.mark.parametrize(
    ("spec", "name", "expected"),
    [
        (IntegerSpec(format=IntegerFormat.INT8), "ryzen-ai-cnn", True),
        (IntegerSpec(format=IntegerFormat.INT16), "ryzen-ai-cnn", False),
        (FloatSpec(format=FloatFormat.BFLOAT16), "ryzen-ai-cnn", False),
        (FloatSpec(format=FloatFormat.BFLOAT16), "ryzen-ai-float", True),
        (FloatSpec(format=FloatFormat.FLOAT16, scaled=True), "onnxruntime", True),
        (BLOCKS["BFP16"], "ryzen-ai", False),
        (BLOCKS["BFP16"], "ryzen-ai-float", True),
        (BLOCKS["MXINT8"], "onnxruntime", True),
    ],
)
def test_specs_are_taken_in_the_formats_of_a_target(
    spec: Spec, name: str, *, expected: bool
) -> None:
    target = BUILTIN[name]

    assert target.takes(spec, target.activation_formats) is expected


def test_kinds_of_formats_are_taken_by_their_tag() -> None:
    target = msgspec.structs.replace(BUILTIN["ryzen-ai"], format_kinds=("mx",))

    assert target.takes(BLOCKS["MXINT8"], target.activation_formats)
    assert not target.takes(BLOCKS["BFP16"], target.activation_formats)


def test_formats_are_those_of_the_role() -> None:
    spec = IntegerSpec(format=IntegerFormat.INT4)
    target = BUILTIN["onnxruntime"]

    assert target.takes(spec, target.weight_formats)
    assert not target.takes(spec, target.activation_formats)
