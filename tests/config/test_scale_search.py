"""The search for scales as a value: kept in files, with a bound that is named."""

import msgspec
import pytest

from lowbit.config.config import QuantConfig
from lowbit.config.extensible import decode_json
from lowbit.config.presets import find_preset
from lowbit.config.scale_search import ScaleSearch
from lowbit.errors import ConfigError


@pytest.mark.parametrize("search", [ScaleSearch(), ScaleSearch(samples=3), None])
def test_a_configuration_with_a_search_survives_json(search: ScaleSearch | None) -> None:
    config = msgspec.structs.replace(find_preset("A8W8"), scale_search=search)

    assert decode_json(msgspec.json.encode(config), QuantConfig) == config


def test_a_search_needs_data() -> None:
    config = QuantConfig(activation=None, weight=None, scale_search=ScaleSearch())

    assert config.needs_data == "what helps is measured"


def test_no_samples_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"scale_search.samples is 0; it must be at least 1"):
        ScaleSearch(samples=0)
