"""Mixed precision as a value: what cannot be is named when it is made."""

from __future__ import annotations

import msgspec
import pytest

from lowbit.config.config import QuantConfig
from lowbit.config.extensible import decode_json
from lowbit.config.mixed_precision import (
    LayerOption,
    MixedPrecision,
    PrecisionSearch,
    Subgraph,
)
from lowbit.config.specs import AccumulatorBias, IntegerSpec
from lowbit.errors import ConfigError
from lowbit.numerics.formats import IntegerFormat

_INT16 = IntegerSpec(format=IntegerFormat.INT16)
_OPTION = LayerOption(weight=_INT16)


@pytest.mark.parametrize("field", ["inputs", "weight", "bias", "outputs"])
def test_an_option_needs_one_spec(field: str) -> None:
    spec = AccumulatorBias() if field == "bias" else _INT16

    option = LayerOption(**{field: spec})

    assert getattr(option, field) == spec
    with pytest.raises(ConfigError, match="changes nothing: give it a spec"):
        LayerOption(layers=("conv1",))


def test_without_options_there_is_nothing_to_choose_from() -> None:
    with pytest.raises(ConfigError, match="nothing to choose from: give it an option"):
        MixedPrecision(options=())


@pytest.mark.parametrize(
    ("field", "value", "least"),
    [("output", -1, 0), ("data_size", 0, 1), ("most", 0, 1), ("workers", 0, 1)],
)
def test_numbers_below_the_least_are_named(field: str, value: int, least: int) -> None:
    message = f"mixed_precision.{field} is {value}; it must be at least {least}"

    with pytest.raises(ConfigError, match=message):
        MixedPrecision(options=(_OPTION,), **{field: value})
    assert getattr(MixedPrecision(options=(_OPTION,), **{field: least}), field) == least


def test_a_value_with_every_field_survives_json() -> None:
    mixed = MixedPrecision(
        options=(_OPTION, LayerOption(inputs=_INT16, bias=AccumulatorBias(), layers=("c",))),
        op_types=("Conv",),
        include=("a",),
        exclude=("b",),
        subgraphs=(Subgraph(name="head", start=("s",), end=("e",)),),
        metric="kl",
        threshold=None,
        objective="quality",
        output=2,
        data_size=3,
        most=4,
        ranks=(0, 2),
        not_ranks=(1,),
        unshared_inputs=True,
        sharing="unshare",
        requantize=True,
        cache="kept.json",
        workers=2,
    )
    defaults = MixedPrecision(options=mixed.options)

    assert decode_json(msgspec.json.encode(mixed), PrecisionSearch) == mixed
    unchanged = [f for f in mixed.__struct_fields__ if getattr(mixed, f) == getattr(defaults, f)]
    assert unchanged == ["options"], "every field is to be tried with a value of its own"


@pytest.mark.parametrize(
    ("field", "value"),
    [("metric", "mse"), ("objective", "size"), ("sharing", "both"), ("mostt", 1)],
)
def test_words_that_are_not_known_are_refused_in_files(field: str, value: object) -> None:
    fields = {"type": "sensitivity", "options": [msgspec.to_builtins(_OPTION)]}

    assert decode_json(msgspec.json.encode(fields), PrecisionSearch).options == (_OPTION,)
    with pytest.raises(msgspec.ValidationError, match=field):
        decode_json(msgspec.json.encode({**fields, field: value}), PrecisionSearch)


class _Own(PrecisionSearch, msgspec.Struct, frozen=True, tag="test-own-search"):
    """A search of one's own."""

    layers: tuple[str, ...]

    def strategy(self) -> str:
        return f"take {', '.join(self.layers)}"


def test_a_search_of_ones_own_is_read_back_and_says_its_strategy() -> None:
    config = QuantConfig(activation=None, weight=_INT16, mixed_precision=_Own(("a", "b")))

    back = decode_json(msgspec.json.encode(config), QuantConfig)

    assert back == config
    assert back.mixed_precision.strategy() == "take a, b"
    # The package's own is known to it.
    assert MixedPrecision(options=(_OPTION,)).strategy() is None
