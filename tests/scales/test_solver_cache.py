"""SolverCache that are found once."""

import numpy as np
import onnx_ir as ir

from lowbit.numerics.affine import QParams
from lowbit.numerics.formats import IntegerFormat
from lowbit.scales.solver_cache import ConstantsCache, SolverCache, as_key


def test_each_is_found_once() -> None:
    known, calls = SolverCache(), []
    for key in ("a", "b", "a"):
        assert known.get(key, lambda key=key: calls.append(key) or len(calls)) in (1, 2)
    assert calls == ["a", "b"]


def test_stored_weights_are_kept_while_there_is_room() -> None:
    known = SolverCache(room=100)
    small, large = np.zeros(80, np.int8), np.zeros(80, np.int8)
    assert known.stored("small", lambda: small) is small
    assert known.stored("small", lambda: large) is small
    assert known.stored("large", lambda: large) is large
    assert known.stored("large", lambda: small) is small


def test_keys_tell_parameters_apart() -> None:
    def params(scale: float, **more) -> QParams:
        return QParams(np.float32(scale), np.int8(0), IntegerFormat.INT8, **more)

    keys = {as_key(p) for p in (params(1), params(2), params(1, axis=0), params(1))}
    assert len(keys) == 3


def test_constants_of_one_model_are_kept_at_a_time() -> None:
    one, other = (ir.Model(ir.Graph([], [], nodes=[]), ir_version=10) for _ in range(2))
    cache = ConstantsCache()

    known = cache.of(one)

    assert cache.of(one) is known
    assert cache.of(other) is not known
    assert cache.of(one) is not known
