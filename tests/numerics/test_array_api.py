"""The array API's names, NumPy's own where it has them."""

from __future__ import annotations

import subprocess
import sys

import array_api_compat
import numpy as np
import pytest

from lowbit.numerics import array_api
from lowbit.numerics.array_api import array_namespace, asarray_like, is_numpy, zeros


class _Other:
    """An array of another library, as far as the array API is concerned."""

    dtype = "of its own"
    device = "somewhere"

    def __array_namespace__(self, api_version: str | None = None) -> _Library:
        del api_version
        return _Library()


class _Library:
    """Says what it was asked for."""

    __name__ = "other"

    def zeros(self, shape: tuple[int, ...], *, dtype: object, device: object) -> tuple[object, ...]:
        return "zeros", shape, dtype, device

    def asarray(self, values: object, *, device: object) -> tuple[object, ...]:
        return "array", values, device


def test_namespace_of_numpy_has_the_names_of_the_array_api() -> None:
    xp, array = array_namespace(np.ones(1)), np.arange(6, dtype=np.float32).reshape(1, 2, 3)
    known = array_api_compat.array_namespace(array)
    for name in ("matrix_transpose", "sum", "max", "abs", "sign"):
        assert np.array_equal(getattr(xp, name)(array), getattr(known, name)(array))
    assert np.array_equal(xp.astype(array, np.int8), known.astype(array, np.int8))
    assert np.array_equal(xp.linalg.diagonal(array), known.linalg.diagonal(array))
    assert np.array_equal(xp.concat([array, array]), known.concat([array, array]))


def test_an_older_numpy_gets_its_names_from_the_compatibility_layer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(array_api, "_HAS_ALL_NAMES", False)
    array = np.ones(1)
    assert array_namespace(array) is array_api_compat.array_namespace(array)


def test_arrays_of_another_library_stay_with_it() -> None:
    other = _Other()
    assert isinstance(array_namespace(other), _Library)
    assert not is_numpy(other)
    assert zeros((2, 3), other) == ("zeros", (2, 3), "of its own", "somewhere")
    assert asarray_like([1], other) == ("array", [1], "somewhere")


def test_arrays_of_numpy_are_its_own() -> None:
    like = np.ones(1, np.float32)
    assert is_numpy(like)
    made = zeros((2, 3), like)
    assert made.dtype == like.dtype
    assert made.shape == (2, 3)
    assert not made.any()
    assert asarray_like(like, like) is like


def test_quantizing_loads_no_compatibility_layer_for_numpy() -> None:
    code = "import sys, lowbit; lowbit.quantize; print(*(m for m in sys.modules if 'f2py' in m))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == ""
