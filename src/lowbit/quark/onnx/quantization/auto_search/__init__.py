"""Automatic search over configurations: named as in Quark, not built yet."""

from __future__ import annotations

from typing import Any, NoReturn

from lowbit.quark.errors import NotSupportedError

_WAY_OUT = (
    "not supported yet: quantize with several configurations and compare the reports "
    "(lowbit.compare), or take a preset of lowbit's own, whose ranges are searched already"
)


class _NotBuilt:
    """Raises when it is made."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        del args, kwargs
        raise NotSupportedError(f"{type(self).__name__} is {_WAY_OUT}")


class AutoSearch(_NotBuilt):
    """Search over spaces of options."""


class AutoSearchPro(_NotBuilt):
    """Search with a sampler."""


class SearchSpace(_NotBuilt):
    """A space of options."""


class AutoSearchConfig(_NotBuilt):
    """What a search does."""


def generate_all_configs(search_space: Any) -> NoReturn:
    """Raise: search is not built."""
    del search_space
    raise NotSupportedError(f"generate_all_configs is {_WAY_OUT}")


def get_auto_search_config(config_name: str) -> NoReturn:
    """Raise: search is not built."""
    raise NotSupportedError(f"get_auto_search_config({config_name!r}) is {_WAY_OUT}")


__all__ = [
    "AutoSearch",
    "AutoSearchConfig",
    "AutoSearchPro",
    "SearchSpace",
    "generate_all_configs",
    "get_auto_search_config",
]
