"""Operators that AMD's tools know by name, defined in the file itself as ONNX functions.

So a model runs in any onnxruntime, without AMD Quark's compiled library, and where the name is
known, it is recognized. Bodies are written in ONNX's text syntax.
"""

from __future__ import annotations

import onnx_ir as ir

from lowbit.emit.writer import Writer

DOMAIN = "com.amd.quark"
_OVERLOADS_FROM_IR_VERSION = 10


class Functions:
    """The functions of one model, added when they are first used."""

    def __init__(self, writer: Writer) -> None:
        self._model = writer.model
        self._opset = writer.opset
        self._overloads: dict[tuple[str, str], str] = {}

    def define(self, name: str, signature: str, body: str) -> str:
        """Make sure that ``name`` with this body is defined, and return its overload.

        The first body of a name has none; any other one is an overload, which the nodes that
        mean it state.
        """
        if (name, body) not in self._overloads:
            number = sum(known == name for known, _ in self._overloads)
            self._add(name, signature, body, f"v{number + 1}" if number else "")
        return self._overloads[name, body]

    def _add(self, name: str, signature: str, body: str, overload: str) -> None:
        text = (
            f'<ir_version: 8, opset_import: ["" : {self._opset}]> unused (float x) => (float y) '
            f'{{ y = Identity(x) }} <domain: "{DOMAIN}", opset_import: ["" : {self._opset}]> '
            f"{name} {signature} {{ {body} }}"
        )
        (parsed,) = ir.from_onnx_text(text).functions.values()
        function = ir.Function(
            DOMAIN, name, overload, graph=parsed.graph, attributes=parsed.attributes
        )
        self._model.functions[function.identifier()] = function
        self._model.opset_imports.setdefault(DOMAIN, 1)
        if overload:
            self._model.ir_version = max(self._model.ir_version, _OVERLOADS_FROM_IR_VERSION)
        self._overloads[name, body] = overload


def number(value: float) -> str:
    """Return a float32 constant in ONNX's text syntax."""
    return f"Constant <value = float {{{value!r}}}> ()"
