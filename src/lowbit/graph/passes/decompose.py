"""Write out operators that no runtime has a kernel for, so that their parts can be quantized."""

from __future__ import annotations

import onnx_ir as ir

from lowbit.graph.names import absorb, tensor_name


def decompose_hardswish(model: ir.Model) -> None:
    """HardSwish(x) becomes x * HardSigmoid(x; 1/6, 1/2). Changes ``model``."""
    for node in tuple(model.graph):
        source = node.inputs[0] if node.inputs else None
        if node.op_type != "HardSwish" or node.domain != "" or source is None:
            continue
        old = node.outputs[0]
        gate = ir.node(
            "HardSigmoid", [source], {"alpha": 1 / 6, "beta": 0.5}, name=f"{node.name}_gate"
        )
        gate.outputs[0].name = f"{tensor_name(old)}_gate"
        product = ir.node("Mul", [source, gate.outputs[0]], name=f"{node.name}")
        for new in (gate.outputs[0], product.outputs[0]):
            new.type, new.shape = old.type, old.shape
        name = old.name
        model.graph.insert_before(node, [gate, product])
        ir.convenience.replace_all_uses_with(old, product.outputs[0], replace_graph_outputs=True)
        absorb(gate, node)
        model.graph.remove(node, safe=True)
        product.outputs[0].name = name
