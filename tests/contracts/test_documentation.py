"""What the documentation promises exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md", "benchmarks/**/*.md")
    for path in ROOT.glob(pattern)
)
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def links(page: Path) -> list[str]:
    """Return the targets of a page's links to files, without their anchors."""
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    return [target for target in targets if "://" not in target]


@each_page
def test_a_link_leads_to_a_file(page: Path) -> None:
    """A moved file takes its links along."""
    assert [target for target in links(page) if not (page.parent / target).exists()] == []


@each_page
def test_a_make_command_exists(page: Path) -> None:
    """Every command that a page tells the reader to run is in the Makefile, or in what it includes."""
    makefiles = [ROOT / "Makefile", ROOT / "tests" / "cluster" / "cluster.mk"]
    text = "".join(path.read_text(encoding="utf-8") for path in makefiles)
    targets = set(re.findall(r"^([a-z0-9-]+(?:\.[0-9]+)?):.*##", text, flags=re.MULTILINE))
    told = set(
        re.findall(r"(?:^    |`)make ([a-z0-9-]+(?:\.[0-9]+)?)", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    )

    assert told <= targets


def test_the_index_leads_to_every_page() -> None:
    """A page is found from the index: it is named there, or its folder is."""
    index = ROOT / "docs" / "README.md"
    named = {(index.parent / target).resolve() for target in links(index)}
    pages = set((ROOT / "docs").rglob("*.md")) - {index}

    assert sorted(page for page in pages if not named & {page, page.parent}) == []
