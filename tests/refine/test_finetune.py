"""AdaRound and AdaQuant on whole models: every argument does something."""

import functools
import logging

import msgspec
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from helpers.chain_models import chain, smooth
from helpers.small_models import small_cnn, small_feeds
from helpers.staged import everything_in_integers
from helpers.transformer_models import tokens, transformer

import lowbit
from lowbit.config.presets import find_preset
from lowbit.config.refinement import AdaQuant, AdaRound
from lowbit.errors import ConfigError
from lowbit.graph import io
from lowbit.graph.session import session
from lowbit.graph.store import Store
from lowbit.ops.activations import activation_of
from lowbit.ops.linear import LAYERS
from lowbit.refine.devices import Device
from lowbit.refine.finetune import ADAROUND, Part, PartBatches, parts_of
from lowbit.refine.samples import SampleInMemory, SampleOnDisk

QUICK = {"num_iterations": 60, "batch_size": 2}


@functools.cache
def _known(refinement, preset):
    """Return what a refinement gives that several others are compared with."""
    return _run(refinement, preset=preset)


def _run(refinement, count=8, preset="A16W8"):
    config = msgspec.structs.replace(find_preset(preset), refinement=refinement, equalization=None)
    return lowbit.quantize(
        chain(2), data=smooth(count), config=config, promote=False, allow_ruined=True
    )


def _stored(result):
    return {
        c.name: onnx.numpy_helper.to_array(c)
        for c in result.model.graph.initializer
        if c.name.endswith("_quantized")
    }


def _differ(a, b):
    a, b = _stored(a), _stored(b)
    return any(not np.array_equal(a[name], b[name]) for name in a)


def _error(result, model, feeds):
    name = model.graph.output[0].name
    with session(io.load(model)) as floats, session(result.quantized) as quantized:
        return np.mean(
            [
                np.square(floats.run([name], f)[0] - quantized.run([name], f)[0]).mean()
                for f in feeds
            ]
        )


@pytest.mark.parametrize(
    "refinement",
    [
        AdaRound(num_iterations=300, batch_size=4),
        AdaQuant(num_iterations=300, batch_size=4, learning_rate=1e-4, update_bias=True),
    ],
)
def test_it_is_nearer_to_float_on_data_it_has_not_seen(refinement):
    model, unseen = chain(2), smooth(8, seed=9)
    plain = _error(_run(None, 32), model, unseen)
    assert _error(_run(refinement, 32), model, unseen) < 0.8 * plain


@pytest.mark.parametrize("kind", [AdaRound, AdaQuant])
def test_the_same_seed_gives_the_same_bytes(kind):
    first, second = (_run(kind(**QUICK)) for _ in range(2))
    assert first.model.SerializeToString() == second.model.SerializeToString()


@pytest.mark.parametrize(
    "changed",
    [
        {"data_size": 3},
        {"batch_size": 1},
        {"num_batches": 3},
        {"num_iterations": 20},
        {"learning_rate": 0.01},
        {"fixed_seed": 1},
        {"lr_adjust": (0.0, 0.001)},
        {"target_op_type": ("Gemm",)},
        {"update_bias": True},
        {"output_qdq": True},
        {"drop_ratio": 0.2},
        {"reg_param": 10.0},
        {"beta_range": (4.0, 2.0)},
        {"warm_start": 0.9},
        {"parallel": True},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_every_argument_does_something(changed):
    base = AdaRound(**QUICK)
    other = msgspec.structs.replace(base, **changed)
    # Rounding the output to 16 bits is too fine to matter.
    preset = "A8W8" if "output_qdq" in changed else "A16W8"
    assert _differ(_known(base, preset), _run(other, preset=preset))


@pytest.mark.parametrize("level", [0, 2])
def test_memory_levels_give_the_same_result(level, tmp_path):
    kept = tmp_path / "cache"
    base = AdaRound(**QUICK, drop_ratio=0.5)
    other = msgspec.structs.replace(base, mem_opt_level=level, cache_dir=str(kept))
    assert not _differ(_run(base), _run(other))
    assert not list(kept.iterdir())


def test_early_stop_ends_sooner(caplog):
    refine = AdaQuant(num_iterations=200, early_stop=True, learning_rate=1e-9)
    with caplog.at_level(logging.INFO, "lowbit.refine"):
        _run(refine)
    steps = [r.args[1] for r in caplog.records if r.msg.startswith("%s: step")]
    assert steps
    assert max(steps) < 199


def test_progress_is_logged_at_the_period_asked_for(caplog):
    with caplog.at_level(logging.INFO, "lowbit.refine"):
        _run(AdaRound(num_iterations=40, log_period=13))
    steps = {r.args[1] for r in caplog.records if r.msg.startswith("%s: step")}
    assert steps == {0, 13, 26, 39}


def test_selective_update_never_ends_further_from_float():
    model, feeds = chain(2), smooth(8)
    chosen = _run(AdaRound(**QUICK, selective_update=True))
    assert _error(chosen, model, feeds) <= _error(_run(None), model, feeds)
    with pytest.raises(ConfigError, match=r"output_index is 3.*1 outputs"):
        _run(AdaRound(**QUICK, selective_update=True, output_index=3))


def test_several_samples_can_run_at_once():
    """The chain is exported for a batch of one."""
    model, unseen = chain(2), smooth(8, seed=9)
    result = _run(AdaRound(num_iterations=100, batch_size=4, dynamic_batch=True))
    assert _error(result, model, unseen) < _error(_run(None), model, unseen)


def test_another_float_model_can_be_followed(tmp_path):
    other = chain(2)
    for constant in other.graph.initializer:
        if constant.name.startswith("b"):
            moved = onnx.numpy_helper.to_array(constant) + 0.5
            constant.CopyFrom(onnx.numpy_helper.from_array(moved, constant.name))
    path = tmp_path / "other.onnx"
    onnx.save(other, path)
    base = AdaRound(**QUICK, update_bias=True)
    follows = msgspec.structs.replace(base, ref_model_path=str(path))
    feeds = smooth(4, seed=9)
    assert _error(_run(follows), other, feeds) < 0.1 * _error(_run(base), other, feeds)


def _int8(refinement):
    """Return int8 throughout in powers of two, biases as well, with nothing but the refinement."""
    return msgspec.structs.replace(
        find_preset("XINT8"),
        head="int8",
        equalization=None,
        bias_correction=False,
        keep_only_if_better=False,
        refinement=refinement,
    )


def test_residuals_and_depthwise_layers_are_tuned_as_well():
    config = _int8(AdaRound(**QUICK))
    result = lowbit.quantize(small_cnn(), data=small_feeds(8), config=config)
    assert any("of 3 layers" in note for note in result.report.notes)


def test_a_bias_that_may_move_makes_no_layer_worse(caplog):
    # Stored in 8 bits it is coarse, and roundings tuned for another bias would suffer.
    def errors(*, update_bias):
        caplog.clear()
        tuned = AdaRound(num_iterations=100, batch_size=4, parallel=True, update_bias=update_bias)
        config = _int8(tuned)
        with caplog.at_level(logging.INFO, "lowbit.refine.finetune"):
            lowbit.quantize(small_cnn(), data=small_feeds(8), config=config)
        rows = [r for r in caplog.records if "held-out" in r.message]
        return {row.args[0]: row.args[1] for row in rows}

    still, moving = errors(update_bias=False), errors(update_bias=True)
    assert len(still) == 3
    assert all(moving[node] <= still[node] for node in still)


@pytest.mark.parametrize(
    ("refinement", "word"),
    [
        (AdaRound(optim_device="cuda:7"), "optim_device"),
        (AdaRound(infer_device="cuda:0"), "infer_device"),
        (AdaQuant(infer_device="abacus"), "unknown device 'abacus'"),
        (
            AdaQuant(target_op_type=("Conv", "Relu")),
            r"adaquant.target_op_type names 'Relu', which has no weights to tune; give some of Conv",
        ),
    ],
)
def test_what_cannot_be_had_is_named_before_any_work(refinement, word):
    def never():
        raise AssertionError("the data was read")
        yield

    config = msgspec.structs.replace(find_preset("A8W8"), refinement=refinement)
    with pytest.raises(ConfigError, match=word):
        lowbit.quantize(chain(1), data=never(), config=config)


def test_adaround_of_16_bit_floats_is_refused():
    config = msgspec.structs.replace(find_preset("BF16"), refinement=AdaRound())
    with pytest.raises(ConfigError, match="take AdaQuant"):
        lowbit.quantize(small_cnn(), data=small_feeds(2), config=config)


@pytest.mark.parametrize("name", ["BF16", "BF16_CAST", "BFP16", "MXINT8"])
def test_adaquant_tunes_floats_and_blocks(name):
    model, unseen = chain(2), smooth(8, seed=9)
    tuned = AdaQuant(num_iterations=200, batch_size=4, learning_rate=1e-4)

    def run(refinement):
        config = msgspec.structs.replace(find_preset(name), refinement=refinement)
        return lowbit.quantize(chain(2), data=smooth(40), config=config)

    plain, better = run(None), run(tuned)
    (note,) = [n for n in better.report.notes if n.startswith("refined")]
    assert "of 2 layers" in note
    assert _error(better, model, unseen) <= 1.02 * _error(plain, model, unseen)


@pytest.mark.parametrize(
    ("shape", "coupled"),
    [
        ((1, 512, 2304), False),
        ((1, 5, 7), False),
        ((1, 1000, 40), True),
        ((960, 1, 9), False),
        ((40, 64, 300), False),
    ],
)
def test_parts_cover_every_row_once(shape, coupled):
    parts = parts_of(shape, coupled=coupled)
    seen = np.zeros(shape[:2], int)
    for part in parts:
        seen[part.rows] += 1
    assert (seen == 1).all()
    if coupled:
        assert len(parts) == 1
    else:
        sizes = [np.zeros(shape, bool)[part.rows].size for part in parts]
        assert max(sizes) <= max(1 << 17, 16 * shape[2], shape[1] * shape[2])
    # Parts differ from each other in nothing but the last one's size.
    assert len({np.zeros(shape[:2])[part.rows].shape for part in parts[:-1]}) <= 1


def _samples(count=3):
    random = np.random.default_rng(1)
    return [
        SampleInMemory(
            random.normal(size=(4, 5, 6)).astype(np.float32),
            random.normal(size=(4, 3, 6)).astype(np.float32),
            np.zeros((4, 5)),
            np.zeros((4, 3)),
            count=6,
            float_patches=random.normal(size=(4, 5, 6)).astype(np.float32) if count > 2 else None,
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("in_files", [False, True])
@pytest.mark.parametrize("count", [2, 3])
def test_batches_of_a_part_are_its_rows_after_the_activation(count, in_files, tmp_path):
    relu = activation_of(ir.node("Relu", [ir.val("x")]), last_axis=False)
    samples, part = _samples(count), Part(slice(1, 3), slice(0, 2))
    store = Store(tmp_path, room=0)
    kept = [SampleOnDisk(store, "conv", i, s) if in_files else s for i, s in enumerate(samples)]
    batches = PartBatches(kept, part, relu, Device("cpu"))
    assert len(batches) == count
    for index, sample in enumerate(samples):
        batch = batches[index]
        np.testing.assert_array_equal(batch.patches, sample.patches[1:3])
        np.testing.assert_array_equal(batch.targets, np.maximum(sample.targets[1:3, :2], 0))
        if sample.float_patches is None:
            assert batch.float_patches is None
        else:
            np.testing.assert_array_equal(batch.float_patches, sample.float_patches[1:3])
        # What is in files is read anew each time, nothing of it stays in memory.
        assert (batches[index] is batch) != in_files


def test_the_loop_goes_as_the_configuration_says():
    plain = ADAROUND.settings(AdaRound())
    assert plain.op_types == tuple(LAYERS)
    assert (plain.float_inputs, plain.at_once, plain.on_disk) == (False, False, False)
    assert (plain.independent, plain.batch_size, plain.selected_output) == (False, 1, None)
    other = ADAROUND.settings(
        AdaRound(
            fixed_seed=5,
            drop_ratio=0.5,
            mem_opt_level=2,
            cache_dir="there",
            parallel=True,
            batch_size=4,
            dynamic_batch=True,
            selective_update=True,
            output_index=1,
            target_op_type=("Gemm",),
        )
    )
    assert (other.seed, other.op_types) == (5, ("Gemm",))
    assert (other.float_inputs, other.at_once, other.on_disk) == (True, False, True)
    assert (other.cache_dir, other.independent) == ("there", True)
    assert (other.batch_size, other.selected_output) == (4, 1)
    assert ADAROUND.settings(AdaRound(mem_opt_level=0)).at_once


@pytest.mark.parametrize("kind", [AdaRound, AdaQuant])
def test_normalizations_are_tuned_unless_others_are_asked_for(kind, tmp_path):
    def stored(**fields):
        config = msgspec.structs.replace(
            find_preset("A16W8"),
            smooth_quant=None,
            equalization=None,
            target=everything_in_integers(tmp_path),
            refinement=kind(num_iterations=3, **fields),
        )
        result = lowbit.quantize(transformer(), data=tokens(2), config=config)
        (note,) = [n for n in result.report.notes if n.startswith("refined")]
        return int(note.split(" of ")[1].split()[0])

    everything, linear = stored(), stored(target_op_type=("MatMul", "Gemm"))
    norms = [n for n in transformer().graph.node if n.op_type == "LayerNormalization"]
    assert everything == linear + len(norms)
    assert norms
