"""Scales of the form m / 2**n, with 16 bits for m: what AMD Quark calls Int16Scale."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from lowbit.calibrate.observers import ObserverSpec, observer_of
from lowbit.calibrate.statistics import TensorStats
from lowbit.config.methods import Method, MinMax
from lowbit.config.specs import IntegerSpec
from lowbit.numerics.affine import QParams
from lowbit.numerics.formats import FloatArray
from lowbit.scales.ranges import params_of
from lowbit.scales.weights import weight_params

_LARGEST = 2**15 - 1
_MOST_SHIFT = 16


class QuarkInt16Scale(
    Method,
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag="quark-int16-scale",
):
    """The choice of another method, with its scale moved to the nearest m / 2**n."""

    method: Method = MinMax()

    def observer(self) -> ObserverSpec:
        """Return what the other method observes."""
        return observer_of(self.method)

    def parameters_of(self, statistics: TensorStats, spec: IntegerSpec, name: str) -> QParams:
        """Return the other method's parameters with the nearest such scale."""
        return _moved(params_of(statistics, self._asked(spec), name), spec)

    def weight_parameters_of(self, data: FloatArray, spec: IntegerSpec) -> QParams:
        """Return the same for a constant."""
        return _moved(weight_params(data, self._asked(spec), None), spec)

    def _asked(self, spec: IntegerSpec) -> IntegerSpec:
        return msgspec.structs.replace(spec, method=self.method)


def nearest_int16_scale(scale: Any) -> NDArray[np.float32]:
    """Return the nearest m / 2**n, n from 0 to 16 and m of 16 bits, of the largest n that m allows.

    A finer n is never further away, so that the first for which m is not too large is the best.
    A scale below the finest one is that.
    """
    wanted = np.asarray(scale, np.float64)
    shift = np.clip(np.floor(np.log2(_LARGEST / wanted)), 0, _MOST_SHIFT)
    return np.asarray(np.maximum(np.rint(wanted * 2.0**shift), 1) / 2.0**shift, np.float32)


def _moved(params: QParams, spec: IntegerSpec) -> QParams:
    scale = nearest_int16_scale(params.scale)
    if spec.symmetric:
        return dataclasses.replace(params, scale=scale)
    low, _ = spec.limits
    # The range that the zero point was chosen for, seen through the new scale.
    start = np.minimum((low - params.zero_point.astype(np.float64)) * scale, 0.0)
    zero = np.rint(low - start / scale).astype(params.zero_point.dtype)
    return dataclasses.replace(params, scale=scale, zero_point=zero)
