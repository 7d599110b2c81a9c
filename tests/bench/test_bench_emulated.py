"""Running files on another processor, as far as that needs none."""

from __future__ import annotations

import pathlib
import shutil

import numpy as np
import onnxruntime as ort
import pytest

from bench import emulated
from bench.subjects import example, example_model


def test_without_an_emulator_it_says_what_to_install(monkeypatch, capsys) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr("sys.argv", ["bench.emulated"])

    assert emulated.main() == 2
    assert "qemu-x86_64 is not installed" in capsys.readouterr().err


@pytest.mark.parametrize("runtime", ["onnxruntime", "exact"])
def test_outputs_are_those_of_the_model(runtime: str, tmp_path: pathlib.Path) -> None:
    images, _ = example("test.npz")
    np.save(tmp_path / "images.npy", images[:2])

    found = emulated.outputs(example_model(), str(tmp_path / "images.npy"), runtime, tmp_path)

    session = ort.InferenceSession(example_model(), providers=["CPUExecutionProvider"])
    for image, output in zip(images, found, strict=False):
        (want,) = session.run(None, {"input": image[None]})
        np.testing.assert_allclose(output, want, rtol=1e-4, atol=1e-4)


def test_a_file_that_does_not_run_says_why(tmp_path: pathlib.Path) -> None:
    np.save(tmp_path / "images.npy", np.zeros((1, 3, 32, 32), np.float32))

    with pytest.raises(RuntimeError, match=r"missing\.onnx"):
        emulated.outputs("missing.onnx", str(tmp_path / "images.npy"), "onnxruntime", tmp_path)


def test_one_file_is_as_the_preset_has_it_and_the_other_keeps_all_bits() -> None:
    found = emulated.configurations()

    assert found["safe"].weight.saturation_free is None
    assert found["8 bits"].weight.saturation_free is False
    assert emulated.emulator(emulated=True)[0] == "qemu-x86_64"
    assert not emulated.emulator(emulated=False)


def test_sqnr_is_over_all_outputs() -> None:
    want = np.full((4, 10), 2.0, np.float32)

    assert emulated.sqnr(want, want + 0.2) == pytest.approx(20, abs=0.01)
