"""Powers of float32 numbers that are the same on every processor."""

from __future__ import annotations

import numpy as np

from lowbit.numerics.formats import FloatArray


def float32_power(base: FloatArray, exponent: float) -> FloatArray:
    """Return ``base`` to the float32 nearest to ``exponent``, rounded once, as the C library's powf does.

    NumPy's own power of float32 differs in its last bit where the processor has AVX-512.
    """
    wide = np.power(np.asarray(base, np.float64), float(np.float32(exponent)))
    return wide.astype(np.float32)
