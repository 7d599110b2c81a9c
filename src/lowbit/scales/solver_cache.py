"""A cache of solved parameters, for candidates that differ in a few layers."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar

import onnx_ir as ir

from lowbit.numerics.affine import QParams
from lowbit.numerics.formats import FloatArray

T = TypeVar("T")


class SolverCache:
    """Results by what they depend on; several threads may use it.

    ``room`` is how many bytes of stored weights may be kept.
    """

    def __init__(self, room: int = 0) -> None:
        self._known: dict[Hashable, object] = {}
        self._room = room

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return a result, made once."""
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]  # type: ignore[return-value]

    def stored(self, key: Hashable, make: Callable[[], FloatArray]) -> FloatArray:
        """Return what is stored of a constant, kept while there is room."""
        found = self._known.get(key)
        if found is not None:
            return found  # type: ignore[return-value]
        made = make()
        if made.nbytes <= self._room:
            self._room -= made.nbytes
            self._known[key] = made
        return made


class ConstantsCache:
    """Solved parameters of the constants of one model, the last one asked for.

    Candidates that differ in what activations become share it: constants depend on no statistics, unless
    errors of weights count by what they multiply.
    """

    def __init__(self) -> None:
        self._model: ir.Model | None = None
        self._known = SolverCache()

    def of(self, model: ir.Model) -> SolverCache:
        """Return what is known of a model."""
        if model is not self._model:
            self._model, self._known = model, SolverCache()
        return self._known


def as_key(params: QParams) -> Hashable:
    """Return parameters as a key."""
    numbers = (params.scale.tobytes(), params.zero_point.tobytes())
    return (*numbers, params.format, params.axis, params.group_size, params.length)
