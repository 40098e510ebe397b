"""One set of options: a walk over all verbs of the command line."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.core
from typer.main import get_command
from typer.testing import CliRunner

from pixelis.cli import app, ask, clone, progress
from pixelis.core.errors import ConfigError, PixelisError

PHOTOGRAPH = str(Path(__file__).parents[2] / "src" / "pixelis" / "demo" / "cat.jpg")
LETTERS = {"-m": "--model", "-o": "--out", "-q": "--quiet", "-c": "--config", "-n": "--samples"}
TOOL_VERBS = ("ask", "eval", "run", "replay", "tools run", "data build", "adapt run")


def verbs(command: Any, name: str = "") -> dict[str, Any]:
    """Every verb of the command line by its words."""
    if not hasattr(command, "commands"):
        return {name: command}
    groups = {} if not getattr(command, "invoke_without_command", False) else {name: command}
    for word, child in command.commands.items():
        groups |= verbs(child, f"{name} {word}".strip())
    return groups


VERBS = verbs(get_command(app))


def options(verb: str) -> dict[str, Any]:
    """Options of a verb by each of their names."""
    return {name: parameter for parameter in VERBS[verb].params for name in parameter.opts if name.startswith("-")}


def test_all_verbs_are_walked():
    assert {"ask", "tools run", "data import", "adapt revert", "bench", "bench seg", "train sft"} <= VERBS.keys()
    assert len(VERBS) > 45


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_every_option_has_help_and_a_letter_means_one_thing(verb):
    for parameter in VERBS[verb].params:
        if isinstance(parameter, typer.core.TyperOption):
            assert parameter.help, f"{verb} {parameter.name} has no help"
    for letter, name in LETTERS.items():
        assert (letter in options(verb)) == (name in options(verb)), f"{verb}: {letter} and {name}"
        if letter in options(verb):
            assert options(verb)[letter] is options(verb)[name]
    if "--media" in options(verb):
        assert options(verb)["--media"].opts == ["--media"]
    assert "--output" not in options(verb) or "--out" in options(verb)
    assert VERBS[verb].help, f"{verb} has no help"


def test_an_option_says_the_same_in_every_verb():
    """But for those whose meaning is the verb's, and for settings that a configuration has too."""
    varying = {
        "--out",
        "-o",
        "--limit",
        "--media",
        "--seg",
        "--cache",
        "--split",
        "--evaluation",
        "--config",
        "--shift",
    }
    shared: dict[str, set[str]] = {}
    for verb in VERBS:
        for name in options(verb):
            shared.setdefault(name, set()).add(options(verb)[name].help)
    for name in ("--json", "--model", "--quiet", "--seed", "--plugin", "--disable", "--deadline", "--fps", "--config"):
        assert len(shared[name]) == 1, name
    assert {name for name, texts in shared.items() if len(texts) > 3} <= varying | {"--policy"}


@pytest.mark.parametrize("verb", TOOL_VERBS)
def test_verbs_that_run_tools_take_their_settings(verb):
    assert {"--seg", "--plugin", "--disable", "--deadline"} <= options(verb).keys()


def test_exit_statuses_are_in_the_help():
    shown = CliRunner().invoke(app, ["--help"]).output
    for words in ("0 success", "1 a negative result", "2 wrong input", "130 interrupted"):
        assert words in " ".join(shown.split())


@pytest.mark.parametrize(
    ("words", "media"),
    [
        ([PHOTOGRAPH, "how many?"], [PHOTOGRAPH]),
        (["how many?", PHOTOGRAPH], [PHOTOGRAPH]),
        ([PHOTOGRAPH, "how many?", PHOTOGRAPH], [PHOTOGRAPH, PHOTOGRAPH]),
        (["no-such.jpg", "how many?"], ["no-such.jpg"]),
    ],
)
def test_media_and_question_come_in_either_order(words, media):
    assert ask.split_question(words) == (media, "how many?")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["how many?"], "give at least one image or video"),
        ([PHOTOGRAPH], "the question is missing"),
        ([PHOTOGRAPH, "how", "many", "cats"], "quote the question"),
    ],
)
def test_a_question_that_is_not_one_argument_gets_a_sentence(words, sentence):
    with pytest.raises(ConfigError, match=sentence):
        ask.split_question(words)


@pytest.mark.parametrize("words", [["ask", PHOTOGRAPH, "what?"], ["eval"], ["demo"], ["adapt", "search"]])
def test_a_mistyped_model_is_refused_before_anything_is_loaded(words, monkeypatch, tmp_path):
    for module in ("torch", "onnxruntime"):
        monkeypatch.setitem(sys.modules, module, None)
    model = ["policy=nano-rfx"] if words[0] == "adapt" else ["-m", "nano-rfx"]
    found = CliRunner().invoke(app, [*words, *model, *(["-o", str(tmp_path)] if words[0] in ("demo", "adapt") else [])])
    assert isinstance(found.exception, ConfigError)
    assert "did you mean 'nano-rft'" in str(found.exception)


def test_without_a_clone_a_verb_says_that_it_needs_one(monkeypatch, tmp_path):
    monkeypatch.setattr(clone, "CLONE", tmp_path)
    for verb in (["bench", "world"], ["reproduce", "rft"]):
        found = CliRunner().invoke(app, verb)
        assert isinstance(found.exception, PixelisError)
        assert "needs a clone" in str(found.exception)


def test_without_a_terminal_progress_is_a_line_every_few_seconds(monkeypatch, capsys):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with progress.progress_bars() as show:
        for completed in range(1, 31):  # a second each
            now[0] += 1.0
            show("items", completed, 3000, "2 items/s")
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"items: {n} of 3,000, 2 items/s" for n in (10, 20, 30)]


def test_quiet_shows_no_progress(monkeypatch, capsys):
    monkeypatch.setattr(progress, "LINE_INTERVAL_S", 0.0)
    progress.set_quiet(True)
    try:
        with progress.progress_bars() as show:
            show("items", 1, 2)
    finally:
        progress.set_quiet(False)
    assert not capsys.readouterr().err


def test_tables_fit_80_columns_with_a_long_model_name(capsys):
    from pixelis.cli.evaluate import print_evaluation
    from pixelis.evaluation.harness import Evaluation, summarise_scores

    rows = [summarise_scores("corpus/a-corpus-with-a-long-name:dev-cal", ())]
    name = "openai:http://127.0.0.1:8000/v1#Qwen/Qwen3-VL-8B-Instruct"
    print_evaluation(Evaluation(name, tuple(rows), rows[0], (), 1.0, 1.0), None)
    table = capsys.readouterr().out.split("score, valid calls")[0]
    assert name in table
    assert max(map(len, table.splitlines())) <= 80


BLOCK = """
import sys
class Blocked:
    def find_spec(self, name, *rest):
        if name.partition(".")[0] in ("torch", "transformers", "safetensors"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name.partition(".")[0])
sys.meta_path.insert(0, Blocked())
from pixelis.cli import main
main()
"""


def without_torch(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BLOCK, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)


def test_tools_traces_and_pages_work_without_torch(tmp_path):
    called = without_torch("tools", "run", "OCR", "--media", PHOTOGRAPH, "--json", folder=tmp_path)
    assert json.loads(called.stdout)["ok"] is True, called.stderr
    (tmp_path / "plan.json").write_text(json.dumps({"steps": [{"tool": "ZOOM", "args": {"scale": 2}}]}))
    for words in (
        ["run", "plan.json", "--media", PHOTOGRAPH, "-o", "t.jsonl"],
        ["replay", "t.jsonl"],
        ["report", "t.jsonl"],
    ):
        found = without_torch(*words, folder=tmp_path)
        assert (found.returncode, found.stderr) == (0, ""), words
    assert (tmp_path / "evidence.html").exists()


@pytest.mark.parametrize(
    ("words", "subject", "extra"),
    [
        (["train", "sft", "configs/nano/sft.yaml"], "`pixelis train`", "train"),
        (["ask", PHOTOGRAPH, "what?"], "the policy nano-rft", "policy"),
    ],
)
def test_a_verb_that_needs_torch_says_how_to_install_it(words, subject, extra, tmp_path):
    found = without_torch(*words, folder=tmp_path)
    assert found.returncode == 2
    assert found.stderr == f"error: {subject} needs torch: pip install 'pixelis[{extra}]'\n"


def test_without_a_terminal_long_work_says_once_what_it_does(monkeypatch, capsys):
    monkeypatch.setattr(progress, "LINE_INTERVAL_S", 0.01)
    with progress.spinner("replaying"):
        while "replaying" not in (shown := capsys.readouterr().err):
            pass
    assert shown == "replaying …\n"
