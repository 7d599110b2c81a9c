"""What all tests share: a small model on disk, images, and the place of real models."""

import os
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from helpers.small_models import small_cnn
from hypothesis import HealthCheck, settings
from PIL import Image

# How fast inputs are drawn says how busy the machine is, not whether the code is right.
settings.register_profile("any machine", suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run files with slow tests first, so that no process is left with one when others are done."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="session", autouse=True)
def idle_threads() -> Iterator[None]:
    """Let threads of onnxruntime that wait for work sleep: another process has tests to run."""
    start = onnxruntime.InferenceSession.__init__

    def sleeping(self: Any, model: Any, options: Any = None, *more: Any, **named: Any) -> None:
        options = named.pop("sess_options", options) or onnxruntime.SessionOptions()
        if not options.intra_op_num_threads:
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        start(self, model, options, *more, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnxruntime.InferenceSession, "__init__", sleeping)
        yield


@pytest.fixture
def model_path(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "model.onnx"
    onnx.save(small_cnn(), path)
    return path


@pytest.fixture
def images(tmp_path: pathlib.Path) -> pathlib.Path:
    folder = tmp_path / "images"
    folder.mkdir()
    rng = np.random.default_rng(5)
    for index in range(12):
        pixels = rng.integers(0, 256, (48, 64, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{index:02}.png")
    return folder


@pytest.fixture
def shared_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let layers of small models share weights too, as those of large ones do."""
    for room in ("_ROOM", "_SMALL"):
        monkeypatch.setattr(f"lowbit.transforms.shared_weights.{room}", 0)


@pytest.fixture(scope="session")
def worker_processes() -> Iterator[None]:
    """Let tests share loky's processes, which take a second each to start; end them with the session."""
    from joblib.externals.loky import get_reusable_executor

    yield
    get_reusable_executor().shutdown(wait=True, kill_workers=True)


@pytest.fixture(scope="session")
def assets() -> pathlib.Path:
    place = os.environ.get("LOWBIT_ASSETS")
    if not place:
        pytest.skip("LOWBIT_ASSETS does not name the folder of real models")
    return pathlib.Path(place)
