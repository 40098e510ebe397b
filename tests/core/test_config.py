"""Configurations: defaults, overrides, and every mistake said at once."""

from pathlib import Path
from typing import ClassVar

import pytest
from pydantic import Field

from pixelis.core.config import Config, load_config, resolve_config_path, with_current_names
from pixelis.core.errors import ConfigError


class Inner(Config):
    rate: float = Field(default=0.5, ge=0.0, le=1.0)
    """Share of something."""
    names: tuple[str, ...] = ()


class Outer(Config):
    count: int = 3
    """How many."""
    inner: Inner = Inner()
    folder: Path | None = None


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "a.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def complaint(path: Path | None, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(Outer, path, overrides)
    return str(caught.value)


def test_a_file_lists_only_what_differs(tmp_path):
    config = load_config(Outer, written(tmp_path, "inner:\n  rate: 0.25\n"))
    assert config == Outer(inner=Inner(rate=0.25))


def test_a_shipped_file_is_found_from_anywhere_and_one_beside_you_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = Path("configs/nano/own.yaml")
    shipped = resolve_config_path(name)
    assert shipped.is_file()
    assert shipped.is_absolute()
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_text("count: 9")
    assert load_config(Outer, name).count == 9
    for other in (Path("configs/../pyproject.toml"), Path("configs/none.yaml"), tmp_path / "configs/nano/rft.yaml"):
        assert resolve_config_path(other) == other


def test_an_empty_file_is_the_defaults(tmp_path):
    assert load_config(Outer, written(tmp_path, "# nothing\n")) == Outer()


def test_a_dotted_override_wins_over_the_file(tmp_path):
    path = written(tmp_path, "count: 4\ninner:\n  rate: 0.25\n")
    config = load_config(Outer, path, ["inner.rate=0.75", "inner.names=[a, b]", "folder="])
    assert (config.count, config.inner.rate, config.inner.names, config.folder) == (4, 0.75, ("a", "b"), None)


def test_every_bad_key_is_reported_at_once_with_its_path_and_line(tmp_path):
    text = complaint(written(tmp_path, "cuont: 4\ninner:\n  rate: 7\n  nmaes: [a]\n"), "count=many")
    assert "4 keys are wrong" in text
    assert "cuont (line 1): there is no such key; did you mean count?" in text
    assert "inner.rate (line 3): input should be less than or equal to 1, not '7'" in text
    assert "inner.nmaes (line 4): there is no such key; did you mean names?" in text
    assert "count (command line): input should be a valid integer" in text


def test_the_keys_are_listed_once_however_many_are_unknown(tmp_path):
    first, second = complaint(written(tmp_path, "zebra: 1\nquagga: 2\n")).splitlines()[1:]
    assert first.startswith("  zebra (line 1): there is no such key; the keys here are ")
    assert second == "  quagga (line 2): there is no such key"


def test_a_key_that_stands_twice_is_refused(tmp_path):
    assert "line 3: count stands twice" in complaint(written(tmp_path, "count: 1\nfolder: a\ncount: 2\n"))


def test_an_override_without_a_value_says_how_to_write_one():
    assert "want key=value" in complaint(None, "count")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("count: [1\n", "not YAML"),
        ("- 1\n- 2\n", "holds a list; want keys"),
        ("count: !!python/object/apply:os.system [true]\n", "not YAML"),
        ("a: " + "[" * 400 + "]" * 400, "nested deeper"),
        ("".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9) if i else 1}]\n" for i in range(9)), "over 20000 keys"),
        ("# " + "x" * 2**20, "no configuration is that long"),
    ],
)
def test_what_is_no_configuration_is_refused_in_one_line(tmp_path, text, words):
    message = complaint(written(tmp_path, text))
    assert words in message
    assert "\n" not in message


def test_a_missing_file_is_said_in_one_line(tmp_path):
    assert "cannot be read (No such file or directory)" in complaint(tmp_path / "none.yaml")


def test_help_texts_are_the_attribute_docstrings():
    assert Outer.model_fields["count"].description == "How many."


class Renamed(Outer):
    old_names: ClassVar = {"inside": "inner", "tally": "count"}


class Nested(Config):
    part: Renamed | None = None
    share: float = 0.0


def test_a_key_of_an_earlier_release_is_read_in_files_overrides_and_dictionaries_and_never_written(tmp_path):
    path = written(tmp_path, "part:\n  tally: 4\n  inside: {rate: 0.25}\n")
    config = load_config(Nested, path, ["part.inside.rate=0.75", "part.count=5"])
    assert config == Nested(part=Renamed(count=5, inner=Inner(rate=0.75)))
    assert Nested.model_validate(config.model_dump()) == config
    assert Renamed.model_validate({"tally": 5}) == Renamed(count=5)
    assert set(config.model_dump()["part"]) == {"count", "inner", "folder"}
    assert with_current_names(Nested, {"part": {"inside": {"rate": 1.0}}}) == {"part": {"inner": {"rate": 1.0}}}


def test_a_mistake_under_an_old_name_is_reported_at_its_line_under_the_present_one(tmp_path):
    path = written(tmp_path, "part:\n  tally: many\n  inside: {rate: 7}\n  tallly: 3\n")
    with pytest.raises(ConfigError) as caught:
        load_config(Nested, path, ["part.inside.names=3"])
    text = str(caught.value)
    assert "part.count (line 2): input should be a valid integer" in text
    assert "part.inner.rate (line 3): input should be less than or equal to 1" in text
    assert "part.inner.names (command line): input should be a valid tuple" in text
    assert "part.tallly (line 4): there is no such key; did you mean count?" in text


def test_a_value_under_both_names_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"part \(line 1\): tally is the old name of count: give one of them"):
        load_config(Nested, written(tmp_path, "part: {tally: 4, count: 4}\n"))
