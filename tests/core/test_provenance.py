"""Where a result says it is from."""

import subprocess

from pixelis.core import provenance


def test_a_result_names_its_commit_and_whether_the_code_was_changed(tmp_path, monkeypatch):
    def git(*words):
        told = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-C", str(tmp_path)]
        return subprocess.run(["git", *told, *words], capture_output=True, text=True, check=True).stdout.strip()

    code, result = tmp_path / "src" / "provenance.py", tmp_path / "docs" / "results" / "table.json"
    for path in (code, result):
        path.parent.mkdir(parents=True)
        path.write_text("1\n")
    monkeypatch.setattr(provenance, "__file__", str(code))
    assert provenance.git_commit() == "unknown"
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "one")
    made = git("rev-parse", "HEAD")
    result.write_text("2\n")  # what a run writes is not what it was run with
    assert provenance.git_commit() == made
    code.write_text("2\n")
    assert provenance.git_commit() == f"{made}+"
