"""A report as one HTML file that opens anywhere, offline."""

from lowbit.html.page import render_report, write_report

__all__ = ["render_report", "write_report"]
