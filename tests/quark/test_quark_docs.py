"""The page for those who come from Quark agrees with the code.

Run ``python tests/quark/test_quark_docs.py`` to write the table of options anew.
"""

from __future__ import annotations

import pathlib

from lowbit.quark.translate.options import OPTIONS

PAGE = pathlib.Path(__file__).parents[2] / "docs/quark-options.md"
MARK = "<!-- options: made by tests/quark/test_quark_docs.py -->\n"


def table() -> str:
    rows = [f"| `{o.key}` | {o.effect} | {o.why} |" for o in OPTIONS.values()]
    return "\n".join(["", "| option | | |", "|---|---|---|", *rows, ""])


def test_the_table_of_options_is_the_codes() -> None:
    _, mark, written = PAGE.read_text(encoding="utf-8").partition(MARK)

    assert mark
    assert written == table(), "run tests/quark/test_quark_docs.py"


if __name__ == "__main__":
    before, mark, _ = PAGE.read_text(encoding="utf-8").partition(MARK)
    PAGE.write_text(before + mark + table(), encoding="utf-8")
