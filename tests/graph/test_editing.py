from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from lowbit.graph import io
from lowbit.graph.editing import (
    KEPT,
    GraphEditor,
    add_constant,
    bypass,
    candidates,
    constant,
    constant_shape,
    drop_unused,
    drop_unused_constants,
    free_name,
    insert_after,
    insert_after_source,
    is_constant,
    is_float_tensor,
    is_sorted,
    node_inputs,
    only_consumer,
    read_tensor,
    replace_constant,
    replace_node,
    scalar,
    subgraphs,
    take_over,
    typed_lists,
    with_dynamic_batch,
)
from lowbit.graph.naming import names_of
from lowbit.graph.onnx_passes import infer_types
from lowbit.graph.session import with_outputs


@pytest.fixture
def graph(parse, floats) -> ir.Graph:
    proto = parse(
        "g (float[2,3] x, float[3] d) => (float[2,3] y) { h = Mul(x, w) y = Add(h, d) }",
        {"w": np.float32([[2.5]]), "d": floats(3)},
    )
    return ir.from_proto(proto).graph


def test_only_an_initializer_that_cannot_be_fed_is_constant(graph) -> None:
    w, d = graph.initializers["w"], graph.initializers["d"]

    assert [is_constant(v) for v in (w, d, graph.inputs[0], None)] == [True, False, False, False]
    assert constant(w).tolist() == [[2.5]]
    assert constant(d) is None
    assert constant(None) is None
    assert (constant_shape(w), constant_shape(d), constant_shape(None)) == ((1, 1), None, None)


def test_a_scalar_is_a_constant_of_one_element(graph) -> None:
    vector = add_constant(graph, "v", np.float32([1, 2]))

    assert scalar(graph.initializers["w"]) == 2.5
    assert scalar(vector) is None
    assert scalar(None) is None


def test_a_taken_name_gets_a_number(graph) -> None:
    add_constant(graph, "w", np.float32([1]))

    assert free_name(graph, "w") == "w_2"
    assert free_name(graph, "new") == "new"


def test_a_tensor_is_added_as_it_is(graph) -> None:
    tensor = ir.tensor(np.int8([1]), name="t")

    assert add_constant(graph, "t", tensor).const_value is tensor


_MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
agraph (float[2] x) => (float[2] y) {
    a = Relu (x)
    b = Neg (a)
    y = Add (a, b)
}
"""

_BRANCH = """
<ir_version: 8, opset_import: ["" : 17]>
agraph (bool c, float[2] x) => (float[2] y) {
    y = If (c) <then_branch = g () => (float[2] t) { t = Relu (x) },
                else_branch = h () => (float[2] e) { e = Neg (x) }>
}
"""


def test_a_graph_in_order_is_sorted() -> None:
    assert is_sorted(ir.from_onnx_text(_MODEL).graph)


def test_a_consumer_before_its_producer_is_not_sorted() -> None:
    graph = ir.from_onnx_text(_MODEL).graph
    first = graph[0]
    graph.remove(first)
    graph.append(first)

    assert not is_sorted(graph)

    graph.sort()
    assert is_sorted(graph)


def test_what_a_branch_reads_is_not_looked_for() -> None:
    assert not is_sorted(ir.from_onnx_text(_BRANCH).graph)


TWO = "g (float[4] x) => (float[4] h, float[4] y) { [first] h = Relu(x) [second] y = Neg(h) }"


def test_what_replaces_a_node_takes_its_names(parse, run, floats) -> None:
    model = io.load(parse(TWO))
    old = model.graph[0]

    replace_node(model.graph, old, [ir.node("Abs", [old.inputs[0]])])

    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    assert [value.name for value in model.graph.outputs] == ["h", "y"]
    assert set(names_of(model.graph[0])) == {"first", "h"}
    x = floats(4)
    np.testing.assert_array_equal(run(model, {"x": x}, ["y"])[0], -np.abs(x))


def test_several_nodes_replace_one(parse, run, floats) -> None:
    model = io.load(parse(TWO))
    old = model.graph[0]
    inner = ir.node("Abs", [old.inputs[0]], name="inner")
    inner.outputs[0].name = "inner"

    replace_node(model.graph, old, [inner, ir.node("Sqrt", inner.outputs)])

    assert [n.op_type for n in model.graph] == ["Abs", "Sqrt", "Neg"]
    assert all("first" in names_of(n) for n in list(model.graph)[:2])
    x = floats(4)
    np.testing.assert_allclose(run(model, {"x": x}, ["h"])[0], np.sqrt(np.abs(x)), rtol=1e-6)


def test_an_inserted_node_computes_the_tensor_for_all_others(parse, run, floats) -> None:
    model = io.load(parse(TWO))
    relu = model.graph[0]
    factor = add_constant(model.graph, "k", np.float32(3))
    product = ir.node("Mul", [relu.outputs[0], factor], name="product")

    insert_after(model.graph, product, "h_inner")

    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    assert [n.op_type for n in model.graph] == ["Relu", "Mul", "Neg"]
    assert relu.outputs[0].name == "h_inner"
    assert [value.name for value in model.graph.outputs] == ["h", "y"]
    x = floats(4)
    h, y, inner = run(with_outputs(model, ["h_inner"]), {"x": x}, ["h", "y", "h_inner"])
    np.testing.assert_allclose(h, 3 * np.maximum(x, 0))
    np.testing.assert_allclose(y, -3 * np.maximum(x, 0))
    np.testing.assert_allclose(inner, np.maximum(x, 0))


def test_nothing_is_inserted_after_an_input(parse) -> None:
    model = io.load(parse(TWO))
    node = ir.node("Neg", [model.graph.inputs[0]], name="neg")

    with pytest.raises(ValueError, match="node 'neg' reads nothing that is computed"):
        insert_after(model.graph, node, "inner")


def test_kept_nodes_and_other_domains_are_no_candidates(parse) -> None:
    model = io.load(parse("g (float[4] x) => (float[4] y) { a = Relu(x) b = Neg(a) y = Abs(b) }"))
    model.graph[0].meta[KEPT] = True
    model.graph[1].domain = "com.example"

    assert [node.op_type for node in candidates(model.graph)] == ["Abs"]


def test_a_bypassed_value_gives_its_place_to_what_it_was_made_from(parse, run, floats) -> None:
    model = io.load(parse("g (float[4] x) => (float[4] y) { h = Relu(x) i = Abs(h) y = Neg(i) }"))
    relu, idle, _ = model.graph

    bypass(relu.outputs[0], idle.outputs[0])
    model.graph.remove(idle, safe=True)

    x = floats(4)
    np.testing.assert_array_equal(run(model, {"x": x})[0], -np.maximum(x, 0))
    assert relu.outputs[0].name == "h"


def test_a_bypassed_output_keeps_its_name_and_type(parse, run, floats) -> None:
    model = io.load(parse("g (float[4] x) => (float[4] y) { h = Relu(x) y = Abs(h) }"))
    relu, idle = model.graph
    assert relu.outputs[0].type is None

    bypass(relu.outputs[0], idle.outputs[0])
    model.graph.remove(idle, safe=True)

    (output,) = model.graph.outputs
    assert output is relu.outputs[0]
    assert (output.name, output.dtype, output.shape.numpy()) == ("y", ir.DataType.FLOAT, (4,))
    x = floats(4)
    np.testing.assert_array_equal(run(model, {"x": x})[0], np.maximum(x, 0))


def test_a_value_takes_over_from_another_everywhere(parse, run, floats) -> None:
    model = io.load(parse(TWO))
    relu = model.graph[0]
    other = ir.node("Abs", [model.graph.inputs[0]], name="other")
    model.graph.insert_before(relu, other)

    take_over(relu.outputs[0], other.outputs[0])

    assert (relu.outputs[0].name, other.outputs[0].name) == ("h_replaced", "h")
    assert other.outputs[0].dtype == ir.DataType.FLOAT
    x = floats(4)
    np.testing.assert_array_equal(run(model, {"x": x}, ["y"])[0], -np.abs(x))


def test_a_constant_of_one_consumer_is_replaced_in_place(graph) -> None:
    value = graph.initializers["w"]

    replace_constant(graph, graph[0], 1, np.int64([1, 2, 3]))

    assert graph[0].inputs[1] is value
    assert constant(value).tolist() == [1, 2, 3]
    assert (value.dtype, value.shape.numpy()) == (ir.DataType.INT64, (3,))


def test_a_shared_constant_is_replaced_for_one_node_only(parse) -> None:
    model = io.load(
        parse(
            "g (float[2] x) => (float[2] y) { [one] h = Mul(x, w) [two] y = Mul(h, w) }",
            {"w": np.float32([2, 3])},
        )
    )
    first, second = model.graph

    replace_constant(model.graph, first, 1, np.float32([5, 7]))

    assert constant(first.inputs[1]).tolist() == [5, 7]
    assert constant(second.inputs[1]).tolist() == [2, 3]
    assert set(model.graph.initializers) == {"w", "one_1"}


def test_a_constant_that_is_an_output_stays(parse) -> None:
    model = io.load(
        parse("g (float[2] x) => (float[2] y) { [one] y = Mul(x, w) }", {"w": np.float32([2, 3])})
    )
    value = model.graph.initializers["w"]
    model.graph.outputs.append(value)

    replace_constant(model.graph, model.graph[0], 1, np.float32([5, 7]))

    assert constant(value).tolist() == [2, 3]
    assert constant(model.graph[0].inputs[1]).tolist() == [5, 7]


def test_an_input_that_is_not_there_cannot_be_replaced(parse) -> None:
    model = io.load(
        parse(
            "g (float[1,3,2,2] x) => (float[1,2,2,2] y) { [conv] y = Conv(x, w) }",
            {"w": np.zeros((2, 3, 1, 1), np.float32)},
        )
    )
    conv = model.graph[0]
    conv.resize_inputs(3)

    with pytest.raises(ValueError, match="node 'conv' has no input 2"):
        replace_constant(model.graph, conv, 2, np.zeros(2, np.float32))


def test_the_only_consumer_is_known(parse) -> None:
    model = io.load(
        parse(
            """g (float[2] x) => (float[2] b, float[2] d) {
              a = Neg(x)
              b = Abs(a)
              c = Relu(b)
              d = Add(c, c)
            }"""
        )
    )
    neg, absolute, relu, add = model.graph

    assert only_consumer(neg.outputs[0]) is absolute
    assert only_consumer(absolute.outputs[0]) is None, "an output of the model"
    assert only_consumer(relu.outputs[0]) is None, "read twice"
    assert only_consumer(add.outputs[0]) is None


def test_a_node_reads_what_its_branches_read(parse) -> None:
    model = io.load(
        parse(
            """g (bool p, float[2] x) => (float[2] y) {
              a = Neg(x)
              b = Abs(x)
              y = If(p) <
                then_branch = t () => (float[2] c) { inner = Add(a, a) c = Mul(inner, w) },
                else_branch = e () => (float[2] d) {
                  d = If(p) <
                    then_branch = u () => (float[2] f) { f = Identity(b) },
                    else_branch = v () => (float[2] g) { g = Identity(x) }
                  >
                }
              >
            }""",
            {"w": np.float32([2, 3])},
        )
    )

    *_, choice = model.graph

    assert {value.name for value in node_inputs(choice)} == {"p", "a", "b", "x", "w"}
    assert [value.name for value in node_inputs(model.graph[0])] == ["x"]
    assert {graph.name for graph in subgraphs(choice)} == {"t", "e"}
    assert subgraphs(model.graph[0]) == []


def test_unused_nodes_and_constants_are_dropped(parse) -> None:
    model = io.load(
        parse(
            """g (float[2] x, float[2] d) => (float[2] y) {
              a = Mul(x, v)
              b = Abs(a)
              y = Mul(x, w)
            }""",
            {name: np.float32([1, 2]) for name in "vwd"} | {"z": np.float32([1])},
        )
    )

    drop_unused_constants(model.graph)
    assert set(model.graph.initializers) == {"v", "w", "d"}
    assert model.graph.num_nodes() == 3
    drop_unused(model.graph)

    assert [node.op_type for node in model.graph] == ["Mul"]
    assert set(model.graph.initializers) == {"w", "d"}, "a feed may replace d"


@pytest.mark.parametrize(
    "dtype",
    [ir.DataType.FLOAT, ir.DataType.BFLOAT16, ir.DataType.INT4, ir.DataType.INT64],
    ids=lambda dtype: dtype.name,
)
def test_a_tensor_is_read_inside_and_outside_the_file(tmp_path, rng, dtype: ir.DataType) -> None:
    numbers = rng.integers(-8, 8, (32, 32)).astype(dtype.numpy())
    tensor = ir.Tensor(numbers, dtype=dtype, name="t")
    value = ir.val("t", const_value=tensor)
    node = ir.node("Identity", [value])
    node.outputs[0].name = "y"
    graph = ir.Graph([], node.outputs, nodes=[node], initializers=[value], opset_imports={"": 21})
    ir.save(ir.Model(graph, ir_version=10), tmp_path / "m.onnx", external_data="m.bin")
    stored = ir.load(tmp_path / "m.onnx").graph.initializers["t"].const_value
    assert isinstance(stored, ir.ExternalTensor)

    data = read_tensor(stored)

    assert data.tolist() == read_tensor(tensor).tolist() == numbers.tolist()
    assert data.dtype == dtype.numpy()


def test_a_tensor_outside_the_file_is_read_as_a_copy(tmp_path, floats) -> None:
    weight = floats(32, 32)
    weight.tofile(tmp_path / "w.bin")
    tensor = ir.ExternalTensor(
        "w.bin",
        128,
        31 * 128,
        ir.DataType.FLOAT,
        shape=ir.Shape([31, 32]),
        name="w",
        base_dir=tmp_path,
    )

    data = read_tensor(tensor)

    np.testing.assert_array_equal(data, weight[1:])
    # A view of a map of the file could not be written to.
    data[0, 0] = 7
    np.testing.assert_array_equal(np.fromfile(tmp_path / "w.bin", np.float32), weight.ravel())


def test_the_batch_of_a_copy_is_dynamic(parse, run, floats) -> None:
    model = io.load(
        parse(
            "g (float[1,3] x, int64 n, float[1,3] k) => (float[1,3] y) { h = Add(x, k) y = Relu(h) }",
            {"k": np.zeros((1, 3), np.float32)},
        )
    )
    infer_types(model)

    dynamic = with_dynamic_batch(model)
    dynamic.graph.outputs[0].shape = None

    assert [str(value.shape) for value in dynamic.graph.inputs] == ["[batch,3]", "[]", "[1,3]"]
    assert model.graph.inputs[0].shape.numpy() == (1, 3)
    assert all(value.shape is None for node in dynamic.graph for value in node.outputs)
    x = floats(5, 3)
    found = run(dynamic, {"x": x, "n": np.array(1)})[0]
    np.testing.assert_array_equal(found, np.maximum(x, 0))


@pytest.fixture
def editor(parse) -> GraphEditor:
    """Return an editor of y = -relu(x w), with h = relu(x w) an output as well."""
    return GraphEditor(
        io.load(
            parse(
                """g (float[2,3] x) => (float[2,3] h, float[2,3] y) {
                  [mul] m = Mul(x, w)
                  [relu] h = Relu(m)
                  [neg] y = Neg(h)
                }""",
                {"w": np.float32([1, -2, 3])},
            )
        )
    )


def test_names_of_new_nodes_and_constants_are_free(editor) -> None:
    x = editor.graph.inputs[0]

    node = editor.node("Abs", [x], "relu")
    scale = editor.constant("w", np.float32(2))
    again = editor.node("Abs", [x], "relu")

    assert (node.name, node.outputs[0].name) == ("relu_1", "relu_Output")
    assert (again.name, again.outputs[0].name) == ("relu_2", "relu_Output_1")
    assert scale.name == "w_1"
    assert editor.free("m") == "m_1"
    assert editor.opset == 17
    assert set(editor.nodes) == {"mul", "relu", "neg"}


def test_a_new_domain_is_imported(editor) -> None:
    editor.node("Gelu", [editor.graph.inputs[0]], "gelu", domain="com.example")

    assert editor.model.opset_imports["com.example"] == 1


def test_nodes_put_after_an_activation_serve_all_its_consumers(editor, run, floats) -> None:
    m = editor.values["m"]
    absolute = editor.node("Abs", [m], "abs")
    double = editor.node("Add", [absolute.outputs[0], absolute.outputs[0]], "double")

    editor.put_after(m, [absolute, double])
    model = editor.finish()

    assert [node.op_type for node in model.graph] == ["Mul", "Abs", "Add", "Relu", "Neg"]
    x = floats(2, 3)
    h, y = run(model, {"x": x})
    expected = 2 * np.abs(x * np.float32([1, -2, 3]))
    np.testing.assert_allclose(h, expected, rtol=1e-6)
    np.testing.assert_allclose(y, -expected, rtol=1e-6)


def test_nodes_put_after_an_output_write_it_under_its_name(editor, run, floats) -> None:
    h = editor.values["h"]
    double = editor.node("Add", [h, h], "double")

    editor.put_after(h, [double])
    model = editor.finish()

    assert [value.name for value in model.graph.outputs] == ["h", "y"]
    assert model.graph.outputs[0] is double.outputs[0]
    assert h.name == "h_QuantizeLinear_Input"
    assert double.outputs[0].dtype == ir.DataType.FLOAT
    x = floats(2, 3)
    found = run(model, {"x": x})[0]
    np.testing.assert_allclose(found, 2 * np.maximum(x * np.float32([1, -2, 3]), 0), rtol=1e-6)


def test_nodes_put_after_an_input_come_first(editor, run, floats) -> None:
    x = editor.graph.inputs[0]
    negative = editor.node("Neg", [x], "negative")

    editor.put_after(x, [negative])
    model = editor.finish()

    assert [node.op_type for node in model.graph] == ["Neg", "Mul", "Relu", "Neg"]
    given = floats(2, 3)
    expected = np.maximum(-given * np.float32([1, -2, 3]), 0)
    np.testing.assert_allclose(run(model, {"x": given})[0], expected, rtol=1e-6)


def test_an_input_that_is_an_output_keeps_its_place(editor) -> None:
    x = editor.graph.inputs[0]
    editor.graph.outputs.append(x)

    editor.put_after(x, [editor.node("Neg", [x], "negative")])

    assert editor.graph.outputs[2] is x
    assert x.name == "x"


def test_some_consumers_of_a_constant_read_it_through_nodes(parse, run) -> None:
    editor = GraphEditor(
        io.load(
            parse(
                "g (float[3] x) => (float[3] y) { [one] h = Mul(x, w) [two] y = Mul(h, w) }",
                {"w": np.float32([1, 2, 3])},
            )
        )
    )
    weight = editor.values["w"]
    negative = editor.node("Neg", [weight], "negative")

    result = editor.read_through(weight, [(editor.nodes["two"], 1)], [negative])
    model = editor.finish()

    assert result is negative.outputs[0]
    assert result.shape.numpy() == (3,)
    found = run(model, {"x": np.float32([1, 1, 1])})[0]
    assert found.tolist() == [-1, -4, -9]


def test_lazy_tensors_are_made_when_they_are_written(editor, run) -> None:
    made = []
    weight = editor.values["w"]

    def make(name: str) -> ir.TensorProtocol:
        made.append(name)
        return ir.tensor(np.float32([2, 2, 2]), name=name)

    value = editor.lazy("w", weight, ir.DataType.FLOAT, make)
    editor.nodes["mul"].replace_input_with(1, value)
    model = editor.finish()

    assert made == []
    assert set(model.graph.initializers) == {"w_1"}
    assert run(model, {"x": np.ones((2, 3), np.float32)})[0].tolist() == [[2, 2, 2]] * 2
    assert set(made) == {"w_1"}


def test_a_constant_without_a_shape_cannot_be_copied(editor) -> None:
    with pytest.raises(ValueError, match="constant 'v' has no shape"):
        editor.lazy("w", ir.val("v"), ir.DataType.FLOAT, lambda name: ir.tensor([1.0], name=name))


def test_values_of_a_constant_are_replaced_when_they_are_written(editor, run) -> None:
    editor.set_values(editor.values["w"], lambda: np.float32([0, 1, 2]))

    found = run(editor.finish(), {"x": np.ones((2, 3), np.float32)})[0]

    assert found.tolist() == [[0, 1, 2]] * 2


def test_only_constants_have_values_to_replace(editor) -> None:
    with pytest.raises(ValueError, match="'m' has no values to replace"):
        editor.set_values(editor.values["m"], lambda: np.float32([0]))


def test_consumers_of_marked_identities_read_what_those_read(parse) -> None:
    editor = GraphEditor(
        io.load(
            parse(
                """g (float[3] x) => (float[3] o, float[3] y) {
                  h = Relu(x)
                  [inner] i = Identity(h)
                  [other] j = Identity(h)
                  [outer] o = Identity(h)
                  k = Add(i, j)
                  y = Neg(k)
                }"""
            )
        )
    )
    for name in ("inner", "outer"):
        editor.nodes[name].meta["marked"] = True

    editor.join_names("marked")

    assert [n.name for n in editor.graph if n.op_type == "Identity"] == ["other", "outer"]
    add = next(node for node in editor.graph if node.op_type == "Add")
    assert [value.name for value in add.inputs] == ["h", "j"]


def test_a_finished_model_is_in_order_and_has_no_unused_constants(editor) -> None:
    editor.constant("unused", np.float32(1))
    first = editor.graph[0]
    editor.graph.remove(first)
    editor.graph.append(first)

    model = editor.finish()

    assert set(model.graph.initializers) == {"w"}
    assert is_sorted(model.graph)
    onnx.checker.check_model(ir.to_proto(model), full_check=True)


def test_a_sequence_of_floats_is_no_float_tensor() -> None:
    tensor = ir.TensorType(ir.DataType.FLOAT)

    assert is_float_tensor(ir.val("x", type=tensor))
    assert not is_float_tensor(ir.val("x", type=ir.SequenceType(tensor)))
    assert not is_float_tensor(ir.val("x", type=ir.OptionalType(tensor)))
    assert not is_float_tensor(ir.val("x", type=ir.TensorType(ir.DataType.INT64)))


def test_what_looks_at_a_value_stands_behind_what_computes_it() -> None:
    model = ir.from_onnx_text(
        """
        <ir_version: 8, opset_import: ["" : 17]>
        agraph (float[2] x) => (float[2] y) { a = Relu (x)  b = Neg (a)  y = Abs (b) }
        """
    )
    graph = model.graph
    values = {value.name: value for node in graph for value in node.outputs}

    insert_after_source(graph, values["a"], ir.node("Exp", [values["a"]]))
    insert_after_source(graph, graph.inputs[0], ir.node("Sin", [graph.inputs[0]]))

    assert [node.op_type for node in graph] == ["Sin", "Relu", "Exp", "Neg", "Abs"]


@pytest.mark.parametrize("pads", [[0, 1, 0, 1], (0, 1, 0, 1)])
def test_lists_of_integers_are_what_onnx_ir_takes_them_for(pads) -> None:
    given = {"pads": pads, "group": 3, "mode": "linear", "alpha": 0.5}

    typed, guessed = (
        ir.node("Conv", [], attributes).attributes for attributes in (typed_lists(given), given)
    )
    assert {n: (a.type, a.value) for n, a in typed.items()} == {
        n: (a.type, a.value) for n, a in guessed.items()
    }
    # No list, whose type could not be guessed.
    assert typed_lists({"axes": []})["axes"].type == ir.AttributeType.INTS
