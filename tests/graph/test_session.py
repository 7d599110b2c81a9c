from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from helpers.small_models import small_cnn, small_feeds

from lowbit.data import InputInfo
from lowbit.errors import ConfigError, ModelError
from lowbit.graph import io
from lowbit.graph.session import (
    Session,
    input_dtype,
    model_inputs,
    providers_of,
    session,
    with_outputs,
)

CHAIN = """g (float[n,8] image, int64[1] index) => (float[n,3] scores) {
  hidden = MatMul(image, w)
  active = Relu(hidden)
  picked = Gather(shift, index)
  scores = Add(active, picked)
}"""


@pytest.fixture
def chain(parse, floats) -> onnx.ModelProto:
    return parse(CHAIN, {"w": floats(8, 3), "shift": floats(4)})


@pytest.fixture
def feed(floats) -> dict[str, np.ndarray]:
    return {"image": floats(2, 8), "index": np.int64([1])}


def test_extra_outputs_are_the_inner_values(chain, feed, run) -> None:
    probe = onnx.ModelProto()
    probe.CopyFrom(chain)
    probe.graph.output.extend(onnx.ValueInfoProto(name=name) for name in ("hidden", "active"))

    with session(io.load(chain), ["active", "hidden", "active", "scores"]) as running:
        found = running.run(["hidden", "active", "scores"], feed)

    for expected, actual in zip(
        run(probe, feed, ["hidden", "active", "scores"]), found, strict=True
    ):
        np.testing.assert_array_equal(actual, expected)


def test_memory_that_is_not_planned_changes_no_number(chain, feed) -> None:
    message = chain.SerializeToString()
    sessions = [
        Session(message, threads=1, optimize="none", name="chain", plan_memory=planned)
        for planned in (True, False)
    ]

    want, got = (running.run(["scores"], feed)[0] for running in sessions)

    np.testing.assert_array_equal(got, want)


MAPS = """g (float[1,4,512,512] x) => (float[1,1,1,1] y) {
  a = Relu(x)
  b = Neg(a)
  c = Exp(b)
  d = Neg(c)
  e = Concat<axis = 1>(a, b, c, d)
  f = ReduceMax<axes = [1]>(e)
  y = ReduceMean<axes = [2, 3]>(f)
}"""
GROWTH = """
import sys
import numpy as np
from lowbit.graph.memory import resident_bytes
from lowbit.graph.session import Session
session = Session(sys.argv[1], threads=1, optimize="all", name="maps")
feed = {"x": np.ones((1, 4, 512, 512), np.float32)}
before = resident_bytes()
session.run(["y"], feed)
first = resident_bytes()
session.run(["y"], feed)
print(first - before, resident_bytes() - first)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says it in /proc")
def test_a_second_run_takes_no_more_memory_than_the_first(parse, tmp_path) -> None:
    path = tmp_path / "maps.onnx"
    onnx.save(parse(MAPS, {}), path)

    command = [sys.executable, "-c", GROWTH, str(path)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    first, more = map(int, said.split())

    assert first > 20 << 20  # maps of 4 MB, and the 16 MB of all together
    assert more < 4 << 20


def test_an_input_asked_for_outlives_what_was_fed(chain, floats) -> None:
    image, index = floats(2, 8), np.int64([1])
    expected = image.copy()

    with session(io.load(chain), ["image"]) as running:
        for run in (running.run, lambda outputs, feed: running.repeated(outputs)(feed)):
            (found, scores) = run(["image", "scores"], {"image": image.copy(), "index": index})
            others = [np.full_like(image, 9.0) for _ in range(64)]  # takes what was freed
            np.testing.assert_array_equal(found, expected)
            assert scores.shape == (2, 3)
            assert len(others) == 64
        assert running.run(["image"], {"image": image, "index": index})[0] is image


def test_the_models_own_outputs_come_first(chain) -> None:
    with session(io.load(chain), ["hidden"]) as running:
        assert running.outputs == ["scores", "hidden"]


def test_extra_outputs_leave_the_model_alone(chain) -> None:
    model = io.load(chain)

    probe = with_outputs(model, ["hidden"])

    assert [value.name for value in model.graph.outputs] == ["scores"]
    assert [value.name for value in probe.graph.outputs] == ["scores", "hidden"]


def test_an_unknown_extra_output_names_the_nearest(chain) -> None:
    with pytest.raises(ModelError, match="no tensor 'hiden'; did you mean 'hidden'"):
        with_outputs(io.load(chain), ["hiden"])


def test_a_value_inside_a_branch_cannot_be_an_output(parse) -> None:
    model = io.load(
        parse(
            """g (float[2] x, bool p) => (float[2] y) {
              y = If(p) <
                then_branch = t () => (float[2] a) { inner = Neg(x) a = Abs(inner) },
                else_branch = e () => (float[2] b) { b = Relu(x) }
              >
            }"""
        )
    )

    with pytest.raises(ModelError, match="no tensor 'inner'"):
        with_outputs(model, ["inner"])


@pytest.mark.parametrize("optimize", ["none", "all"])
def test_runs_from_many_threads_do_not_mix(chain, floats, run, optimize: str) -> None:
    feeds = [{"image": floats(1 + k % 5, 8), "index": np.int64([k % 4])} for k in range(64)]
    expected = [run(chain, feed)[0] for feed in feeds]

    with (
        session(io.load(chain), ["hidden"], threads=1, optimize=optimize) as running,
        ThreadPoolExecutor(8) as pool,
    ):
        found = list(pool.map(lambda feed: running.run(["scores", "hidden"], feed)[0], feeds))

    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"imgae": np.zeros((1, 8), np.float32)}, "no input 'imgae'; did you mean 'image'"),
        ({"image": None}, r"its input 'image' is missing from the feed \(given: index\)"),
        ({"image": np.zeros((1, 8))}, "'image' is of type float64; expected float32"),
        ({"index": np.int32([1])}, "'index' is of type int32; expected int64"),
        ({"image": np.zeros((1, 7), np.float32)}, "image"),
        ({"image": np.zeros(8, np.float32)}, "image"),
    ],
    ids=["unknown", "missing", "float64", "int32", "size", "rank"],
)
def test_a_wrong_feed_names_the_input(chain, feed, change: dict, message: str) -> None:
    wrong = {name: data for name, data in {**feed, **change}.items() if data is not None}

    with (
        session(io.load(chain), name="net.onnx") as running,
        pytest.raises(ModelError, match=message) as caught,
    ):
        running.run(["scores"], wrong)

    assert str(caught.value).startswith("onnxruntime cannot run net.onnx: ")


def test_a_wrong_output_names_the_nearest(chain, feed) -> None:
    with (
        session(io.load(chain)) as running,
        pytest.raises(ModelError, match="no output 'score'; did you mean 'scores'"),
    ):
        running.run(["score"], feed)


def test_a_failure_inside_the_model_is_told(chain, feed) -> None:
    with (
        session(io.load(chain), name="net.onnx") as running,
        pytest.raises(
            ModelError, match=r"cannot run net.onnx: .*indices element out of data bounds"
        ),
    ):
        running.run(["scores"], {**feed, "index": np.int64([9])})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ir_version": 99}, r"its IR version is 99, and onnxruntime \S+ knows up to \d+; install"),
        (
            {"opset": 99},
            r"its operator set is 99, and onnxruntime \S+ knows up to \d+; install a newer",
        ),
    ],
)
def test_a_model_that_is_too_new_is_told_so(parse, change: dict, message: str) -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = Relu(x) }", **change)

    with pytest.raises(ModelError, match=message):
        Session(model.SerializeToString(), threads=1, optimize="none", name="m.onnx")


def test_a_file_that_does_not_load_is_named(tmp_path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"no model")

    with pytest.raises(ModelError, match=r"onnxruntime cannot load m.onnx: "):
        Session(tmp_path / "m.onnx", threads=1, optimize="none", name="m.onnx")


def test_a_model_with_nodes_of_one_name_runs(parse, floats) -> None:
    model = io.load(parse("g (float[2] x) => (float[2] y) { [n] h = Neg(x) [n] y = Abs(h) }"))
    x = floats(2)

    with session(model) as running:
        np.testing.assert_array_equal(running.run(["y"], {"x": x})[0], np.abs(x))


def test_the_temporary_copy_is_removed(chain, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    with session(io.load(chain)):
        assert len(list(tmp_path.iterdir())) == 1

    assert not list(tmp_path.iterdir())


def test_the_type_of_an_input_is_told() -> None:
    assert input_dtype(ir.val("x", ir.DataType.FLOAT16)) == np.float16


def test_an_input_without_type_is_refused() -> None:
    with pytest.raises(ModelError, match="'x' has no element type"):
        input_dtype(ir.val("x"))


def test_repeated_runs_give_what_single_runs_give(chain, floats, run) -> None:
    """Shapes change and change back; an input and a batch not in row order are among them."""
    sizes = [2, 2, 3, 2, 1, 2]
    feeds = [{"image": floats(n, 8), "index": np.int64([n])} for n in sizes]
    feeds[3]["image"] = np.asfortranarray(feeds[3]["image"])

    with session(io.load(chain), ["image", "hidden"], threads=1) as running:
        again = running.repeated(["image", "hidden", "scores"])
        for feed in feeds:
            image, hidden, scores = (array.copy() for array in again(feed))
            np.testing.assert_array_equal(image, feed["image"])
            np.testing.assert_allclose(hidden, running.run(["hidden"], feed)[0], rtol=1e-6)
            np.testing.assert_allclose(scores, run(chain, feed)[0], rtol=1e-6)


def test_repeated_runs_hand_back_the_same_arrays(chain, floats) -> None:
    feeds = [{"image": floats(2, 8), "index": np.int64([1])} for _ in range(2)]

    with session(io.load(chain), threads=1) as running:
        again = running.repeated(["scores"])
        first, second = again(feeds[0])[0], again(feeds[1])[0]

    assert np.shares_memory(first, second)


def test_repeated_runs_take_outputs_whose_shape_depends_on_values(parse) -> None:
    graph = "g (float[n] x) => (int64[1,m] at) { at = NonZero(x) }"
    feeds = [{"x": np.float32(v)} for v in ([1, 0, 2], [1, 1, 1], [0, 3, 0])]

    with session(io.load(parse(graph)), threads=1) as running:
        again = running.repeated(["at"])
        found = [again(feed)[0].tolist() for feed in feeds]

    assert found == [[[0, 2]], [[0, 1, 2]], [[1]]]


def test_a_wrong_feed_of_a_repeated_run_names_the_input(chain, feed) -> None:
    with session(io.load(chain), threads=1) as running:
        again = running.repeated(["scores"])
        again(feed)
        with pytest.raises(ModelError, match="'image' is of type float64; expected float32"):
            again(feed | {"image": feed["image"].astype(np.float64)})


def test_a_session_is_closed_where_its_block_ends() -> None:
    with session(io.load(small_cnn())) as running:
        running.run(["logits"], small_feeds(1)[0])

    with pytest.raises(ModelError, match="closed"):
        running.run(["logits"], small_feeds(1)[0])


@pytest.fixture
def settable(parse) -> ir.Model:
    """Return a model with an input that has a default."""
    return io.load(
        parse(
            "g (float[2] x, float[2] k) => (float[2] y) { y = Mul(x, k) }",
            {"k": np.float32([2, 3])},
        )
    )


def test_an_input_with_a_default_may_be_fed_or_not(settable) -> None:
    x, k = np.float32([1, 2]), np.float32([5, 6])

    with session(settable) as running:
        assert running.run(["y"], {"x": x})[0].tolist() == [2, 6]
        assert running.run(["y"], {"x": x, "k": k})[0].tolist() == [5, 12]


def test_a_wrong_feed_for_a_default_is_named(settable) -> None:
    x = np.float32([1, 2])

    with session(settable) as running:
        with pytest.raises(ModelError, match="its input 'k' is of type float64; expected float32"):
            running.run(["y"], {"x": x, "k": np.float64([5, 6])})
        with pytest.raises(ModelError, match="its input 'x' is missing from the feed"):
            running.run(["y"], {"k": x})


def test_inputs_say_what_they_want(parse) -> None:
    model = io.load(
        parse(
            "g (float[n,3,8] x, int64 ids, float16[] h, float[2] k) => (float[2] y) { y = Neg(k) }",
            {"k": np.float32([1, 2])},
        )
    )
    model.graph.inputs[2].shape = None

    assert model_inputs(model) == [
        InputInfo("x", np.dtype(np.float32), ("n", 3, 8)),
        InputInfo("ids", np.dtype(np.int64), ()),
        InputInfo("h", np.dtype(np.float16), None),
    ]


def test_an_input_of_strings_has_a_type_of_its_own() -> None:
    assert input_dtype(ir.val("x", ir.DataType.STRING)) == np.dtype(np.str_)


def test_a_size_of_minus_one_is_free(parse) -> None:
    model = io.load(parse("g (float[1,3] x) => (float[1,3] y) { y = Relu(x) }"))
    model.graph.inputs[0].shape = ir.Shape([-1, 3])

    assert model_inputs(model) == [InputInfo("x", np.dtype(np.float32), (None, 3))]


def test_an_input_that_is_no_tensor_is_refused_by_its_type() -> None:
    sequence = ir.val("x", type=ir.SequenceType(ir.TensorType(ir.DataType.FLOAT)))

    with pytest.raises(ModelError, match=r"input 'x' is a seq\(tensor\(float\)\); only tensors"):
        input_dtype(sequence)


def test_an_input_that_is_no_number_is_refused() -> None:
    with pytest.raises(ModelError, match="model input 'x' is of type UNDEFINED; expected numbers"):
        input_dtype(ir.val("x", ir.DataType.UNDEFINED))


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "cpu:one", ""])
def test_an_unknown_device_is_refused(device: str) -> None:
    with pytest.raises(ConfigError, match=rf"unknown device '{device}'; expected cpu, cuda:0"):
        providers_of(device)


def test_a_device_takes_the_first_provider_that_is_there(monkeypatch) -> None:
    def available(*names: str) -> None:
        monkeypatch.setattr(
            "onnxruntime.get_available_providers", lambda: [*names, "CPUExecutionProvider"]
        )

    assert providers_of("cpu") == ["CPUExecutionProvider"]
    available("ROCMExecutionProvider")
    assert providers_of("cuda:1") == [
        ("ROCMExecutionProvider", {"device_id": 1}),
        "CPUExecutionProvider",
    ]
    available("CUDAExecutionProvider", "ROCMExecutionProvider")
    assert providers_of("cuda")[0] == ("CUDAExecutionProvider", {"device_id": 0})
    available()
    with pytest.raises(
        ConfigError,
        match=r"no provider for 'cuda:0' here \(it has CPUExecution.*infer_device='cpu'",
    ):
        providers_of("cuda:0")


def test_the_memory_of_a_closed_session_is_released(chain, monkeypatch) -> None:
    released = []
    monkeypatch.setattr("lowbit.graph.session.release_memory", lambda: released.append(True))

    with session(io.load(chain)):
        assert released == []

    assert released == [True]


def test_of_no_outputs_there_are_no_values(parse, floats) -> None:
    with session(io.load(parse("g (float[4] x) => (float[4] y) { y = Relu(x) }"))) as running:
        assert running.run([], {"x": floats(4)}) == []
