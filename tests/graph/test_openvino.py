import sys

import numpy as np
import pytest
from helpers.saturating_models import saturating_network
from helpers.staged import random_feeds

from lowbit.errors import ConfigError, ModelError
from lowbit.graph import io
from lowbit.graph.openvino import RUNTIMES, check_runtime, openvino_session
from lowbit.graph.session import session


def test_a_runtime_that_is_not_installed_is_named_with_the_way_out(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)

    with pytest.raises(ConfigError, match=r"pip install 'lowbit\[openvino\]'"):
        check_runtime("openvino")
    check_runtime("onnxruntime")
    assert RUNTIMES == ("onnxruntime", "openvino")


def test_outputs_and_other_tensors_are_onnxruntimes() -> None:
    pytest.importorskip("openvino", reason="lowbit[openvino] is not installed")
    model = saturating_network()
    (feed,) = random_feeds(model, 1)
    loaded = io.load(model)

    with openvino_session(loaded, ["p"], threads=1) as there, session(loaded, ["p"]) as here:
        found = there.run(["y", "p"], feed)
        want = here.run(["y", "p"], feed)
        assert there.timed(feed) > 0

    for a, b in zip(found, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_what_it_cannot_load_or_run_is_said() -> None:
    pytest.importorskip("openvino", reason="lowbit[openvino] is not installed")
    model = saturating_network()
    with (
        openvino_session(io.load(model), threads=1, name="the net") as there,
        pytest.raises(ModelError, match="OpenVINO cannot run the net"),
    ):
        there.run(["y"], {"x": np.zeros((1, 7), np.float32)})
    model.graph.node[0].domain = "com.example"
    model.opset_import.add(domain="com.example", version=1)
    unknown = io.load(model)
    with (
        pytest.raises(ModelError, match="OpenVINO cannot load the net"),
        openvino_session(unknown, threads=1, name="the net"),
    ):
        pass
