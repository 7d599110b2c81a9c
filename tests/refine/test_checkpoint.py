"""A run that ends before its time goes on where it was, and ends in the same bytes."""

import msgspec
import pytest
from chain_models import chain, smooth

import lowbit
from lowbit.config.presets import find_preset
from lowbit.config.refinement import AdaRound, LayerReconstruction
from lowbit.errors import ConfigError, OutputError


class Killed(BaseException):
    """Ends a run as nothing in it expects."""


def _config(refine):
    return msgspec.structs.replace(find_preset("A8W8"), refinement=refine)


def _after(count, error):
    def progress(stage, done, total):
        del total
        if stage == "refine" and done == count:
            raise error

    return progress


@pytest.mark.parametrize("refine", [LayerReconstruction(), AdaRound(num_iterations=30)])
@pytest.mark.parametrize("count", [1, 3])
def test_a_killed_run_continues_and_ends_in_the_same_bytes(tmp_path, refine, count):
    config, feeds = _config(refine), smooth(6)
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


def test_other_data_or_settings_are_not_mixed_in(tmp_path):
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
