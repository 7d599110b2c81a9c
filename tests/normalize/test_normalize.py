"""The normal form of real models computes what the original does.

Set LOWBIT_ASSETS to a folder with models/*.onnx to run these.
"""

from __future__ import annotations

import os
import pathlib
import time

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

from lowbit.errors import ModelError
from lowbit.graph import io
from lowbit.graph.naming import names_of
from lowbit.graph.session import session
from lowbit.normalize.normalize import normalize, refuse_quantized


def ops(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def test_the_given_model_is_left_as_it_was(parse, floats, norm) -> None:
    model = io.load(
        parse(
            """g (float[1,3,8,8] x) => (float[1,4,6,6] y) {
              c = Conv(x, w)
              y = BatchNormalization(c, gamma, beta, mean, var)
            }""",
            {"w": floats(4, 3, 3, 3), **norm(4)},
        )
    )
    before = ir.to_proto(model).SerializeToString(deterministic=True)

    normalize(model)

    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


def test_a_normal_model_stays_as_it_is(parse, floats, norm) -> None:
    original = parse(
        """g (float[1,3,8,8] x) => (float[1,4,6,6] y) {
          c = Conv(x, w)
          b = BatchNormalization(c, gamma, beta, mean, var)
          s = HardSwish(b)
          y = Identity(s)
        }""",
        {"w": floats(4, 3, 3, 3), **norm(4)},
    )
    once = normalize(io.load(original))

    twice = normalize(once)

    first, second = (ir.to_proto(m).SerializeToString(deterministic=True) for m in (once, twice))
    assert first == second


def test_nodes_out_of_order_are_sorted(parse, floats, norm, assert_same) -> None:
    original = parse(
        """g (float[1,3,8,8] x) => (float[1,4,6,6] y) {
          c = Conv(x, w)
          b = BatchNormalization(c, gamma, beta, mean, var)
          y = Relu(b)
        }""",
        {"w": floats(4, 3, 3, 3), **norm(4)},
    )
    shuffled = onnx.ModelProto()
    shuffled.CopyFrom(original)
    nodes = list(original.graph.node)
    del shuffled.graph.node[:]
    shuffled.graph.node.extend(reversed(nodes))

    normal = normalize(io.load(shuffled))

    assert ops(normal) == ["Conv", "Relu"]
    assert_same(original, normal, {"x": floats(1, 3, 8, 8)})


def test_nodes_out_of_order_of_an_old_operator_set_are_sorted(parse, floats, assert_same) -> None:
    text = "g (float[4] x) => (float[4] y) {{ {} }}"
    original = parse(text.format("h = Neg(x) y = Relu(h)"), opset=9)
    shuffled = parse(text.format("y = Relu(h) h = Neg(x)"), opset=9)

    assert_same(original, normalize(io.load(shuffled)), {"x": floats(4)})


def test_a_cycle_is_refused(parse) -> None:
    original = parse("g (float[4] x) => (float[4] y) { a = Add(x, b) b = Neg(a) y = Relu(b) }")

    with pytest.raises(ModelError, match="the graph has a cycle"):
        normalize(io.load(original))


def test_initializers_that_are_inputs_become_constants(parse, floats, norm, assert_same) -> None:
    original = parse(
        """g (float[1,3,8,8] x, float[4,3,3,3] w, float[4] gamma, float[4] beta, float[4] mean,
           float[4] var) => (float[1,4,6,6] y) {
          c = Conv(x, w)
          y = BatchNormalization(c, gamma, beta, mean, var)
        }""",
        {"w": floats(4, 3, 3, 3), **norm(4)},
        opset=8,
        ir_version=3,
    )

    normal = normalize(io.load(original))

    assert [value.name for value in normal.graph.inputs] == ["x"]
    assert ops(normal) == ["Conv"]
    assert normal.ir_version >= 4
    onnx.checker.check_model(ir.to_proto(normal), full_check=True)
    assert_same(original, normal, {"x": floats(1, 3, 8, 8)})


LOOP = """g (float[2] x, int64 n, bool go, bool p) => (float[2] y, float[k,2] all) {
  w = Abs(v)
  h = Mul(x, w)
  i = Identity(h)
  y, all = Loop(n, go, i) <
    body = l (int64 index, bool c, float[2] s) => (bool d, float[2] r, float[2] scan) {
      k = Constant<value = float {0.5}>()
      half = Mul(s, k)
      inner = If(p) <
        then_branch = t () => (float[2] a) { u = Constant<value = float {2.0}>() a = Mul(half, u) },
        else_branch = e () => (float[2] b) { b = Sub(half, h) }
      >
      r = Add(inner, w)
      scan = Identity(r)
      d = Identity(c)
    }
  >
}"""


@pytest.mark.parametrize("opset", [11, 17])
def test_control_flow_that_reads_outer_values_still_runs(
    parse, floats, assert_same, opset: int
) -> None:
    original = parse(LOOP, {"v": floats(2)}, opset=opset)

    normal = normalize(io.load(original))

    for branch in (True, False):
        feed = {"x": floats(2), "n": np.array(3, np.int64), "go": np.array(True)}
        assert_same(original, normal, {**feed, "p": np.array(branch)})


def test_scans_and_sequences_survive(parse, floats, assert_same) -> None:
    original = parse(
        """g (float[3,2] x, float[2] start) => (float[2] y, float[3,2] z) {
          last, sums = Scan(start, x) <
            num_scan_inputs = 1,
            body = b (float[2] s, float[2] e) => (float[2] t, float[2] o) {
              t = Add(s, e)
              o = Mul(t, w)
            }
          >
          parts = SplitToSequence<axis=0>(sums)
          one = Constant<value_int=1>()
          picked = SequenceErase(parts, one)
          more = SequenceInsert(picked, x)
          z = SequenceAt(more, two)
          y = Identity(last)
        }""",
        {"w": floats(2), "two": np.array(2, np.int64)},
    )

    normal = normalize(io.load(original))

    assert_same(original, normal, {"x": floats(3, 2), "start": floats(2)})


def test_operators_of_onnxruntime_survive(parse, floats, assert_same) -> None:
    original = parse(
        """g (float[2,4] x) => (float[2,4] y) {
          h = com.microsoft.FusedMatMul<alpha=0.5>(x, w)
          y = com.microsoft.Gelu(h)
        }""",
        {"w": floats(4, 4)},
        opset=11,
    )

    normal = normalize(io.load(original))

    assert ops(normal) == ["FusedMatMul", "Gelu"]
    assert_same(original, normal, {"x": floats(2, 4)})


def _custom(parse, floats) -> onnx.ModelProto:
    original = parse(
        "g (float[2,4] x) => (float[2,4] y) { h = my.domain.Foo(x) y = MatMul(h, w) }",
        {"w": floats(4, 4)},
    )
    original.opset_import.append(helper.make_opsetid("my.domain", 1))
    return original


def test_operators_nobody_knows_survive_and_the_runtime_names_them(parse, floats) -> None:
    normal = normalize(io.load(_custom(parse, floats)))

    assert ops(normal) == ["Foo", "MatMul"]
    with pytest.raises(ModelError, match=r"onnxruntime cannot load .*Foo"), session(normal):
        pass


def test_operators_nobody_knows_are_named_when_a_sample_is_run(parse, floats) -> None:
    with pytest.raises(ModelError, match="Foo"):
        normalize(io.load(_custom(parse, floats)), {"x": floats(2, 4)})


def test_types_that_onnx_cannot_infer_are_known_with_and_without_a_sample(
    parse, floats, assert_same
) -> None:
    # onnx has no schema of BiasGelu; onnxruntime has.
    original = parse(
        """g (float[2,4] x) => (float[2,4] y) {
          h = com.microsoft.BiasGelu(x, b)
          r = Relu(h)
          y = Mul(r, x)
        }""",
        {"b": floats(4)},
    )

    without, known = normalize(io.load(original)), normalize(io.load(original), {"x": floats(2, 4)})

    for model in (without, known):
        assert [v.dtype for n in model.graph for v in n.outputs] == [ir.DataType.FLOAT] * 3
        assert [v.shape for n in model.graph for v in n.outputs] == [ir.Shape([2, 4])] * 3
    assert_same(original, known, {"x": floats(2, 4)})


def test_shapes_after_an_unknown_operator_are_known_in_rank(parse, floats) -> None:
    original = parse(
        """g (float[2,4] x) => (float[2,3] y) {
          h = com.microsoft.BiasGelu(x, b)
          y = MatMul(h, w)
        }""",
        {"b": floats(4), "w": floats(4, 3)},
    )

    normal = normalize(io.load(original), {"x": floats(2, 4)})

    assert len(normal.graph[0].outputs[0].shape) == 2


@pytest.mark.parametrize(
    "op", ["com.vai.quantize.BFPFixNeuron", "com.amd.quark.ExtendedDequantizeLinear"]
)
def test_a_model_of_amds_operators_is_refused(parse, op: str) -> None:
    original = parse(f"g (float[4] x) => (float[4] y) {{ [quant] h = {op}(x) y = Relu(h) }}")

    with pytest.raises(ModelError, match=f"'quant' is a {op.rpartition('.')[2]}"):
        normalize(io.load(original))


@pytest.mark.parametrize("op", ["QuantizeLinear", "DequantizeLinear"])
def test_a_quantized_model_is_refused(parse, op: str) -> None:
    kind = "float" if op == "QuantizeLinear" else "int8"
    original = parse(
        f"g ({kind}[4] x) => (float[4] y) {{ [quant] h = {op}(x, s, z) y = Cast<to=1>(h) }}",
        {"s": np.array(0.1, np.float32), "z": np.array(0, np.int8)},
    )

    with pytest.raises(ModelError, match=f"already quantized .node 'quant' is a {op}"):
        normalize(io.load(original))


def test_stale_shapes_in_the_file_do_no_harm(parse, floats, assert_same) -> None:
    original = parse(
        "g (float[2,4] x) => (float[2,3] y) { h = MatMul(x, w) y = Neg(h) }", {"w": floats(4, 3)}
    )
    stale = onnx.ModelProto()
    stale.CopyFrom(original)
    stale.graph.value_info.append(helper.make_tensor_value_info("h", 1, [7, 7]))

    normal = normalize(io.load(stale))

    assert_same(original, normal, {"x": floats(2, 4) + 1})


def _chain(count: int, opset: int) -> onnx.ModelProto:
    """Make a graph of ``count`` nodes with something in it for every pass."""
    nodes: list[onnx.NodeProto] = []
    weights, last = [], "x"
    while len(nodes) < count:
        k = len(nodes)
        weight = numpy_helper.from_array(np.eye(4, dtype=np.float32), f"w{k}")
        offset = numpy_helper.from_array(np.float32([k % 3]), "")
        weights.append(weight)
        nodes += [
            helper.make_node("Transpose", [f"w{k}"], [f"t{k}"], perm=[1, 0]),
            helper.make_node("Gemm", [last, f"t{k}"], [f"g{k}"], name=f"gemm{k}"),
            helper.make_node("Constant", [], [f"c{k}"], value=offset),
            helper.make_node("Add", [f"g{k}", f"c{k}"], [f"a{k}"], name=f"add{k}"),
            helper.make_node("Dropout", [f"a{k}"], [f"d{k}"]),
            helper.make_node("Relu", [f"d{k}"], [f"r{k}"], name="relu"),
            helper.make_node("Neg", [f"r{k}"], [f"n{k}"], name="neg"),
        ]
        last = f"n{k}"
    info = [helper.make_tensor_value_info(name, 1, [1, 4]) for name in ("x", last)]
    graph = helper.make_graph(nodes, "g", info[:1], info[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=6)


def _seconds(count: int, opset: int) -> float:
    model = io.load(_chain(count, opset))
    start = time.process_time()
    normal = normalize(model)
    assert normal.graph.num_nodes() == 3 * -(-count // 7)
    return time.process_time() - start


@pytest.mark.parametrize("opset", [11, 17])
def test_the_time_grows_with_the_graph_and_no_faster(opset: int) -> None:
    _seconds(300, opset)

    small, large = _seconds(1_000, opset), _seconds(4_000, opset)

    # Four times the nodes; a pass that looked at all nodes for each would take sixteen times.
    assert large < 9 * max(small, 0.1)


FUNCTIONS = """
<ir_version: 8, opset_import: ["": 17, "local": 1]>
g (float[2,4] x) => (float[2,4] y) {
  [first] a = local.Act<slope=0.5>(x)
  [second] y = local.Act<slope=0.25>(a)
}
<domain: "local", opset_import: ["": VERSION, "local": 1]>
Act <slope> (v) => (r) {
  t = local.Shift(v)
  [leak] r = LeakyRelu<alpha: float = @slope>(t)
}
<domain: "local", opset_import: ["": VERSION]>
Shift (v) => (r) {
  one = Constant<value_float=-1.0>()
  r = Add(v, one)
}
"""


def test_functions_are_inlined(floats, assert_same) -> None:
    original = onnx.parser.parse_model(FUNCTIONS.replace("VERSION", "17"))

    normal = normalize(io.load(original))

    assert ops(normal) == ["Add", "LeakyRelu", "Add", "LeakyRelu"]
    assert not normal.functions
    assert [n.name for n in normal.graph if n.op_type == "LeakyRelu"] == [
        "first/leak",
        "second/leak_2",
    ]
    assert ["first" in names_of(n) for n in normal.graph] == [True, True, False, False]
    assert_same(original, normal, {"x": floats(2, 4)})


def test_functions_of_another_operator_set_are_refused() -> None:
    original = onnx.parser.parse_model(FUNCTIONS.replace("VERSION", "16"))

    with pytest.raises(ModelError, match=r"functions cannot be inlined \(Opset mismatch"):
        normalize(io.load(original))


ASSETS = os.environ.get("LOWBIT_ASSETS")
MODELS = sorted(pathlib.Path(ASSETS, "models").glob("*.onnx")) if ASSETS else []

# Sizes of the axes that models leave open, by how a file is called.
OPEN_SIZES = {"det": (1, 3, 96, 96), "rec": (1, 3, 48, 160)}


def _feed(session: ort.InferenceSession, name: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    sizes = next((size for word, size in OPEN_SIZES.items() if word in name), (1,) * 8)
    feed = {}
    for value in session.get_inputs():
        shape = [d if isinstance(d, int) else sizes[axis] for axis, d in enumerate(value.shape)]
        feed[value.name] = rng.normal(size=shape).astype(np.float32)
    return feed


@pytest.mark.skipif(not MODELS, reason="LOWBIT_ASSETS names no folder with models/*.onnx")
@pytest.mark.parametrize("path", MODELS, ids=lambda path: getattr(path, "stem", ""))
def test_a_real_model_computes_the_same(path: pathlib.Path) -> None:
    original = ort.InferenceSession(path)
    feed = _feed(original, path.stem)
    loaded = io.load(path)

    normal = normalize(loaded)

    assert normal.graph.num_nodes() <= loaded.graph.num_nodes()
    with io.as_file(normal) as written:
        results = ort.InferenceSession(written).run(None, feed)
    for expected, actual in zip(original.run(None, feed), results, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


def test_a_quantized_model_without_names_of_nodes_is_refused_by_what_is_computed() -> None:
    model = io.load(
        onnx.parser.parse_model(
            """<ir_version: 8, opset_import: ["": 17]>
            g (float[4] x) => (float[4] y) <float s = {0.1}, int8 z = {0}> {
                q = QuantizeLinear(x, s, z)
                y = DequantizeLinear(q, s, z) }"""
        )
    )
    for node in model.graph:
        node.name = None

    with pytest.raises(ModelError, match=r"already quantized .what computes 'q' is a Quantize"):
        refuse_quantized(model)
