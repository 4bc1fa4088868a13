"""Navigation of the documentation site, read from docs/README.md: the index and the site list the same pages."""

import re
from pathlib import Path, PurePosixPath
from typing import Any

INDEX = "docs/README.md"
Navigation = list[dict[str, Any]]


def navigation(index: str) -> Navigation:
    """Return the site's navigation: a tab for each group of the index, with its pages.

    Args:
        index: text of `INDEX`: headings of groups, and tables whose first column links to a page.
    """
    groups: Navigation = [{"Home": ["README.md", INDEX]}]
    for section in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        title, _, rows = section.partition("\n")
        pages = [
            {name: _path(target)} for name, target in re.findall(r"^\| \[([^\]]+)\]\(([^)]+)\)", rows, re.MULTILINE)
        ]
        groups.append({title: pages})
    return groups


def on_config(config: Any) -> Any:  # noqa: ANN401 - mkdocs is not installed where types are checked
    """Set the navigation; mkdocs calls this once it has read its configuration."""
    config["nav"] = navigation((Path(config["docs_dir"]) / INDEX).read_text(encoding="utf-8"))
    return config


def _path(target: str) -> str:
    """Return a link of the index as a path from the root of the repository."""
    parts: list[str] = list(PurePosixPath(INDEX).parent.parts)
    for part in PurePosixPath(target).parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)
