"""A run that ends before its time goes on where it was, and ends in the same bytes.

Even one killed by SIGKILL in the middle of refinement.
"""

import json
import os
import signal
import subprocess
import sys
import types

import msgspec
import numpy as np
import onnx
import pytest
from helpers.chain_models import chain, smooth
from helpers.staged import quantized

import lowbit
from lowbit.config.presets import find_preset
from lowbit.config.refinement import AdaRound, LayerReconstruction
from lowbit.errors import ConfigError, OutputError
from lowbit.refine.checkpoint import Checkpoint, fingerprint_of
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
    assert len(list(folder.glob("*.npz"))) == count
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
    with pytest.raises(ConfigError, match="of another run"):
        lowbit.quantize(
            chain(2),
            output,
            data=smooth(6, seed=1),
            config=_config(LayerReconstruction()),
            resume=True,
        )
    # Without resume it is simply done again.
    lowbit.quantize(chain(2), output, data=smooth(6, seed=1), config=_config(LayerReconstruction()))
    assert output.exists()


def test_ctrl_c_gives_the_best_so_far(tmp_path):
    output = tmp_path / "output.onnx"
    result = lowbit.quantize(
        chain(4),
        output,
        data=smooth(6),
        config=_config(LayerReconstruction()),
        progress=_after(2, KeyboardInterrupt()),
    )
    assert output.exists()
    assert any("interrupted after" in note for note in result.report.notes)
    # What is finished is kept for --resume.
    assert (tmp_path / "output.onnx.refining").exists()


def test_a_folder_with_other_files_is_refused_and_left_as_it_is(tmp_path):
    """The folder is cleared when a run begins and ends: nothing of the user's may be in it."""
    mine = tmp_path / "work" / "notes.txt"
    mine.parent.mkdir()
    mine.write_text("mine")

    with pytest.raises(OutputError, match=r"other files \(notes\.txt\); give an empty folder"):
        lowbit.quantize(
            chain(2), data=smooth(6), config=_config(LayerReconstruction()), checkpoint=mine.parent
        )

    assert mine.read_text() == "mine"


def _result(index, *, bias=True):
    stored = np.arange(6, dtype=np.int8).reshape(2, 3) + index
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


def test_results_come_back_as_they_were(tmp_path):
    checkpoint = Checkpoint.open(tmp_path / "kept", "word", resume=False)
    saved = [_result(0), _result(1, bias=False), _result(2)]
    for index, result in enumerate(saved):
        checkpoint.save(index, result)
    assert not list((tmp_path / "kept").glob("*.part"))
    again = Checkpoint.open(tmp_path / "kept", "word", resume=True)
    found = again.results(_layers(5))
    assert len(found) == 3
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
    checkpoint = Checkpoint.open(tmp_path, "word", resume=False)
    for index in (0, 1, 3):
        checkpoint.save(index, _result(index))
    assert [result.node for result in checkpoint.results(_layers(5))] == ["n0", "n1"]


def test_a_new_run_begins_with_nothing(tmp_path):
    Checkpoint.open(tmp_path, "word", resume=False).save(0, _result(0))
    (tmp_path / "00001.part").write_bytes(b"cut off")
    anew = Checkpoint.open(tmp_path, "other", resume=False)
    assert anew.results(_layers(2)) == []
    assert [path.name for path in tmp_path.iterdir()] == ["run.txt"]


def test_resuming_nothing_begins_anew(tmp_path):
    checkpoint = Checkpoint.open(tmp_path / "new", "word", resume=True)
    assert checkpoint.results(_layers(1)) == []
    assert (tmp_path / "new" / "run.txt").read_text() == "word"


def test_what_somebody_put_there_meanwhile_stays(tmp_path):
    checkpoint = Checkpoint.open(tmp_path / "kept", "word", resume=False)
    checkpoint.save(0, _result(0))
    mine = tmp_path / "kept" / "notes.txt"
    mine.write_text("mine")
    checkpoint.remove()
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["notes.txt"]


def test_a_place_that_takes_nothing_is_named(tmp_path):
    occupied = tmp_path / "file"
    occupied.write_text("no folder")
    with pytest.raises(OutputError, match=r"cannot keep finished layers in .*file"):
        Checkpoint.open(occupied, "word", resume=False)
    checkpoint = Checkpoint.open(tmp_path / "kept", "word", resume=False)
    checkpoint.remove()
    with pytest.raises(OutputError, match=r"cannot keep a finished layer in .*kept: No such file"):
        checkpoint.save(0, _result(0))


def test_a_fingerprint_changes_with_all_that_results_depend_on():
    config = _config(LayerReconstruction())
    state = quantized(chain(2), config, smooth(4))
    word = fingerprint_of(state, config.refinement, "data")
    again = quantized(chain(2), config, smooth(4))
    assert fingerprint_of(again, config.refinement, "data") == word
    others = [
        fingerprint_of(state, LayerReconstruction(ridge=0.1), "data"),
        fingerprint_of(state, config.refinement, "other data"),
        fingerprint_of(quantized(chain(2, seed=2), config, smooth(4)), config.refinement, "data"),
        fingerprint_of(quantized(chain(2), config, smooth(5)), config.refinement, "data"),
        fingerprint_of(
            quantized(chain(2), msgspec.structs.replace(config, exclude=("conv1",)), smooth(4)),
            config.refinement,
            "data",
        ),
    ]
    assert len({word, *others}) == 6


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
    return {KILL} if os.path.basename(new) == "00002.npz" else whole(old, new)
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


def _quantize(folder, output, *more, moment=""):
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
    return subprocess.run(
        [sys.executable, "-c", CHILD.format(moment=moment), *map(str, words)],
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

    undisturbed = _quantize(tmp_path, whole)
    assert undisturbed.returncode == 0, undisturbed.stderr
    killed = _quantize(tmp_path, output, moment=MOMENTS[moment])
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not output.exists()
    assert [p.name for p in sorted(finished.glob("*.npz"))] == ["00000.npz", "00001.npz"]
    assert len(list(finished.glob("*.part"))) == (moment == "saving")

    resumed = _quantize(tmp_path, output, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert output.read_bytes() == whole.read_bytes()
    assert not finished.exists()
