"""Records of runs, as the harness writes them."""

from __future__ import annotations

from typing import Any


def record(job: str, tool: str, turn: int = 0, wall: float = 1.0, **more: Any) -> dict[str, Any]:
    plain = {
        "model": "m",
        "samples": 64,
        "job": job,
        "tool": tool,
        "beside": "",
        "round": turn,
        "load": 0.5,
        "wall": wall,
        "cpu": wall,
        "peak_mb": 100.0 * wall,
        "error": "",
        "phases": {},
        "phases_cpu": {},
        "versions": {},
        "bytes": 1_000_000,
    }
    return plain | {"phases_cpu": more.get("phases", {})} | more


def floor(turn: int = 0, seconds: float = 0.5, **more: Any) -> dict[str, Any]:
    return record("float", "float", turn, pass_seconds=seconds, beside="xint8", **more)
