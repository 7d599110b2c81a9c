"""The version of Quark whose behaviour is mirrored, and ours."""

from __future__ import annotations

from lowbit import version

__version__ = f"0.13+lowbit.{version.__version__}"
git_version = "lowbit"

__all__ = ["__version__", "git_version"]
