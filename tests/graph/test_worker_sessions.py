"""Models for other processes: their files as bytes, sessions kept by their hash."""

import gc
import pickle

import numpy as np
import onnx_ir as ir
import pytest

from lowbit.graph.worker_sessions import content_hash, kept_session, packed, release_sessions

_MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
agraph (float[1,2] x) => (float[1,2] y) <float[2] a = {1.0, FACTOR}> { y = Mul (x, a) }
"""
_ASKED = {"threads": 1, "optimize": "none", "name": "a model"}


def _model(factor: float) -> ir.Model:
    return ir.from_onnx_text(_MODEL.replace("FACTOR", str(factor)))


@pytest.fixture(autouse=True)
def _released():
    yield
    release_sessions()


def test_a_model_that_was_sent_runs_after_its_files_are_gone() -> None:
    with packed(_model(3.0)) as files:
        sent = pickle.loads(pickle.dumps({name: np.array(a) for name, a in files.items()}))  # noqa: S301
        near = kept_session("near", files, **_ASKED)
    far = kept_session("far", sent, **_ASKED)

    x = np.array([[1.0, 2.0]], np.float32)
    for session in (near, far):
        np.testing.assert_array_equal(session.run(["y"], {"x": x})[0], [[1.0, 6.0]])


def test_sessions_are_kept_by_their_key_and_few_at_a_time() -> None:
    with packed(_model(3.0)) as files:
        first = kept_session("a", files, **_ASKED)
        assert kept_session("a", files, **_ASKED) is first
        for key in "bcd":
            kept_session(key, files, **_ASKED)
        assert kept_session("a", files, **_ASKED) is not first
    gc.collect()


def test_the_hash_is_that_of_the_content() -> None:
    found = []
    for factor in (3.0, 3.0, 4.0):
        with packed(_model(factor)) as files:
            found.append(content_hash(files))
    assert found[0] == found[1] != found[2]
