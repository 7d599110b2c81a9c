"""A run that ends before its time goes on where it was, and ends in the same bytes.

Even one killed by SIGKILL in the middle of refinement.
"""

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import types

import ml_dtypes
import msgspec
import numpy as np
import onnx
import pytest
from helpers.chain_models import chain, smooth
from helpers.staged import quantized

import lowbit
from lowbit.cli import main
from lowbit.config.presets import find_preset
from lowbit.config.refinement import AdaRound, LayerReconstruction
from lowbit.errors import OutputError
from lowbit.graph import io
from lowbit.refine.checkpoint import Checkpoint, fingerprint_of, remove_checkpoint
from lowbit.refine.layers import LayerResult


class Killed(BaseException):
    """Ends a run as nothing in it expects."""


def _config(refinement):
    return msgspec.structs.replace(find_preset("A8W8"), refinement=refinement)


def _after(count, error):
    def progress(stage, done, total):
        del total
        if stage == "refine" and done == count:
            raise error

    return progress


@pytest.mark.parametrize("refinement", [LayerReconstruction(), AdaRound(num_iterations=30)])
@pytest.mark.parametrize("count", [1, 3])
def test_a_killed_run_continues_and_ends_in_the_same_bytes(tmp_path, refinement, count):
    config, feeds = _config(refinement), smooth(6)
    whole = tmp_path / "whole.onnx"
    lowbit.quantize(chain(4), whole, data=feeds, config=config)
    output = tmp_path / "output.onnx"
    with pytest.raises(Killed):
        lowbit.quantize(
            chain(4), output, data=feeds, config=config, progress=_after(count, Killed())
        )
    folder = tmp_path / "output.onnx.refining"
    assert len(list(folder.glob("*.layer"))) == count
    seen = []
    lowbit.quantize(
        chain(4),
        output,
        data=feeds,
        config=config,
        resume=True,
        progress=lambda stage, done, total: seen.append(done) if stage == "refine" else None,
    )
    assert [done for done in seen if done] == list(range(count + 1, 5))
    assert output.read_bytes() == whole.read_bytes()
    assert not folder.exists()


def test_a_run_on_other_data_is_not_continued(tmp_path):
    output = tmp_path / "output.onnx"
    with pytest.raises(Killed):
        lowbit.quantize(
            chain(2),
            output,
            data=smooth(6),
            config=_config(LayerReconstruction()),
            progress=_after(1, Killed()),
        )
    config = _config(LayerReconstruction())
    again = lowbit.quantize(chain(2), output, data=smooth(6, seed=1), config=config, resume=True)
    assert any("nothing was resumed" in note for note in again.report.notes)
    whole = tmp_path / "whole.onnx"
    lowbit.quantize(chain(2), whole, data=smooth(6, seed=1), config=config)
    assert output.read_bytes() == whole.read_bytes()


def test_ctrl_c_ends_the_run_and_keeps_what_is_finished(tmp_path):
    output = tmp_path / "output.onnx"
    output.write_bytes(b"before")
    with pytest.raises(KeyboardInterrupt):
        lowbit.quantize(
            chain(4),
            output,
            data=smooth(6),
            config=_config(LayerReconstruction()),
            progress=_after(2, KeyboardInterrupt()),
        )
    assert output.read_bytes() == b"before"
    assert len(list((tmp_path / "output.onnx.refining").glob("*.layer"))) == 2


def test_ctrl_c_gives_the_best_so_far_if_asked_to(tmp_path):
    output = tmp_path / "output.onnx"
    result = lowbit.quantize(
        chain(4),
        output,
        data=smooth(6),
        config=_config(LayerReconstruction()),
        keep_partial=True,
        progress=_after(2, KeyboardInterrupt()),
    )
    assert output.exists()
    assert any("interrupted after" in note for note in result.report.notes)
    # What is finished is kept for --resume.
    assert len(list((tmp_path / "output.onnx.refining").glob("*.layer"))) == 2


def test_files_of_others_in_the_folder_are_left_as_they_are(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    mine = {name: folder / name for name in ("notes.txt", "00000.npz", "00001.part", "a.layer")}
    for name, path in mine.items():
        path.write_text(name)

    lowbit.quantize(
        chain(2),
        tmp_path / "output.onnx",
        data=smooth(6),
        config=_config(LayerReconstruction()),
        checkpoint=folder,
    )

    assert {path.name: path.read_text() for path in folder.iterdir()} == {n: n for n in mine}


def test_a_gate_that_fails_keeps_the_layers(tmp_path):
    output, config = tmp_path / "output.onnx", _config(LayerReconstruction())
    with pytest.raises(lowbit.VerificationError):
        lowbit.quantize(chain(3), output, data=smooth(6), config=config, min_sqnr=200)
    assert not output.exists()
    assert len(list((tmp_path / "output.onnx.refining").glob("*.layer"))) == 3

    solved = []
    lowbit.quantize(
        chain(3),
        output,
        data=smooth(6),
        config=config,
        resume=True,
        progress=lambda stage, done, total: solved.append(done) if stage == "refine" else None,
    )

    assert [done for done in solved if done] == []
    assert [path.name for path in tmp_path.iterdir()] == ["output.onnx"]


def test_an_output_that_cannot_be_written_keeps_the_layers(tmp_path, monkeypatch):
    output, config = tmp_path / "output.onnx", _config(LayerReconstruction())

    def full(source, target, replace=os.replace):
        if target == output:
            raise OSError(28, "No space left on device")
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(OutputError, match="No space left"):
            lowbit.quantize(chain(2), output, data=smooth(6), config=config)

    assert len(list((tmp_path / "output.onnx.refining").glob("*.layer"))) == 2


def test_without_an_output_the_layers_stay_until_the_result_is_saved(tmp_path):
    folder = tmp_path / "kept"
    result = lowbit.quantize(
        chain(2), data=smooth(6), config=_config(LayerReconstruction()), checkpoint=folder
    )
    assert result.checkpoint == folder
    assert len(list(folder.glob("*.layer"))) == 2

    result.save(tmp_path / "output.onnx")

    assert [path.name for path in tmp_path.iterdir()] == ["output.onnx"]


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "a folder"])
def test_a_damaged_layer_is_solved_again_and_noted(tmp_path, damage):
    output, config = tmp_path / "output.onnx", _config(LayerReconstruction())
    whole = tmp_path / "whole.onnx"
    lowbit.quantize(chain(3), whole, data=smooth(6), config=config)
    with pytest.raises(lowbit.VerificationError):
        lowbit.quantize(chain(3), output, data=smooth(6), config=config, min_sqnr=200)
    layers = sorted((tmp_path / "output.onnx.refining").iterdir())
    data = layers[1].read_bytes()
    layers[1].unlink()
    if damage == "a folder":
        layers[1].mkdir()
    else:
        changed = {"empty": b"", "cut": data[:-7], "flipped": data[:-1] + bytes([data[-1] ^ 1])}
        layers[1].write_bytes(changed[damage])

    def quantize():
        return lowbit.quantize(chain(3), output, data=smooth(6), config=config, resume=True)

    if damage == "a folder":
        with pytest.raises(OutputError, match="cannot keep a finished layer"):
            quantize()
        return
    result = quantize()

    assert any(layers[1].name in note for note in result.report.notes)
    assert output.read_bytes() == whole.read_bytes()


WORD, OTHER = "0" * 64, "1" * 64


def _result(index, *, bias=True, dtype=np.int8):
    stored = (np.arange(6).reshape(2, 3) + index).astype(dtype)
    return LayerResult(
        f"n{index}",
        stored,
        np.float32([0.5, -index]) if bias else None,
        0.25 + index,
        0.125,
        kept=index % 2 == 0,
    )


def _layers(count):
    return [types.SimpleNamespace(node=f"n{index}") for index in range(count)]


def _resumed(folder, count, word=WORD):
    return Checkpoint.open(folder, word, resume=True).results(_layers(count))


def test_results_come_back_as_they_were(tmp_path):
    checkpoint = Checkpoint.open(tmp_path / "kept", WORD, resume=False)
    dtypes = (np.int8, ml_dtypes.bfloat16, ml_dtypes.int4, np.float32)
    saved = [_result(i, bias=i != 1, dtype=dtype) for i, dtype in enumerate(dtypes)]
    for result in saved:
        checkpoint.save(result)
    assert not list((tmp_path / "kept").glob("*.unfinished"))
    found = _resumed(tmp_path / "kept", 5)
    assert len(found) == 4
    for got, want in zip(found, saved, strict=True):
        assert (got.node, got.before, got.after, got.kept) == (
            want.node,
            want.before,
            want.after,
            want.kept,
        )
        assert got.stored.dtype == want.stored.dtype
        np.testing.assert_array_equal(got.stored, want.stored)
        if want.bias is None:
            assert got.bias is None
        else:
            np.testing.assert_array_equal(got.bias, want.bias)


def test_only_the_results_before_a_gap_count(tmp_path):
    checkpoint = Checkpoint.open(tmp_path, WORD, resume=False)
    for index in range(4):
        checkpoint.save(_result(index))
    sorted(tmp_path.iterdir())[2].unlink()
    assert [result.node for result in _resumed(tmp_path, 5)] == ["n0", "n1"]


def test_a_layer_counts_only_after_the_same_layers(tmp_path):
    first = Checkpoint.open(tmp_path, WORD, resume=False)
    first.save(_result(0))
    first.save(_result(1))
    other = Checkpoint.open(tmp_path, WORD, resume=False)
    other.save(_result(7))
    # The first layer is now another one of the same name, so the second is not its successor's.
    assert [result.before for result in _resumed(tmp_path, 5)] == [7.25]


def test_a_new_run_uses_nothing_and_loses_nothing(tmp_path):
    Checkpoint.open(tmp_path, WORD, resume=False).save(_result(0))
    anew = Checkpoint.open(tmp_path, OTHER, resume=False)
    assert anew.results(_layers(2)) == []
    assert len(_resumed(tmp_path, 1)) == 1


def test_resuming_nothing_begins_anew(tmp_path):
    assert _resumed(tmp_path / "new", 1) == []


def test_another_run_is_not_resumed_and_that_is_said(tmp_path):
    Checkpoint.open(tmp_path, WORD, resume=False).save(_result(0))
    other = Checkpoint.open(tmp_path, OTHER, resume=True)
    assert other.results(_layers(1)) == []
    assert "of another run" in other.notes[0]
    same = Checkpoint.open(tmp_path, WORD, resume=True)
    assert len(same.results(_layers(1))) == 1
    assert same.notes == ()


def test_a_removal_that_is_cut_short_can_be_resumed(tmp_path, monkeypatch):
    checkpoint = Checkpoint.open(tmp_path / "kept", WORD, resume=False)
    for index in range(3):
        checkpoint.save(_result(index))
    unlink = pathlib.Path.unlink
    removed = []

    def one(path):
        if removed:
            raise OSError
        removed.append(path.name)
        unlink(path)

    with monkeypatch.context() as patch:
        patch.setattr(pathlib.Path, "unlink", one)
        remove_checkpoint(tmp_path / "kept")

    assert [result.node for result in _resumed(tmp_path / "kept", 3)] == ["n0", "n1"]


def test_what_somebody_put_there_meanwhile_stays(tmp_path):
    checkpoint = Checkpoint.open(tmp_path / "kept", WORD, resume=False)
    checkpoint.save(_result(0))
    mine = tmp_path / "kept" / "notes.txt"
    mine.write_text("mine")
    remove_checkpoint(tmp_path / "kept")
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["notes.txt"]


def test_a_place_that_takes_nothing_is_named(tmp_path):
    occupied = tmp_path / "file"
    occupied.write_text("no folder")
    with pytest.raises(OutputError, match=r"cannot keep finished layers in .*file"):
        Checkpoint.open(occupied, WORD, resume=False)
    checkpoint = Checkpoint.open(tmp_path / "kept", WORD, resume=False)
    remove_checkpoint(tmp_path / "kept")
    with pytest.raises(OutputError, match=r"cannot keep a finished layer in .*kept: No such file"):
        checkpoint.save(_result(0))


def _with_bias(layers, index, value):
    model = chain(layers)
    for tensor in model.graph.initializer:
        if tensor.name == f"b{index}":
            array = onnx.numpy_helper.to_array(tensor).copy()
            array[0] += value
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    return model


def test_a_fingerprint_changes_with_all_that_results_depend_on(monkeypatch):
    config = _config(LayerReconstruction())
    state = quantized(chain(2), config, smooth(4))

    def word(changed=state, refinement=config.refinement, data="data", reference=None):
        return fingerprint_of(changed, refinement, data, reference)

    assert word(quantized(chain(2), config, smooth(4))) == word()
    # A bias that moves by less than any range or scale can show.
    biased = dataclasses.replace(state, adapted=io.load(_with_bias(2, 1, 1e-7)))
    others = [
        word(refinement=LayerReconstruction(ridge=0.1)),
        word(data="other data"),
        word(quantized(chain(2, seed=2), config, smooth(4))),
        word(quantized(chain(2), config, smooth(5))),
        word(
            quantized(chain(2), msgspec.structs.replace(config, exclude=("conv1",)), smooth(4)),
        ),
        word(biased),
        word(reference=io.load(chain(2, seed=3))),
    ]
    monkeypatch.setattr("lowbit.refine.checkpoint.__version__", "0.0.0")
    assert len({*others, word()}) == 8
    monkeypatch.undo()
    assert len({word(), *others}) == 8


KILL = "os.kill(os.getpid(), signal.SIGKILL)"
# Where the process kills itself: while the third layer is tuned, and with the third layer's file
# written but not yet in its place.
MOMENTS = {
    "tuning": f"""
def tune(self, *arguments, whole=Tuner.tune, calls=itertools.count()):
    found = whole(self, *arguments)
    return {KILL} if next(calls) == 2 else found
Tuner.tune = tune
""",
    "saving": f"""
def replace(old, new, whole=os.replace):
    return {KILL} if os.path.basename(new).startswith("00002-") else whole(old, new)
os.replace = replace
""",
}
CHILD = """
import itertools, os, signal, sys
from lowbit.cli import main
from lowbit.refine.gradient import Tuner
{moment}
sys.exit(main(sys.argv[1:]))
"""
KILLS = [
    ("tuning", {"type": "adaround", "num_iterations": 20, "batch_size": 2}),
    ("saving", {"type": "adaquant", "num_iterations": 20, "learning_rate": 1e-4}),
]


def _words(folder, output, *more):
    words = ["quantize", folder / "model.onnx", output, "--data", folder / "data.npz"]
    words += [
        "--preset",
        "XINT8",
        "--config",
        folder / "config.json",
        "--quiet",
        "--no-equalization",
        *more,
    ]
    return [*map(str, words)]


def _killed(moment, words):
    """Run a command in a process that kills itself."""
    return subprocess.run(
        [sys.executable, "-c", CHILD.format(moment=moment), *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


@pytest.mark.slow
@pytest.mark.parametrize(("moment", "refinement"), KILLS, ids=[moment for moment, _ in KILLS])
def test_a_killed_process_is_resumed_and_ends_in_the_same_bytes(moment, refinement, tmp_path):
    onnx.save(chain(4), tmp_path / "model.onnx")
    np.savez(tmp_path / "data.npz", x=np.concatenate([feed["x"] for feed in smooth(4)]))
    (tmp_path / "config.json").write_text(json.dumps({"refinement": refinement}))
    whole, output = tmp_path / "whole.onnx", tmp_path / "out.onnx"
    finished = tmp_path / "out.onnx.refining"

    assert main(_words(tmp_path, whole)) == 0
    killed = _killed(MOMENTS[moment], _words(tmp_path, output))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not output.exists()
    assert [p.name[:6] for p in sorted(finished.glob("*.layer"))] == ["00000-", "00001-"]
    assert len(list(finished.glob("*.unfinished"))) == (moment == "saving")

    assert main(_words(tmp_path, output, "--resume")) == 0
    assert output.read_bytes() == whole.read_bytes()
    assert not finished.exists()


@pytest.mark.parametrize("resume", [False, True])
def test_with_a_store_layers_are_in_it(tmp_path, resume):
    config, feeds = _config(LayerReconstruction()), smooth(6)
    whole = tmp_path / "whole.onnx"
    lowbit.quantize(chain(4), whole, data=feeds, config=config)
    output, state, done = tmp_path / "output.onnx", tmp_path / "state", []
    with pytest.raises(Killed):
        lowbit.quantize(
            chain(4),
            output,
            data=feeds,
            config=config,
            state_dir=state,
            progress=_after(2, Killed()),
        )
    assert not (tmp_path / "output.onnx.refining").exists()

    lowbit.quantize(
        chain(4),
        output,
        data=feeds,
        config=config,
        state_dir=state,
        resume=resume,
        progress=lambda stage, count, _: done.append(count) if stage == "refine" else None,
    )

    assert output.read_bytes() == whole.read_bytes()
    assert [count for count in done if count] == [3, 4]
