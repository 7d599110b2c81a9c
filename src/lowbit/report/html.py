"""Put reports, their style, their scripts and the libraries they draw with into one page.

The page asks for nothing from anywhere, and its policy forbids it to. All text of a model is data
in JSON, put into the document as text by the script: no name of a tensor can become markup.
"""

from __future__ import annotations

import html
import importlib.metadata
import importlib.resources
import json
import os
import platform
import re
import shlex
import sys
from collections.abc import Mapping
from types import MappingProxyType

from lowbit.errors import visible
from lowbit.files import writing
from lowbit.report.values import Report
from lowbit.version import __version__

_PLOTS = "uPlot-1.6.32.min"
_LAYOUT = "dagre-3.1.1.min"
_PACKAGES = ("onnxruntime", "onnx", "onnx-ir", "numpy")


def write_report(
    report: Report,
    path: str | os.PathLike[str],
    *,
    title: str = "Quantization report",
    command: str | None = None,
    others: Mapping[str, Report] = MappingProxyType({}),
) -> None:
    """Write the report as a page; it appears complete or not at all.

    ``command`` is what to run to get it again, the running one if not given. ``others`` are reports of
    other models by their titles, shown next to it.
    """
    text = render_report(report, title=title, command=command, others=others)
    with writing({os.fspath(path): lambda file: file.write_text(text, encoding="utf-8")}):
        pass


def render_report(
    report: Report,
    *,
    title: str,
    command: str | None = None,
    others: Mapping[str, Report] = MappingProxyType({}),
) -> str:
    """Return the page; ``command`` is what to run to get it again, the running one if not given."""
    title = visible(title)
    data = {
        "command": visible(command or shlex.join(["lowbit", *sys.argv[1:]])),
        "versions": _versions(),
        "memory": _peak_memory(),
        "reports": [
            {
                "title": name,
                "verdict": "" if one.verdict is None else one.verdict.describe(),
                "goal": "" if one.goal is None else one.goal.describe(),
                "report": json.loads(one.to_json()),
            }
            for name, one in ((title, report), *others.items())
        ],
    }
    drawn = any(one.network is not None for one in (report, *others.values()))
    parts = {
        "@TITLE@": html.escape(title),
        "@STYLE@": f"{_asset(f'{_PLOTS}.css')}\n{_asset('report.css')}",
        # Inside a script only this sequence is special.
        "@DATA@": json.dumps(data, ensure_ascii=True, separators=(",", ":")).replace(
            "<", "\\u003c"
        ),
        "@LICENCES@": _asset("uPlot-LICENSE.txt") + _asset("dagre-LICENSE.txt"),
        "@LIBRARIES@": _asset(f"{_PLOTS}.js") + (_asset(f"{_LAYOUT}.js") if drawn else ""),
        "@SCRIPT@": _asset("network.js") + _asset("report.js"),
    }
    pieces = re.split("(@[A-Z]+@)", _asset("page.html"))
    return "".join(parts.get(piece, piece) for piece in pieces)


def framed(page: str) -> str:
    """Return a page as a frame that a notebook shows, apart from all else there."""
    return (
        f'<iframe srcdoc="{html.escape(page)}" sandbox="allow-scripts" '
        'style="width: 100%; height: 720px; border: 0" title="lowbit report"></iframe>'
    )


def _asset(name: str) -> str:
    return importlib.resources.files("lowbit.report").joinpath("assets", name).read_text("utf-8")


def _versions() -> dict[str, str]:
    found = {
        "lowbit": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
    }
    return found | {name: importlib.metadata.version(name) for name in _PACKAGES}


def _peak_memory() -> int:
    """Return the most memory this process has had, in bytes; 0 where it cannot be asked."""
    try:
        import resource
    except ImportError:  # not on Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak) * (1 if sys.platform == "darwin" else 1024)


__all__ = ["framed", "render_report", "write_report"]
