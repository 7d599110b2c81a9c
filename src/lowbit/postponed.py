"""Modules that libraries import at once and hardly ever use, loaded on first use instead."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
import types
from typing import Any


class _Postponed(types.ModuleType):
    """A module that runs when something in it is first asked for, and is an ordinary one from then on.

    ``importlib.util.LazyLoader`` does not do: another import of the module is enough to load it.
    """

    def __getattr__(self, name: str) -> Any:
        spec = self.__spec__
        self.__class__ = types.ModuleType  # type: ignore[assignment]
        if spec is None or spec.loader is None:
            raise AttributeError(name)
        if spec.submodule_search_locations is not None:
            self.__path__ = spec.submodule_search_locations
        spec.loader.exec_module(self)
        return getattr(self, name)


def postpone(name: str) -> None:
    """Load the module ``name`` when it is first used. Does nothing if it is loaded, or missing.

    Whoever imports it gets the same module as ever.
    """
    spec = None if name in sys.modules else _find(name)
    if spec is None or spec.loader is None:
        return
    module = _Postponed(name)
    module.__spec__, module.__loader__, module.__file__ = spec, spec.loader, spec.origin
    module.__package__ = spec.parent
    sys.modules[name] = module


def _find(name: str) -> importlib.machinery.ModuleSpec | None:
    """Return where a module is, without loading the package it is in."""
    package, _, _ = name.rpartition(".")
    if not package:
        return importlib.util.find_spec(name)
    outer = _find(package)
    if package in sys.modules or outer is None or outer.submodule_search_locations is None:
        return None
    return importlib.machinery.PathFinder.find_spec(name, outer.submodule_search_locations)
