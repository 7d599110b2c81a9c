"""Command-line tools: ``python -m lowbit.quark.onnx.tools.NAME``.

The tools are rows of a table (``table.py``). Each row is also a module of this package, which is
made when it is imported: it has ``main`` and the functions that Quark's scripts import.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType

__all__: list[str] = []

_RUN = """\
from {module} import *

if __name__ == "__main__":
    raise SystemExit(main())
"""


class ToolFinder(MetaPathFinder):
    """Finds the modules that are rows of the table."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how a tool is loaded, or ``None`` for what is no tool."""
        del path, target
        package, _, tool = name.rpartition(".")
        if package != __name__:
            return None
        # The table imports what changes models; a look at the package alone shall not.
        from lowbit.quark.onnx.tools import table

        return (
            ModuleSpec(name, ToolLoader(), origin=table.__file__) if tool in table.TOOLS else None
        )


class ToolLoader(Loader):
    """Makes a module from a row of the table."""

    def exec_module(self, module: ModuleType) -> None:
        """Fill the module."""
        from lowbit.quark.onnx.tools import front, table

        tool = table.TOOLS[module.__name__.rpartition(".")[2]]
        functions = (front.make_main(tool), *tool.functions)
        module.__doc__ = tool.summary
        vars(module).update({function.__name__: function for function in functions})
        vars(module)["__all__"] = [function.__name__ for function in functions]

    def get_code(self, name: str) -> CodeType:
        """Return the code that ``python -m`` runs."""
        return compile(_RUN.format(module=name), f"<{name}>", "exec")


sys.meta_path.append(ToolFinder())
