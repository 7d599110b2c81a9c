"""Reports: values, terminal tables, the HTML page. Decides and measures nothing."""

from __future__ import annotations
