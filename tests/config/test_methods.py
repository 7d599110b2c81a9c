from __future__ import annotations

import msgspec
import pytest

from lowbit.config.methods import BY_NAME, Method


@pytest.mark.parametrize("name", BY_NAME)
def test_every_method_is_written_and_read_by_its_name(name: str) -> None:
    method = BY_NAME[name]()

    encoded = msgspec.json.encode(method)

    assert msgspec.json.decode(encoded)["type"] == name
    assert msgspec.json.decode(encoded, type=Method) == method


def test_a_misspelt_setting_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="percentil"):
        msgspec.json.decode(b'{"type": "percentile", "percentil": 99}', type=Method)


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="bogus"):
        msgspec.json.decode(b'{"type": "bogus"}', type=Method)
