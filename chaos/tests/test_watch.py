"""The folders of rounds: what a broken one left is there when its seed is played again."""

from __future__ import annotations

from pathlib import Path

from chaos import watch


def test_what_a_broken_round_left_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "7"
    for text in ("first", "second"):
        watch.clear(folder)
        (folder / "log.jsonl").write_text(text)
        (folder / watch.REPORT).write_text(text)
    watch.clear(folder)
    assert list(folder.iterdir()) == []
    assert (tmp_path / "7-broken-1" / "log.jsonl").read_text() == "first"
    assert (tmp_path / "7-broken-2" / watch.REPORT).read_text() == "second"


def test_a_round_that_was_well_is_not(tmp_path: Path) -> None:
    folder = tmp_path / "7"
    watch.clear(folder)
    (folder / "log.jsonl").write_text("{}")
    watch.clear(folder)
    assert list(tmp_path.iterdir()) == [folder] and not any(folder.iterdir())
