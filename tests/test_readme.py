"""What README and docs tell people to type is composed as it stands, and the files that they link to are there."""

import re
import shlex

import pytest
from conftest import ROOT, composed
from hydra.core.override_parser.overrides_parser import OverridesParser

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def commands() -> list[str]:
    """Every `python src/run.py ...` of a code block, or of a line of code in a text, without its comment."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        lines = re.findall(r"^    (.*)$", text, flags=re.MULTILINE) + re.findall(r"`([^`]+)`", text)
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert link.startswith("http") or (page.parent / link).exists(), link
