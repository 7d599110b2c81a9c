"""The functions of an array's library by their names in the array API: NumPy's, PyTorch's or another's."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any

_HAS_ALL_NAMES = hasattr(np, "astype")
"""NumPy has them from 2.1 on."""


def array_namespace(array: Array) -> Any:
    """Return the functions for an array.

    Those of a recent NumPy are NumPy itself. The compatibility layer looks at every name of NumPy when it
    is loaded, and so loads its Fortran compiler and its masked arrays: a fifth of all imports.
    """
    if isinstance(array, np.ndarray) and _HAS_ALL_NAMES:
        return np
    import array_api_compat

    return array_api_compat.array_namespace(array)


def is_numpy(array: Array) -> bool:
    """Whether an array is one of NumPy's, for which some things can be done faster."""
    return isinstance(array, np.ndarray)


def zeros(shape: tuple[int, ...], like: Array) -> Array:
    """Return zeros of the same library and type as another array, where that one is."""
    if is_numpy(like):
        return np.zeros(shape, like.dtype)
    import array_api_compat

    return array_namespace(like).zeros(
        shape, dtype=like.dtype, device=array_api_compat.device(like)
    )


def asarray_like(values: Array, like: Array) -> Array:
    """Return an array of NumPy's as one of the library of another, where that one is."""
    if is_numpy(like):
        return np.asarray(values)
    import array_api_compat

    return array_namespace(like).asarray(values, device=array_api_compat.device(like))
