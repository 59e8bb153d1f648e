"""What the docs tell people to type is composed as it stands, what they name exists, and their links lead somewhere."""

import re
import shlex
from pathlib import Path

import pytest
import yaml
from conftest import ROOT, composed
from hydra.core.override_parser.overrides_parser import OverridesParser

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "outputs" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
OWN = ROOT / "docs" / "own_idea.md"  # names files that its reader writes; tests/extension walks it


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def commands() -> list[str]:
    """Every `python src/run.py ...` of a code block, or of a line of code in a text, without its comment."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        lines = re.findall(r"^ {4,}(.*)$", text, flags=re.MULTILINE) + re.findall(r"`([^`]+)`", text)
        found += [line for line in lines if line.startswith("python src/run.py ") and "..." not in line]
    return sorted(set(found))


@pytest.mark.parametrize("command", commands())
def test_commands_in_the_docs_compose(command: str) -> None:
    words = shlex.split(command.split(" | ")[0], comments=True)[2:]
    arguments = [word for word in words if "=" in word and word not in ("<", ">")]
    overrides = OverridesParser.create().parse_overrides(arguments)
    single = [
        f"{override.get_key_element()}={next(override.sweep_string_iterator())}"
        if override.is_sweep_override()
        else str(override.input_line)
        for override in overrides
    ]
    assert composed(*single).task.startswith("aiayn.")


@pytest.mark.parametrize("page", [page for page in PAGES if page != OWN], ids=name)
def test_choices_that_the_docs_name_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    missing = [
        f"{group}={choice}"
        for group, choices in re.findall(r"(?<![\w./])([a-z_/]+)=\[?([a-z0-9_,]+)", text)
        for choice in choices.strip(",").split(",")
        if (ROOT / "conf" / group).is_dir() and not (ROOT / "conf" / group / f"{choice}.yaml").exists()
    ]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_targets_that_the_docs_make_exist(page: Path) -> None:
    named = re.findall(r"(?:^ {4}|`)make ([a-z0-9-]+)", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    targets = re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert set(named) <= set(targets)


def anchors(page: Path) -> set[str]:
    """What a link may name after `#`, as GitHub makes it of headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        to = page.parent / path if path else page
        assert link.startswith("http") or to.exists(), link
        assert link.startswith("http") or not anchor or anchor in anchors(to), link


def test_every_page_is_linked_from_the_readme_or_from_a_page_that_is() -> None:
    reached, new = set(), {ROOT / "README.md"}
    while new:
        page = new.pop()
        reached.add(page)
        links = re.findall(r"\]\(([^)#]+\.md)", page.read_text(encoding="utf-8"))
        new |= {to for link in links if (to := (page.parent / link).resolve()).exists()} - reached
    assert set(PAGES) <= reached


def test_the_citation_names_the_version_that_is_here() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert f'\nversion = "{citation["version"]}"\n' in (ROOT / "pyproject.toml").read_text()
    assert [paper["title"] for paper in citation["references"]] == ["Attention Is All You Need"]
