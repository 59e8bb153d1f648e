"""What others wrote does not reach the terminal as a command."""

import logging

import pytest
from conftest import ROOT
from rich.table import Table
from rich.text import Text

from aiayn.terminal import LogFormatter, Terminal, visible

EVIL = "a\x1b]0;taken\x07\x1b[2J\x9b31m\r\u202eb\udcff"
SHOWN = r"a\x1b]0;taken\x07\x1b[2J\x9b31m\r\u202eb\udcff"


def test_control_characters_are_spelled_out_and_all_else_stays() -> None:
    assert visible(EVIL) == SHOWN
    assert visible("\u00fc \u4e2d\u00a0\tx\n") == "\u00fc \u4e2d\u00a0\tx\n"


def test_rich_prints_no_control_character_of_what_it_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    terminal, table = Terminal(), Table("name")
    table.add_row(Text(EVIL))
    for renderable in (table, Text(EVIL), EVIL):
        terminal.print(renderable, soft_wrap=True, markup=False)
    said = capsys.readouterr().out
    assert not set(said) & set("\x1b\x07\x9b\r\u202e\udcff")
    assert said.count(r"\x1b[2J") >= 2


def test_a_line_of_the_log_has_none_either() -> None:
    record = logging.LogRecord("x", logging.INFO, "", 0, "run folder: %s", (EVIL,), None)
    assert LogFormatter("%(message)s").format(record) == f"run folder: {SHOWN}"


def test_there_is_no_other_way_to_the_terminal() -> None:
    found = [path for path in (ROOT / "src").rglob("*.py") if "rich.console" in path.read_text()]
    assert [path.name for path in found] == ["terminal.py"]
