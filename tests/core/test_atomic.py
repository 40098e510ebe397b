"""Files that last: what is synced, in which order, and what a failure leaves behind."""

import os
from pathlib import Path

import pytest

from pixelis.core.atomic import atomic_write
from pixelis.core.errors import ConfigError
from pixelis.core.provenance import write_json
from pixelis.training.ttrl.journal import append_lines


@pytest.fixture
def synced(monkeypatch):
    """What the kernel was asked to keep, in order; Linux knows the path of an open file."""
    found: list[Path] = []
    really = os.fsync

    def watched(descriptor: int) -> None:
        found.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        really(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    return found


def test_a_result_in_new_folders_lasts_with_the_names_of_all_of_them(tmp_path, synced):
    write_json(tmp_path / "a" / "b" / "result.json", {"right": 1})
    assert synced[:2] == [tmp_path, tmp_path / "a"]  # each new name, in the folder that holds it
    assert synced[2].name.endswith(".part")  # the bytes before the name
    assert synced[3:] == [tmp_path / "a" / "b"]


def test_the_first_row_of_a_ledger_lasts_with_its_name_and_later_ones_by_themselves(tmp_path, synced):
    path = tmp_path / "ledger.jsonl"
    append_lines(path, ["{}"])
    append_lines(path, ["{}"])
    assert synced == [path, tmp_path, path]


def test_a_body_that_fails_leaves_the_older_file_and_nothing_beside_it(tmp_path):
    path = tmp_path / "kept.json"
    path.write_text("old")

    def interrupted():
        with atomic_write(path) as file:
            file.write(b"half of the n")
            raise RuntimeError("the tool died")

    with pytest.raises(RuntimeError):
        interrupted()
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["kept.json"]


def test_a_result_below_a_file_is_refused_with_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        write_json(tmp_path / "file" / "result.json", {})
