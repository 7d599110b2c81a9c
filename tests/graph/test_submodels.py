from __future__ import annotations

import pathlib

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from lowbit.errors import ModelError
from lowbit.graph import io
from lowbit.graph.session import session
from lowbit.graph.submodels import (
    Extractor,
    _choose_starts,
    _crossing_counts,
    open_tails,
)

X = np.float32([1.0, -2.0, 3.0])

CHAIN = """g (float[3] x) => (float[3] y) {
  a = Neg(x)
  b = Mul(a, w)
  c = Add(b, a)
  y = Abs(c)
}"""

BRANCHES = """g (float[3] x, bool p) => (float[3] y) {
  a = Neg(x)
  b = Mul(a, w)
  y = If(p) <
    then_branch = t () => (float[3] d) { e = Add(b, w) d = Abs(e) },
    else_branch = f () => (float[3] h) {
      h = If(p) <
        then_branch = u () => (float[3] i) { i = Identity(x) },
        else_branch = v () => (float[3] j) { j = Sub(b, x) }
      >
    }
  >
}"""


@pytest.fixture
def chain(parse) -> ir.Model:
    return io.load(parse(CHAIN, {"w": np.float32([2, 3, 4])}))


@pytest.fixture
def branches(parse) -> ir.Model:
    return io.load(parse(BRANCHES, {"w": np.float32([2, 3, 4])}))


def _run(part: ir.Model, outputs: list[str], **feed: np.ndarray) -> list[np.ndarray]:
    with session(part) as running:
        return running.run(outputs, feed)


def test_a_sub_model_computes_its_outputs_from_its_inputs(chain) -> None:
    a, b = np.float32([1, 2, 3]), np.float32([5, -7, 9])

    part = Extractor(chain).model({"b": None, "a": None}, ["c", "y"])

    c, y = _run(part, ["c", "y"], a=a, b=b)
    np.testing.assert_array_equal(c, a + b)
    np.testing.assert_array_equal(y, np.abs(a + b))
    assert [node.op_type for node in part.graph] == ["Add", "Abs"]
    assert [value.name for value in part.graph.inputs] == ["b", "a"]
    assert not part.graph.initializers, "the weight is no part of it"


def test_the_model_itself_stays_as_it_was(branches) -> None:
    before = io.to_proto(branches).SerializeToString(deterministic=True)

    Extractor(branches).model(
        {"b": np.dtype(np.float16), "p": None},
        ["y"],
        {"w": np.zeros(3, np.float32), "x": X},
    )

    assert io.to_proto(branches).SerializeToString(deterministic=True) == before


def test_an_input_that_nothing_reads_may_be_fed_all_the_same(chain) -> None:
    part = Extractor(chain).model({"x": None, "c": None}, ["y"])

    np.testing.assert_array_equal(_run(part, ["y"], x=X, c=X)[0], np.abs(X))


def test_an_input_may_be_handed_on_as_an_output(chain) -> None:
    part = Extractor(chain).model({"b": None, "a": None}, ["b", "y"])

    b, y = _run(part, ["b", "y"], a=X, b=2 * X)

    np.testing.assert_array_equal(b, 2 * X)
    np.testing.assert_array_equal(y, np.abs(3 * X))


@pytest.mark.parametrize("cut", [{"b": 3 * X, "x": X}, {"a": X / 2, "x": X}, {"x": X}])
@pytest.mark.parametrize("branch", [True, False])
def test_branches_read_values_of_the_graph_around_them(
    branches, run, cut: dict[str, np.ndarray], *, branch: bool
) -> None:
    p, w = np.array(branch), np.float32([2, 3, 4])
    b = cut.get("b", cut.get("a", -X) * w)
    expected = np.abs(b + w) if branch else b - X

    part = Extractor(branches).model(dict.fromkeys((*cut, "p")), ["y"])

    np.testing.assert_array_equal(_run(part, ["y"], p=p, **cut)[0], expected)
    if set(cut) == {"x"}:
        np.testing.assert_array_equal(run(io.to_proto(branches), {"x": X, "p": p})[0], expected)


def test_a_weight_that_only_a_branch_reads_comes_along(branches) -> None:
    part = Extractor(branches).model(dict.fromkeys(("b", "x", "p")), ["y"])

    assert list(part.graph.initializers) == ["w"]


def test_loops_read_values_of_the_graph_around_them(parse, run) -> None:
    proto = parse(
        """g (float[3] x, int64 n, bool go) => (float[3] y) {
          step = Mul(x, w)
          y = Loop(n, go, x) <
            body = l (int64 i, bool c, float[3] s) => (bool d, float[3] r) {
              r = Add(s, step)
              d = Identity(c)
            }
          >
        }""",
        {"w": np.float32([2, 3, 4])},
    )
    given = {"n": np.array(2), "go": np.array(True)}

    part = Extractor(io.load(proto)).model(dict.fromkeys(("x", "step", "n", "go")), ["y"])

    found = _run(part, ["y"], x=X, step=np.float32([1, 1, 1]), **given)[0]
    np.testing.assert_array_equal(found, X + 2)
    step = X * np.float32([2, 3, 4])
    expected = run(proto, {"x": X, **given})[0]
    np.testing.assert_array_equal(_run(part, ["y"], x=X, step=step, **given)[0], expected)


def test_a_value_that_a_branch_reads_must_be_given(branches) -> None:
    with pytest.raises(ValueError, match="required but not provided: x"):
        Extractor(branches).model({"b": None, "p": None}, ["y"])


def test_inputs_that_do_not_suffice_are_refused(chain) -> None:
    with pytest.raises(ValueError, match="required but not provided: x"):
        Extractor(chain).model({"b": None}, ["y"])


@pytest.mark.parametrize(("inputs", "outputs"), [(["zz"], ["y"]), (["x"], ["zz"])])
def test_names_that_the_model_does_not_have_are_named(
    chain, inputs: list[str], outputs: list[str]
) -> None:
    with pytest.raises(ValueError, match="'zz' not found"):
        Extractor(chain).model(dict.fromkeys(inputs), outputs)


def test_a_constant_takes_the_place_of_a_computed_value(chain) -> None:
    part = Extractor(chain).model({"x": None}, ["y"], {"b": np.float32([10, 20, 30])})

    np.testing.assert_array_equal(_run(part, ["y"], x=X)[0], np.abs(np.float32([10, 20, 30]) - X))
    assert [value.name for value in part.graph.inputs] == ["x"]
    assert "Mul" not in {node.op_type for node in part.graph}


def test_a_constant_takes_the_place_of_a_weight(chain) -> None:
    part = Extractor(chain).model({"x": None}, ["y"], {"w": np.float32([0, 1, 2])})

    np.testing.assert_array_equal(_run(part, ["y"], x=X)[0], [1, 4, 9])


def test_a_constant_takes_the_place_of_an_input(branches) -> None:
    part = Extractor(branches).model({"x": None}, ["y"], {"p": np.array(False)})

    np.testing.assert_array_equal(_run(part, ["y"], x=X)[0], [-3, 8, -15])


def test_an_array_that_is_not_in_row_order_is_a_constant_as_well(parse) -> None:
    model = io.load(parse("g (float[2,3] x) => (float[2,3] y) { h = Abs(x) y = Neg(h) }"))
    array = np.arange(6, dtype=np.float32).reshape(3, 2).T

    part = Extractor(model).model({}, ["y"], {"h": array})

    np.testing.assert_array_equal(_run(part, ["y"])[0], -array)


def test_all_of_a_model_may_be_constant(chain) -> None:
    part = Extractor(chain).model({}, ["y"], {"x": X})

    np.testing.assert_array_equal(_run(part, ["y"])[0], np.abs(-X * np.float32([3, 4, 5])))


def test_the_type_of_an_inner_value_may_be_given(parse) -> None:
    model = io.load(
        parse("g (float[3] x) => (int64[3] y) { h = Cast<to=7>(x) i = Identity(h) y = Neg(i) }")
    )
    assert model.graph[1].outputs[0].type is None

    part = Extractor(model).model({"i": np.dtype(np.int64)}, ["y"])

    assert _run(part, ["y"], i=np.int64([1, 2]))[0].tolist() == [-1, -2]


def test_an_unknown_type_is_taken_for_float(chain) -> None:
    assert chain.graph[1].outputs[0].type is None

    part = Extractor(chain).model({"b": None, "a": None}, ["y"])

    assert {value.dtype for value in part.graph.inputs} == {ir.DataType.FLOAT}


def test_a_known_type_stays(branches) -> None:
    part = Extractor(branches).model(dict.fromkeys(("b", "x", "p")), ["y"])

    types = {str(value.name): value.dtype for value in part.graph.inputs}
    assert types == {"b": ir.DataType.FLOAT, "x": ir.DataType.FLOAT, "p": ir.DataType.BOOL}


def test_a_type_that_is_given_overrides_the_models(parse) -> None:
    model = io.load(parse("g (float[3] x) => (float[3] y) { y = Neg(x) }"))

    part = Extractor(model).model({"x": np.dtype(np.float64)}, ["y"])
    part.graph.outputs[0].type = None

    assert _run(part, ["y"], x=np.float64([1, 2, 3]))[0].dtype == np.float64


@pytest.fixture
def settable(parse) -> ir.Model:
    """Return a model with an input that has a default."""
    return io.load(
        parse(
            "g (float[3] x, float[3] k) => (float[3] y) { h = Mul(x, k) y = Add(h, k) }",
            {"k": np.float32([1, 2, 3])},
        )
    )


def test_an_input_with_a_default_need_not_be_fed(settable) -> None:
    part = Extractor(settable).model({"h": None}, ["y"], defaults=["k"])

    np.testing.assert_array_equal(_run(part, ["y"], h=X)[0], X + np.float32([1, 2, 3]))
    np.testing.assert_array_equal(_run(part, ["y"], h=X, k=X)[0], 2 * X)
    assert [value.name for value in part.graph.inputs] == ["h", "k"]


def test_a_default_that_is_not_asked_for_cannot_be_fed(settable) -> None:
    part = Extractor(settable).model({"h": None}, ["y"])

    np.testing.assert_array_equal(_run(part, ["y"], h=X)[0], X + np.float32([1, 2, 3]))
    with pytest.raises(ModelError, match="no input 'k'"):
        _run(part, ["y"], h=X, k=X)


def test_a_default_that_a_branch_reads_can_be_fed(parse) -> None:
    model = io.load(
        parse(
            """g (float[3] x, bool p, float[3] k) => (float[3] y) {
              h = Neg(x)
              y = If(p) <
                then_branch = t () => (float[3] a) { a = Mul(h, k) },
                else_branch = e () => (float[3] b) { b = Identity(h) }
              >
            }""",
            {"p": np.array(True), "k": np.float32([1, 2, 3])},
        )
    )

    part = Extractor(model).model({"h": None}, ["y"], defaults=["p", "k"])

    assert _run(part, ["y"], h=X)[0].tolist() == [1, -4, 9]
    assert _run(part, ["y"], h=X, k=X)[0].tolist() == [1, 4, 9]
    assert _run(part, ["y"], h=X, p=np.array(False))[0].tolist() == X.tolist()


def test_functions_and_other_operators_come_along() -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17, "local": 1, "com.microsoft": 1]>
        g (float[2,4] x) => (float[2,4] y) {
          a = Neg(x)
          b = local.Double(a)
          y = com.microsoft.Gelu(b)
        }
        <domain: "local", opset_import: ["": 17]>
        Double (v) => (r) { r = Add(v, v) }"""
    )
    model = io.load(proto)
    x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
    expected = _run(model, ["y"], x=x)[0]

    part = Extractor(model).model({"a": None}, ["y"])

    np.testing.assert_array_equal(_run(part, ["y"], a=-x)[0], expected)


def test_a_session_runs_the_part_alone(chain) -> None:
    running = Extractor(chain).session({"b": None}, ["y"], {"a": X}, name="a layer")

    np.testing.assert_array_equal(running.run(["y"], {"b": X})[0], np.abs(2 * X))
    with pytest.raises(
        ModelError, match="onnxruntime cannot run a layer: its input 'b' is missing"
    ):
        running.run(["y"], {})


def test_a_session_reads_weights_from_beside_the_model(chain, tmp_path: pathlib.Path) -> None:
    io.save(chain, tmp_path / "m.onnx", external_data=True)

    running = Extractor(io.load(tmp_path / "m.onnx")).session({"a": None}, ["b"])

    assert running.run(["b"], {"a": X})[0].tolist() == [2, -6, 12]


def test_parts_of_random_graphs_compute_what_the_whole_does(rng) -> None:
    for _ in range(10):
        model, names = _random_model(rng, nodes=20)
        with session(model, names) as running:
            values = dict(zip(names, running.run(names, {"x": X}), strict=True)) | {"x": X}
        start = int(rng.integers(1, 19))
        wanted = sorted(rng.choice(names[start:], 2, replace=False).tolist())
        # Everything before the start may be read: what is not needed does no harm.
        inputs = ["x", *names[:start]]

        part = Extractor(model).model(dict.fromkeys(inputs), wanted)

        found = _run(part, wanted, **{name: values[name] for name in inputs})
        for name, array in zip(wanted, found, strict=True):
            np.testing.assert_array_equal(array, values[name])


def _random_model(
    rng: np.random.Generator, nodes: int, outputs: tuple[int, ...] = (-1,)
) -> tuple[ir.Model, list[str]]:
    """Return a model of additions and subtractions of earlier values, and what they are called."""
    names = ["x"]
    lines = []
    for number in range(nodes):
        a, b = rng.choice(names, 2)
        a = names[-1] if number % 3 else a
        lines.append(f"t{number} = {('Add', 'Sub')[number % 2]}({a}, {b})")
        names.append(f"t{number}")
    results = ", ".join(f"float[3] {names[index]}" for index in outputs)
    text = f"g (float[3] x) => ({results}) {{ {' '.join(lines)} }}"
    header = '<ir_version: 8, opset_import: ["": 17]>'
    return io.load(onnx.parser.parse_model(f"{header}\n{text}")), names[1:]


def test_crossing_counts_are_those_of_counting(rng) -> None:
    model, _ = _random_model(rng, nodes=30)
    nodes = list(model.graph)

    counts = _crossing_counts(nodes)

    for index in range(len(nodes)):
        made = {value for node in nodes[:index] for value in node.outputs}
        read = {value for node in nodes[index:] for value in node.inputs}
        assert counts[index] == len(made & read)


def test_values_that_branches_read_count_as_crossing(branches) -> None:
    # Before the If: a is used up, b is read inside both of its branches.
    assert _crossing_counts(list(branches.graph))[:3] == [0, 1, 1]


def test_tails_begin_where_the_fewest_values_cross(parse) -> None:
    """Of three blocks, in each of which two values are alive beside the chain's."""
    lines, last = [], "x"
    for block in range(6):
        lines += [
            f"a{block} = Neg({last})",
            f"b{block} = Abs(a{block})",
            f"c{block} = Mul(a{block}, b{block})",
            f"d{block} = Add(c{block}, b{block})",
            f"e{block} = Add(d{block}, a{block})",
            f"f{block} = Neg(e{block})",
        ]
        last = f"f{block}"
    nodes = list(
        io.load(parse(f"g (float[3] x) => (float[3] {last}) {{ {' '.join(lines)} }}")).graph
    )
    counts = _crossing_counts(nodes)

    starts = _choose_starts(nodes, 3)

    assert starts[0] == 0
    assert len(starts) == 3
    assert [counts[start] for start in starts[1:]] == [1, 1]
    # Near a third and two thirds of the 36 nodes.
    assert abs(starts[1] - 12) <= 3
    assert abs(starts[2] - 24) <= 3


@pytest.mark.parametrize(("nodes", "expected"), [(35, 1), (36, 3)])
def test_a_small_model_has_no_tails(rng, nodes: int, expected: int) -> None:
    model, _ = _random_model(rng, nodes)

    assert len(_choose_starts(list(model.graph), 3)) == expected


@pytest.mark.parametrize(
    "outputs", [(-1,), (-1, 1), (-1, 20, 3)], ids=["last", "last and first", "in between"]
)
def test_every_tail_gives_the_outputs_of_the_whole(rng, outputs: tuple[int, ...]) -> None:
    model, names = _random_model(rng, 48, outputs)
    wanted = [str(value.name) for value in model.graph.outputs]

    with open_tails(model, 4, [names[7]], "the net") as tails:
        whole = tails[0]
        found = whole.session.outputs
        values = dict(zip(found, whole.session.run(found, {"x": X}), strict=True)) | {"x": X}
        results = [
            tail.session.run(wanted, {name: values[name] for name in tail.inputs}) for tail in tails
        ]

    assert len(tails) == 4
    assert [tail.start for tail in tails] == sorted({tail.start for tail in tails})
    assert [tail.share for tail in tails] == [1 - tail.start / 48 for tail in tails]
    assert names[7] in found
    assert found[: len(wanted)] == wanted
    for result in results:
        for name, array in zip(wanted, result, strict=True):
            np.testing.assert_array_equal(array, values[name])


def test_tails_take_other_inputs_and_switches(parse) -> None:
    """A switch after each tenth node: an If whose branches read the values around it."""
    lines, last, defaults = [], "x", {}
    for block in range(5):
        defaults |= {f"p{block}": np.array(True), f"k{block}": np.float32(block + 2)}
        for number in range(10):
            lines.append(f"t{block}_{number} = Add({last}, z)")
            last = f"t{block}_{number}"
        lines.append(
            f"s{block} = If(p{block}) <"
            f"then_branch = a{block} () => (float[3] b{block}) {{ b{block} = Div({last}, k{block}) }},"
            f"else_branch = c{block} () => (float[3] d{block}) {{ d{block} = Identity({last}) }}>"
        )
        last = f"s{block}"
    switches = ", ".join(f"bool p{b}, float k{b}" for b in range(5))
    model = io.load(
        parse(
            f"g (float[3] x, float[3] z, {switches}) => (float[3] s4) {{ {' '.join(lines)} }}",
            defaults,
        )
    )
    feed = {"x": X, "z": np.float32([1, 1, 1])}

    def expected(off: frozenset[int] = frozenset(), factor: float = 6.0) -> np.ndarray:
        value = X
        for block in range(5):
            value = value + np.float32(10)
            divisor = np.float32(factor if block == 4 else block + 2)
            value = value if block in off else value / divisor
        return value

    with open_tails(model, 4, [], "the net") as tails:
        whole = tails[0]
        names = whole.session.outputs
        values = dict(zip(names, whole.session.run(names, feed), strict=True)) | feed
        for tail in tails:
            given = {name: values[name] for name in tail.inputs}
            off = {"p4": np.array(False)}
            factor = {"k4": np.array(-3, np.float32)}
            for change, result in (
                ({}, expected()),
                (off, expected(frozenset({4}))),
                (factor, expected(factor=-3)),
            ):
                found = tail.session.run(["s4"], given | change)[0]
                np.testing.assert_allclose(found, result, rtol=1e-5)

    assert len(tails) == 4
    assert whole.defaults == set(defaults)
    assert whole.inputs == ("x", "z")
    assert all({"p4", "k4"} <= tail.defaults for tail in tails)
    assert "p0" not in tails[-1].defaults
    assert all("z" in tail.inputs for tail in tails)


def test_tails_share_one_file_of_weights(
    parse, floats, monkeypatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    lines = " ".join(
        f"t{k} = MatMul({'x' if k == 0 else f't{k - 1}'}, w{k % 4})" for k in range(24)
    )
    weights = {f"w{k}": 0.1 * floats(64, 64) for k in range(4)}
    model = io.load(parse(f"g (float[1,64] x) => (float[1,64] t23) {{ {lines} }}", weights))

    with open_tails(model, 2, [], "the net") as tails:
        (folder,) = tmp_path.iterdir()
        sizes = {path.name: path.stat().st_size for path in folder.iterdir()}

    assert len(tails) == 2
    assert sizes.pop("weights.bin") >= 4 * 64 * 64 * 4
    assert len(sizes) == 3
    assert all(size < 64 * 64 * 4 for size in sizes.values())
    assert not list(tmp_path.iterdir()), "the files go with the sessions"


def test_an_output_that_is_a_constant_or_an_input_comes_out_of_every_tail(rng) -> None:
    model, _ = _random_model(rng, 48)
    graph = model.graph
    constant = ir.val("k", const_value=ir.tensor(np.float32([7, 8, 9]), name="k"))
    graph.register_initializer(constant)
    graph.outputs.extend([constant, graph.inputs[0]])

    with open_tails(model, 2, [], "the net") as tails:
        names = tails[0].session.outputs
        values = dict(zip(names, tails[0].session.run(names, {"x": X}), strict=True)) | {"x": X}
        feed = {name: values[name] for name in tails[1].inputs}
        found = tails[1].session.run(["k", "x"], feed)

    np.testing.assert_array_equal(found[0], [7, 8, 9])
    np.testing.assert_array_equal(found[1], X)
