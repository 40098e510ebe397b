"""Archives of finished parts: taken where they were made of the same, as far as that can be told."""

import json

import pytest

from experiments.common.result_archive import (
    FINGERPRINT,
    UNKNOWN,
    archive_part,
    choose_table_folder,
    is_finished,
    restore_part,
    write_fingerprint,
)
from pixelis.core.errors import ConfigError


def test_an_archive_serves_where_its_questions_are_not_and_tells_which_they_were(tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "items.jsonl").write_text("1\n")
    archive, made_of = tmp_path / "part.zip", {"seed": 0, "questions": "abc"}
    archive_part(tmp_path / "here", archive, ["items.jsonl"], made_of)
    there, unknown = tmp_path / "there", {"seed": 0, "questions": UNKNOWN}
    assert not restore_part(there, archive, ["items.jsonl"], {"seed": 1, "questions": UNKNOWN})
    assert not restore_part(there, archive, ["items.jsonl"], {"seed": 0})
    assert not restore_part(there, archive, ["items.jsonl"], {"seed": 0, "questions": "abd"})
    assert not there.exists()
    assert restore_part(there, archive, ["items.jsonl"], unknown)
    assert (there / "items.jsonl").read_text() == "1\n"
    assert json.loads((there / FINGERPRINT).read_text()) == made_of
    assert is_finished(there, unknown)
    assert is_finished(there, made_of)
    with pytest.raises(ConfigError, match="of other weights, settings or questions"):
        is_finished(there, {"seed": 0, "questions": "abd"})


@pytest.mark.parametrize("signature", [b"{", b"[1]", b"3", b"\xff"])
def test_a_damaged_signature_is_another_one(tmp_path, signature):
    (tmp_path / FINGERPRINT).write_bytes(signature)
    with pytest.raises(ConfigError, match="of other weights, settings or questions"):
        is_finished(tmp_path, {"seed": 0})


def test_what_is_signed_as_unknown_is_not_taken_for_something_known(tmp_path):
    write_fingerprint(tmp_path, {"questions": UNKNOWN})
    with pytest.raises(ConfigError):
        is_finished(tmp_path, {"questions": "abc"})


def test_a_table_with_fewer_variants_does_not_take_the_place_of_the_published_one(tmp_path, capsys):
    results, work = tmp_path / "results", tmp_path / "work"
    rows = [{"variant": "sft", "seeds": 1, "mean": 0.1 + 0.2}, {"variant": "ours", "seeds": 3, "mean": 2.0}]
    table = {"config": {"items": (1, 2)}, "rows": rows, "pairs": []}
    assert choose_table_folder(results, work, table, print) == results
    results.mkdir()
    (results / "table.json").write_text(json.dumps({"commit": "abc", **table}))
    assert choose_table_folder(results, work, table, print) is None
    assert choose_table_folder(results, work, {**table, "rows": rows[:1]}, print) == work
    assert choose_table_folder(results, work, {**table, "rows": [rows[0], {**rows[1], "seeds": 2}]}, print) == work
    assert capsys.readouterr().out.count("more of ours than is here") == 2
    assert (
        choose_table_folder(results, work, {**table, "rows": [*rows, {"variant": "l2", "seeds": 1}]}, print) == results
    )
    assert choose_table_folder(results, work, {**table, "config": {"items": (1, 3)}}, print) == results
    asked = [{**rows[0], "held_out": {"seeds": 1}}, rows[1]]
    (results / "table.json").write_text(json.dumps({**table, "rows": asked}))
    unasked = [{**rows[0], "held_out": None}, rows[1]]
    assert choose_table_folder(results, work, {**table, "rows": unasked}, print) == work
    (results / "table.json").write_text("[]")
    assert choose_table_folder(results, work, table, print) == results
