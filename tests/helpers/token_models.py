"""A small network of tokens: tables, layers with and without a bias, a norm and a head."""

import pathlib

import numpy as np
import onnx
import onnxruntime as ort
import tokenizers
from onnx import TensorProto, helper, numpy_helper

VOCABULARY, WIDTH, HIDDEN = 96, 48, 80


def token_model(opset: int = 17, *, gemm: bool = False) -> onnx.ModelProto:
    """Return embedding, norm, two layers with a residual sum, and a head over the vocabulary.

    With ``gemm`` the head is a Gemm that reads the transposed table of the embedding.
    """
    random = np.random.default_rng(5)

    def table(name: str, *shape: int) -> onnx.TensorProto:
        data = random.normal(0, 1 / np.sqrt(shape[-1]), shape)
        return numpy_helper.from_array(data.astype(np.float32), name)

    constants = [
        table("words", VOCABULARY, WIDTH),
        table("kinds", 2, WIDTH),
        table("up", WIDTH, HIDDEN),
        table("up.bias", HIDDEN),
        table("down", HIDDEN, WIDTH),
        numpy_helper.from_array(random.uniform(0.5, 2, WIDTH).astype(np.float32), "gamma"),
    ]
    nodes = [
        helper.make_node("Gather", ["words", "ids"], ["w"], "embed"),
        helper.make_node("Gather", ["kinds", "types"], ["k"], "embed_kind"),
        helper.make_node("Add", ["w", "k"], ["e"], "sum"),
        helper.make_node("LayerNormalization", ["e", "gamma"], ["n"], "norm"),
        helper.make_node("MatMul", ["n", "up"], ["m"], "up_proj"),
        helper.make_node("Add", ["m", "up.bias"], ["u"], "up_add"),
        helper.make_node("Relu", ["u"], ["r"], "relu"),
        helper.make_node("MatMul", ["r", "down"], ["d"], "down_proj"),
        helper.make_node("Add", ["d", "n"], ["s"], "residual"),
    ]
    shape = ["n", "t", VOCABULARY]
    if gemm:
        shape = ["nt", VOCABULARY]
        constants.append(numpy_helper.from_array(np.array([-1, WIDTH]), "flat"))
        nodes += [
            helper.make_node("Reshape", ["s", "flat"], ["f"], "flatten"),
            helper.make_node("Gemm", ["f", "words"], ["y"], "head", transB=1),
        ]
    else:
        constants.append(table("head.weight", WIDTH, VOCABULARY))
        nodes.append(helper.make_node("MatMul", ["s", "head.weight"], ["y"], "head"))
    graph = helper.make_graph(
        nodes,
        "tokens",
        [helper.make_tensor_value_info(n, TensorProto.INT64, ["n", "t"]) for n in ("ids", "types")],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        constants,
    )
    imports = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def token_feeds(count: int = 4) -> list[dict[str, np.ndarray]]:
    """Return feeds of unequal lengths."""
    random = np.random.default_rng(3)
    return [
        {
            "ids": random.integers(0, VOCABULARY, (1, 5 + i)),
            "types": random.integers(0, 2, (1, 5 + i)),
        }
        for i in range(count)
    ]


def run_tokens(
    model: onnx.ModelProto, feed: dict, *, exact: bool = False, output: str = "y"
) -> np.ndarray:
    """Return an output for a feed; ``exact`` runs without fused kernels."""
    options = ort.SessionOptions()
    if exact:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run([output], feed)[0]


def write_texts(folder: pathlib.Path) -> None:
    """Write a tokenizer for the words ``w0``, ``w1`` and so on, and texts of them."""
    words = {f"w{number}": number for number in range(VOCABULARY)}
    model = tokenizers.models.WordLevel(words, unk_token="w0")  # noqa: S106
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "texts.txt").write_text("w1 w2 w3\nw4 w5 w6 w7\nw8 w9\n")


def text_model() -> onnx.ModelProto:
    """Return the network with inputs of the names that texts are known to feed."""
    model = token_model()
    for value, name in zip(model.graph.input, ("input_ids", "token_type_ids"), strict=True):
        for node in model.graph.node:
            node.input[:] = [name if read == value.name else read for read in node.input]
        value.name = name
    return model
