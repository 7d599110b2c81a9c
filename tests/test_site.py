"""The documentation builds as a site in which every link leads somewhere."""

from __future__ import annotations

import importlib.util
import pathlib
import re
import subprocess
import sys

import pytest

import lowbit

ROOT = pathlib.Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


def _anchors(page: pathlib.Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    plain = [re.sub(r"[^\w\s-]", "", title.lower()) for title in titles]
    return {re.sub(r"\s+", "-", title.strip()) for title in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_link_to_a_file_leads_to_one(page) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        if anchor:
            assert anchor in _anchors(target), link


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))

    assert {str(p.relative_to(ROOT / "docs")) for p in PAGES if p.name != "README.md"} == listed


def test_every_public_name_is_in_the_reference() -> None:
    named = set(re.findall(r"\blowbit\.(\w+)", (ROOT / "docs" / "reference.md").read_text()))

    assert set(lowbit.__all__) - named == {"__version__"}


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="mkdocs is not installed")
def test_the_site_builds_without_a_warning(tmp_path) -> None:
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]

    ran = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)

    assert ran.returncode == 0, ran.stderr[-2000:]
    assert 'id="lowbit.quantize"' in (tmp_path / "reference" / "index.html").read_text()
