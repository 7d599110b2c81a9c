"""Progress on terminals and nowhere else."""

from __future__ import annotations

import io

from rich.console import Console

from lowbit.report.progress import show_stages
from lowbit.report.tables import stdout


def test_a_terminal_sees_stage_and_count() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80)

    with show_stages(quiet=False, console=console) as tell:
        tell("load", 0, None)
        tell("calibrate", 3, 8)

    text = console.file.getvalue()
    assert "calibrate" in text
    assert "3/8" in text


def test_quiet_and_pipes_see_nothing(capsys) -> None:
    console = Console(file=io.StringIO(), force_terminal=True)

    with show_stages(quiet=True, console=console) as tell:
        tell("load", 0, None)
    with show_stages(quiet=False) as tell:
        tell("load", 0, None)

    assert console.file.getvalue() == ""
    assert capsys.readouterr() == ("", "")


def test_names_are_no_markup(capsys) -> None:
    stdout().print("[bold]name[/bold] :smile: 12")

    assert capsys.readouterr().out == "[bold]name[/bold] :smile: 12\n"
