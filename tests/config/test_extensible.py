"""Kinds of values that others add: told apart by their tags, and read back like any other."""

from __future__ import annotations

import importlib.metadata
import math
import subprocess
import sys

import msgspec
import pytest

from lowbit.config import extensible
from lowbit.config.config import QuantConfig
from lowbit.config.extensible import Extensible, convert, decode_json, find_not_finite, tag_of
from lowbit.config.presets import find_preset
from lowbit.config.refinement import LayerReconstruction
from lowbit.config.specs import IntegerSpec
from lowbit.config.transforms import FloatTransform
from lowbit.quark.extension import QuarkMinMse


class Shape(Extensible):
    """A family of kinds."""

    __slots__ = ()


class Circle(Shape, msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="circle"):
    radius: float


class Polygon(Shape, msgspec.Struct, frozen=True, tag="polygon"):
    corners: tuple[tuple[float, float], ...]


class Square(Polygon, frozen=True, tag="square"):
    """A kind that is derived from another kind."""


class Sky(Extensible):
    """A family of which an extension has the only kind."""

    __slots__ = ()


class Drawing(msgspec.Struct, frozen=True):
    shapes: tuple[Shape, ...]
    frame: Shape | None = None


_DRAWING = Drawing((Circle(1.5), Square(((0.0, 1.0),))), frame=Polygon(()))


def test_values_of_any_kind_come_back_from_json() -> None:
    text = msgspec.json.encode(_DRAWING)

    assert [shape["type"] for shape in msgspec.json.decode(text)["shapes"]] == ["circle", "square"]
    assert decode_json(text, Drawing) == _DRAWING
    assert decode_json(text.decode(), Drawing) == _DRAWING


def test_parsed_fields_become_values_and_values_stay() -> None:
    assert convert(msgspec.to_builtins(_DRAWING), Drawing) == _DRAWING
    assert convert({"shapes": [_DRAWING.frame]}, Drawing) == Drawing((Polygon(()),))


@pytest.mark.parametrize("kind", [Circle, Square, QuarkMinMse])
def test_the_tag_is_the_word_in_files(kind: type) -> None:
    expected = {Circle: "circle", Square: "square", QuarkMinMse: "quark-mse"}

    assert tag_of(kind) == expected[kind]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"type": "cone"}, r"'cone' \(known: circle, polygon, square\) - at `\$.shapes\[1\]`"),
        ({"radius": 1.0}, r"Expected an object with a `type`, got \{'radius': 1.0\} - at"),
        ({"type": 3}, r"Expected an object with a `type`, got \{'type': 3\}"),
        ("circle", r"Expected an object with a `type`, got 'circle'"),
        ({"type": "circle", "radius": "a"}, r"got `str` - at `\$.radius` - at `\$.shapes\[1\]`"),
        ({"type": "circle", "radius": 1.0, "x": 1}, r"unknown field `x` - at `\$.shapes\[1\]`"),
        ({"type": "circle"}, r"missing required field `radius` - at `\$.shapes\[1\]`"),
    ],
)
def test_what_is_no_kind_is_named_with_its_place(fields: object, message: str) -> None:
    parsed = {"shapes": [{"type": "circle", "radius": 1.0}, fields]}

    with pytest.raises(msgspec.ValidationError, match=message):
        convert(parsed, Drawing)
    with pytest.raises(msgspec.ValidationError, match=message):
        decode_json(msgspec.json.encode(parsed), Drawing)


def test_kinds_of_one_family_are_unknown_to_others() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"'circle'.*known: .*cross-layer"):
        convert({"type": "circle", "radius": 1.0}, FloatTransform)


def test_a_kind_of_an_installed_extension_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its module is imported when an unknown word is met, and not before."""
    loaded = []

    class Entry:
        def load(self) -> None:
            loaded.append(
                type(
                    "Star",
                    (Sky, msgspec.Struct),
                    {"__annotations__": {"points": int}, "__module__": __name__},
                    tag="star",
                    frozen=True,
                )
            )

    def entries(*, group: str) -> list[Entry]:
        assert group == "lowbit.extensions"
        return [Entry()]

    monkeypatch.setattr(importlib.metadata, "entry_points", entries)
    extensible._load_extensions.cache_clear()
    try:
        assert convert({"shapes": [{"type": "circle", "radius": 1.0}]}, Drawing).shapes
        assert not loaded
        found = convert({"type": "star", "points": 5}, Sky)
    finally:
        extensible._load_extensions.cache_clear()

    assert type(found) is loaded[0]
    assert found.points == 5


def test_quarks_kinds_are_read_in_a_process_that_has_not_imported_them() -> None:
    spec = msgspec.structs.replace(find_preset("XINT8").activation, method=QuarkMinMse(bins=7))
    config = msgspec.structs.replace(find_preset("XINT8"), activation=spec)
    program = (
        "import sys\n"
        "from lowbit.config.config import QuantConfig\n"
        "from lowbit.config.extensible import decode_json\n"
        "assert 'lowbit.quark.extension' not in sys.modules\n"
        "print(decode_json(sys.stdin.read(), QuantConfig).activation.method)\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", program],
        input=msgspec.json.encode(config).decode(),
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.strip() == str(QuarkMinMse(bins=7))
    back = decode_json(msgspec.json.encode(config), QuantConfig)
    assert isinstance(back.activation, IntegerSpec)
    assert back.activation.method == QuarkMinMse(bins=7)


def test_the_number_that_is_not_finite_is_found_anywhere() -> None:
    config = find_preset("A8W8")
    assert find_not_finite(config) is None
    for value in (math.nan, math.inf):
        refined = msgspec.structs.replace(config, refinement=LayerReconstruction(ridge=value))
        assert find_not_finite(refined) == f"refinement.ridge is {value}"
    assert find_not_finite({"a": [(1.0, math.nan)]}, "x") == "x['a'][0][1] is nan"


@pytest.mark.parametrize(
    ("text", "words"), [(b'"\xff"', "not UTF-8"), (b"[" * 100_000, "nested too deeply")]
)
def test_what_is_no_text_is_a_decoding_error(text: bytes, words: str) -> None:
    with pytest.raises(msgspec.DecodeError, match=words):
        decode_json(text, object)
