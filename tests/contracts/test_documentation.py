"""What the documentation promises exists."""

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md", "benchmarks/**/*.md")
    for path in ROOT.glob(pattern)
)
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))


def links(page: Path) -> list[str]:
    """Return the targets of a page's links to files, without their anchors."""
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    return [target for target in targets if "://" not in target]


def test_links_lead_to_files() -> None:
    """A moved file takes its links along; every broken link of every page is listed."""
    assert len(PAGES) > 100
    assert [
        f"{page.relative_to(ROOT)}: {target}"
        for page in PAGES
        for target in links(page)
        if not (page.parent / target).exists()
    ] == []


def test_make_commands_exist() -> None:
    """Every command that a page tells the reader to run is in the Makefile, or in what it includes."""
    makefiles = [ROOT / "Makefile", ROOT / "tests" / "cluster" / "cluster.mk"]
    text = "".join(path.read_text(encoding="utf-8") for path in makefiles)
    targets = set(re.findall(r"^([a-z0-9-]+(?:\.[0-9]+)?):.*##", text, flags=re.MULTILINE))
    command = re.compile(r"(?:^    |`)make ([a-z0-9-]+(?:\.[0-9]+)?)", flags=re.MULTILINE)
    named = [(page, name) for page in PAGES for name in command.findall(page.read_text(encoding="utf-8"))]

    assert len(named) > 50
    assert [f"{page.relative_to(ROOT)}: make {name}" for page, name in named if name not in targets] == []


def test_the_page_of_benchmarks_names_results_that_exist() -> None:
    """Each pattern of a results file, such as `search-time_*`, matches one, unless its row says otherwise."""
    rows = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8").splitlines()
    named = {name for row in rows if "not yet made" not in row for name in re.findall(r"`([a-z0-9-]+_[\w-]*\*)`", row)}

    assert len(named) > 30
    assert sorted(name for name in named if not list((ROOT / "benchmarks" / "results").glob(name))) == []


def test_the_index_leads_to_every_page() -> None:
    """A page is found from the index: it is named there, or in the index of its folder."""
    index = ROOT / "docs" / "README.md"
    named = {(index.parent / target).resolve() for target in links(index)}
    named |= {(page.parent / target).resolve() for page in named if page.name == "README.md" for target in links(page)}
    pages = set((ROOT / "docs").rglob("*.md")) - {index}

    assert sorted(pages - named) == []


def test_the_site_has_a_tab_for_each_group_of_the_index() -> None:
    """Its navigation is read from the index, so that a page is listed once."""
    spec = importlib.util.spec_from_file_location("site_navigation", ROOT / "docs" / "site_navigation.py")
    assert spec is not None
    assert spec.loader is not None
    site = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(site)
    groups = site.navigation((ROOT / site.INDEX).read_text(encoding="utf-8"))

    assert [title for group in groups for title in group] == [
        "Home", "Start here", "Plan", "Train", "Operate", "Understand", "Look up",
    ]  # fmt: skip
    pages = [page for group in groups[1:] for named in next(iter(group.values())) for page in named.values()]
    assert "docs/guides/plan-a-model.md" in pages
    assert [page for page in pages if not (ROOT / page).is_file()] == []


def test_guides_begin_with_the_result_and_its_time_and_end_with_next_steps() -> None:
    """A reader decides in the first paragraph whether to go on, and is led on at the end."""
    assert len(GUIDES) > 10
    assert [f"{guide.name}: {problem}" for guide in GUIDES for problem in guide_problems(guide)] == []


def guide_problems(guide: Path) -> Iterator[str]:
    """Yield the faults of a guide at its start and its end."""
    title, first, *_ = guide.read_text(encoding="utf-8").split("\n\n")
    headings = re.findall(r"^## (.*)$", guide.read_text(encoding="utf-8"), flags=re.MULTILINE)
    if not title.startswith("# "):
        yield "begins without a title"
    if first.startswith((" ", "#", "```", "|")):
        yield "has no paragraph below its title"
    if not re.search(r"\b(minutes?|seconds?|hours?)\b", first):
        yield "names no time in its first paragraph"
    if headings[-1:] != ["Next steps"] or headings.count("Next steps") != 1:
        yield "does not end with one section 'Next steps'"


def test_the_readme_is_short_and_its_picture_has_its_numbers() -> None:
    """The picture is drawn from plans of the sample below it; who changes one of them draws or prints both."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    caption, picture = re.findall(r"!\[([^\]]*)\]\((\S+bars\.svg)\)", readme)[0]
    named, sample = (set(re.findall(r"[\d.]+ ms", text)) for text in (caption, readme.replace(caption, "")))

    assert len(readme.split()) < 900
    assert named == set(re.findall(r"[\d.]+ ms", (ROOT / picture).read_text(encoding="utf-8")))
    assert named <= sample


def test_the_trust_page_has_the_numbers_of_the_newest_calibration() -> None:
    """Its table of held-out calls and its times of a training are copies."""
    page = (ROOT / "docs" / "concepts" / "trust.md").read_text(encoding="utf-8")
    result = max((ROOT / "benchmarks" / "results").glob("kernel-calibration_*")).read_text(encoding="utf-8")
    judged = re.findall(r"\| held out \| (\d+) \| (.*?) \| (\S+ to \S+) \|", result)
    shown = re.findall(r"^\|[^|]*\| (\d+) \| ((?:\S+ % \| ){2}\S+ %) \| (\S+ to \S+) \|$", page, flags=re.MULTILINE)
    simulated, bundled = re.findall(r"^\| both \|.* (\S+) \| (\S+) \|$", result, flags=re.MULTILINE)[0]

    assert len(shown) == 3
    assert set(shown) <= set(judged)
    assert f"these prices give {float(simulated):.2f} ms, the bundled models {float(bundled):.2f}" in page
