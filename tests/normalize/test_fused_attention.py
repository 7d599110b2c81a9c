import numpy as np
import onnx_ir as ir
import pytest

from lowbit.graph import io
from lowbit.normalize.normalize import normalize

_RANDOM = np.random.default_rng(0)
_X = _RANDOM.normal(size=(2, 5, 8)).astype(np.float32)
_MASKS = {
    "int32[n,t]": np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32),
    "int32[n]": np.array([3, 5], np.int32),
}


def _weights(outputs: int) -> dict[str, np.ndarray]:
    sizes = {"w": (8, outputs), "b": (outputs,)}
    return {name: _RANDOM.normal(size=size).astype(np.float32) for name, size in sizes.items()}


@pytest.mark.parametrize(
    ("mask", "attributes", "outputs"),
    [
        ("", "num_heads=2", 24),
        ("int32[n,t]", "num_heads=2, scale=0.3", 24),
        ("int32[n]", "num_heads=4", 24),
        ("", "num_heads=2, unidirectional=1", 24),
        ("", "num_heads=2, qkv_hidden_sizes=[8, 8, 4]", 20),
    ],
)
def test_the_projections_of_a_fused_attention_become_a_layer(
    parse, assert_same, mask: str, attributes: str, outputs: int
) -> None:
    given = f", {mask} m" if mask else ""
    inputs = "x, w, b" + (", m" if mask else "")
    original = parse(
        f"""g (float[n,t,8] x{given}) => (float[n,t,k] y) {{
          y = com.microsoft.Attention<{attributes}>({inputs})
        }}""",
        _weights(outputs),
    )

    normal = normalize(io.load(original))

    kinds = [node.op_type for node in normal.graph]
    assert kinds == ["MatMul", "Add", "Split", "MultiHeadAttention"]
    assert all(value.dtype == ir.DataType.FLOAT for n in normal.graph for value in n.outputs)
    assert_same(original, normal, {"x": _X} | ({"m": _MASKS[mask]} if mask else {}))


@pytest.mark.parametrize(
    ("inputs", "call"),
    [
        # Starts and ends of sequences: twice as many numbers as there are sequences.
        ("float[n,t,8] x, int32[k] m", "y = com.microsoft.Attention<num_heads=2>(x, w, b, m)"),
        (
            "float[n,t,8] x, float[2,n,2,p,4] past",
            'y, q = com.microsoft.Attention<num_heads=2>(x, w, b, "", past) z = Neg(q)',
        ),
    ],
)
def test_attention_with_a_cache_or_another_mask_stays(parse, inputs: str, call: str) -> None:
    outputs = "float[n,t,8] y, float[2,n,2,s,4] z" if "z" in call else "float[n,t,8] y"
    original = parse(f"g ({inputs}) => ({outputs}) {{ {call} }}", _weights(24))

    normal = normalize(io.load(original))

    assert "Attention" in [node.op_type for node in normal.graph]
