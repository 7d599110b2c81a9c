"""The run of any refinement: what it gives, what it says, and what it refuses."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from helpers.chain_models import chain, smooth
from helpers.staged import everything_in_integers, quantized
from helpers.transformer_models import tokens, transformer
from onnx import numpy_helper

from lowbit.config.config import QuantConfig
from lowbit.config.presets import find_preset
from lowbit.config.refinement import AdaQuant, AdaRound, Gptq, LayerReconstruction
from lowbit.config.specs import BLOCKS, FloatSpec, IntegerSpec
from lowbit.errors import ConfigError
from lowbit.graph import sharing
from lowbit.graph.layerwise_run import LayerwiseRun
from lowbit.numerics.formats import FloatFormat, IntegerFormat
from lowbit.refine import refine as refining
from lowbit.refine.checkpoint import Checkpoint
from lowbit.refine.layers import LayerResult, find_layers
from lowbit.refine.refine import ALGORITHMS, Refined, algorithm_of, check_refinement, refine
from lowbit.state import Quantized

_CONFIG = msgspec.structs.replace(find_preset("A8W8"), equalization=None, head="int8")


@pytest.fixture(scope="module")
def state() -> Quantized:
    return quantized(chain(3), _CONFIG, smooth(6))


def _result(before: float, after: float, *, kept: bool = True) -> LayerResult:
    return LayerResult("n", np.zeros(1), None, before, after, kept=kept)


@pytest.mark.parametrize(
    ("results", "layers", "skipped", "note"),
    [
        ((), 0, (), "refined 0 of 0 layers"),
        (
            (_result(4.0, 2.0), _result(1.0, 0.125), _result(1.0, 1.0, kept=False)),
            3,
            (),
            # The geometric mean of a half and an eighth is a quarter.
            "refined 2 of 3 layers: their error on held-out samples fell to 25% on average",
        ),
        (
            (_result(4.0, 2.0),),
            3,
            (("a", "its weight is shared"), ("b", "other")),
            (
                "refined 1 of 3 layers: their error on held-out samples fell to 50% on average; "
                "interrupted after 1; 2 skipped (a: its weight is shared)"
            ),
        ),
        ((_result(0.0, 0.0),), 1, (), "refined 1 of 1 layers"),
    ],
)
def test_a_sentence_for_the_report(results, layers, skipped, note) -> None:
    assert Refined({}, {}, results, layers, skipped).note == note


@pytest.mark.parametrize("kind", [LayerReconstruction, Gptq, AdaRound, AdaQuant])
def test_every_kind_of_the_configuration_has_an_algorithm(kind) -> None:
    assert algorithm_of(kind()) is ALGORITHMS[kind]
    assert len(ALGORITHMS) == 4


def test_only_adaquant_takes_other_formats_than_integers() -> None:
    for spec in (FloatSpec(format=FloatFormat.BFLOAT16), BLOCKS["MX6"]):
        for kind in (LayerReconstruction, Gptq, AdaRound):
            config = QuantConfig(activation=None, weight=spec, refinement=kind())
            with pytest.raises(ConfigError) as raised:
                check_refinement(config)
            assert f"{kind.__name__} chooses which integer" in str(raised.value)
            assert f"to be {spec.describe()}; take AdaQuant" in str(raised.value)
        check_refinement(QuantConfig(activation=None, weight=spec, refinement=AdaQuant()))


@pytest.mark.parametrize(
    ("refinement", "message"),
    [
        (Gptq(infer_device="abacus"), "unknown device 'abacus'"),
        (LayerReconstruction(optim_device="cuda:9"), "optim_device"),
        (AdaRound(infer_device="cuda:0"), "infer_device='cpu'"),
    ],
)
def test_devices_that_are_not_there_are_refused(refinement, message) -> None:
    weight = IntegerSpec(format=IntegerFormat.INT8)

    with pytest.raises(ConfigError, match=message):
        check_refinement(QuantConfig(activation=None, weight=weight, refinement=refinement))


def test_what_is_not_asked_for_is_not_checked() -> None:
    check_refinement(QuantConfig(activation=None, weight=None))


def test_gptq_in_parallel_solves_each_layer_as_if_no_other_were(state: Quantized) -> None:
    in_turn = refine(state, Gptq(), lambda: smooth(6))
    in_parallel = refine(state, Gptq(parallel=True), lambda: smooth(6))

    # The first has the same inputs; those of the last show what became of the others.
    np.testing.assert_array_equal(in_parallel.weights["w0"], in_turn.weights["w0"])
    assert np.any(in_parallel.weights["w2"] != in_turn.weights["w2"])


def test_results_are_by_tensor_and_by_node(state: Quantized) -> None:
    found = refine(state, LayerReconstruction(), lambda: smooth(6))

    assert set(found.weights) == {"w0", "w1", "w2"}
    assert set(found.biases) == {"conv0", "conv1", "conv2"}
    assert found.layers == len(found.results) == 3
    for name, stored in found.weights.items():
        nearest = state.weights.tensors[name]()
        assert stored.dtype == nearest.dtype
        assert np.abs(stored.astype(int) - nearest).max() == 1


def test_large_samples_give_the_same_on_any_number_of_processors(
    state: Quantized, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "_LARGE", 1)
    found = []
    for processors in (1, 2, 5):
        monkeypatch.setattr(sharing, "cpu_count", lambda number=processors: number)
        found.append(refine(state, LayerReconstruction(), lambda: smooth(24)))

    assert any(result.kept for result in found[0].results)
    for other in found[1:]:
        assert other.weights.keys() == found[0].weights.keys()
        for name, stored in other.weights.items():
            np.testing.assert_array_equal(stored, found[0].weights[name])
        for node, bias in other.biases.items():
            np.testing.assert_array_equal(bias, found[0].biases[node])


def test_progress_is_told_after_each_layer(state: Quantized) -> None:
    told = []

    refine(
        state,
        LayerReconstruction(positions=8),
        lambda: smooth(4),
        lambda done, total, result: told.append((done, total, result.node)),
    )

    assert told == [(1, 3, "conv0"), (2, 3, "conv1"), (3, 3, "conv2")]


def test_an_interruption_gives_the_layers_done_so_far_if_asked_to(state: Quantized) -> None:
    def interrupt(done: int, *_: object) -> None:
        if done == 2:
            raise KeyboardInterrupt

    config = LayerReconstruction(positions=8)
    with pytest.raises(KeyboardInterrupt):
        refine(state, config, lambda: smooth(4), interrupt)
    found = refine(state, config, lambda: smooth(4), interrupt, keep_partial=True)

    assert [result.node for result in found.results] == ["conv0"]
    assert set(found.weights) == {"w0"}
    assert found.note.endswith("; interrupted after 1")


def test_layers_of_a_checkpoint_are_not_solved_again(state: Quantized, tmp_path) -> None:
    config = LayerReconstruction(positions=8)
    whole = refine(state, config, lambda: smooth(4))
    Checkpoint.open(tmp_path, "word", resume=False).save(whole.results[0])
    checkpoint = Checkpoint.open(tmp_path, "word", resume=True)
    told = []

    found = refine(
        state,
        config,
        lambda: smooth(4),
        lambda done, total, result: told.append(done),
        checkpoint,
    )

    assert told == [2, 3]
    for name, stored in whole.weights.items():
        np.testing.assert_array_equal(found.weights[name], stored)
    assert len(list(tmp_path.glob("*.layer"))) == 3


def test_a_checkpoint_of_all_layers_solves_none(state: Quantized, tmp_path) -> None:
    config = LayerReconstruction(positions=8)
    checkpoint = Checkpoint.open(tmp_path, "word", resume=False)
    whole = refine(state, config, lambda: smooth(4), checkpoint=checkpoint)

    def fail(*_: object) -> None:
        pytest.fail("a layer was solved")

    again = Checkpoint.open(tmp_path, "word", resume=True)
    found = refine(state, config, fail, fail, again)

    assert found.layers == len(found.results) == 3
    for name, stored in whole.weights.items():
        np.testing.assert_array_equal(found.weights[name], stored)


def test_as_many_feeds_are_read_as_asked_for(state: Quantized) -> None:
    read = []

    def feeds():
        for feed in smooth(6):
            read.append(1)
            yield feed

    refine(state, LayerReconstruction(data_size=2, positions=4), feeds)

    assert len(read) == 2


def test_another_float_model_may_be_followed(state: Quantized) -> None:
    """Its biases are higher by one half; so are those of the refined layers."""
    other = quantized(_raised(), _CONFIG, smooth(6)).calibrated_model

    config = LayerReconstruction(sweeps=0, held_out=0.0)
    plain = refine(state, config, lambda: smooth(6))
    follows = refine(state, config, lambda: smooth(6), reference=other)

    difference = follows.biases["conv0"] - plain.biases["conv0"]
    np.testing.assert_allclose(difference, 0.5, atol=1e-4)


def _raised():
    model = chain(3)
    for constant in model.graph.initializer:
        if constant.name.startswith("b"):
            raised = numpy_helper.to_array(constant) + np.float32(0.5)
            constant.CopyFrom(numpy_helper.from_array(raised, constant.name))
    return model


@pytest.mark.parametrize(
    ("refinement", "norms"),
    [
        (LayerReconstruction(positions=8), False),
        (Gptq(positions=8), False),
        (AdaRound(num_iterations=2), True),
        (AdaQuant(num_iterations=2), True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_gradient_methods_tune_normalizations_as_well(refinement, norms, tmp_path) -> None:
    """Reconstruction and GPTQ round the weights of linear layers alone."""
    model, feeds = transformer(), tokens(2)
    target = everything_in_integers(tmp_path)
    config = msgspec.structs.replace(_CONFIG, smooth_quant=None, target=target)
    state = quantized(model, config, feeds)

    found = refine(state, refinement, lambda: feeds)

    linear, _ = find_layers(state, ())
    normal, _ = find_layers(state, ("LayerNormalization",))
    assert normal
    names = {layer.weight.name for layer in linear}
    if norms:
        names |= {layer.weight.name for layer in normal}
    assert set(found.weights) == names


@pytest.mark.parametrize("level", [0, 1, 2])
def test_files_are_kept_where_asked_for_and_removed(
    state: Quantized, level, tmp_path, monkeypatch
) -> None:
    kept = tmp_path / "cache"
    config = AdaRound(num_iterations=2, mem_opt_level=level, cache_dir=str(kept))
    monkeypatch.setattr(refining, "_ROOM_WITH_SAMPLES", 0)
    seen = set()

    def look(*_: object) -> None:
        seen.update(path.relative_to(kept).parts[1:] for path in kept.rglob("*") if path.is_file())

    refine(state, config, lambda: smooth(2), look)

    assert seen
    assert not list(kept.iterdir())


def test_a_model_without_layers_reads_no_data() -> None:
    def never():
        raise AssertionError("the data was read")
        yield

    state = quantized(chain(1), _CONFIG, smooth(2))
    found = refine(state, AdaRound(target_op_type=("Gemm",)), never)

    assert (found.layers, found.results, found.note) == (0, (), "refined 0 of 0 layers")


def _opened(monkeypatch, state: Quantized, config, feeds) -> tuple[set[str], Refined]:
    """Return how the parts of the quantized model were optimized, and what came of them."""
    seen: set[str] = set()
    plain = LayerwiseRun.__init__

    def init(run, *args, **kwargs) -> None:
        if kwargs["name"] == "the quantized model":
            seen.add(kwargs.get("optimize", "none"))
        plain(run, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(LayerwiseRun, "__init__", init)
        found = refine(state, config, lambda: iter(feeds), samples=len(feeds))
    return seen, found


def test_the_layout_that_convolutions_run_in_changes_nothing(monkeypatch) -> None:
    """Sums of integers times powers of two are exact in any order."""
    config = msgspec.structs.replace(find_preset("XINT8"), equalization=None)
    state, feeds = quantized(chain(3), config, smooth(6)), smooth(6)
    quick, found = _opened(monkeypatch, state, LayerReconstruction(), feeds)
    monkeypatch.setattr(refining, "_optimize", lambda *_: "none")
    written, expected = _opened(monkeypatch, state, LayerReconstruction(), feeds)

    assert (quick, written) == ({"exact"}, {"none"})
    assert any(result.kept for result in found.results)
    for name, array in expected.weights.items():
        np.testing.assert_array_equal(found.weights[name], array)
    for name, bias in expected.biases.items():
        np.testing.assert_array_equal(found.biases[name], bias)


def test_what_does_not_convolve_or_looks_at_every_sample_runs_as_written(
    state, monkeypatch
) -> None:
    rows = quantized(transformer(), _CONFIG, tokens(4))
    seen, _ = _opened(monkeypatch, rows, LayerReconstruction(), tokens(4))
    assert seen == {"none"}
    seen, _ = _opened(monkeypatch, state, AdaRound(num_iterations=2), smooth(4))
    assert seen == {"none"}
