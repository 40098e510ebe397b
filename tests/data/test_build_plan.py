"""The plan of a build: which generator made a corpus, and which recorded plans are resumed."""

import hashlib
import json
import shutil

import pytest

from pixelis.core.errors import ConfigError
from pixelis.data.build import build_plan
from pixelis.data.build.build_corpus import build
from pixelis.data.build.build_plan import GENERATOR_VERSION, VERSION_BY_DIGEST, prepare_plan, upgrade_plan
from pixelis.data.build.solver import Solver
from pixelis.data.corpus.corpus import Corpus
from pixelis.data.corpus.corpus_config import CorpusConfig, TeacherConfig
from pixelis.data.corpus.item_files import ItemFiles, corpus_units
from pixelis.trace.schema import canonical_json

NO_FILES = ItemFiles.read(())
SAMPLE_DIGEST = {1: "b9a5df4c166452121c5be4303cd4b8280997b7842932374ee1c66f68172b32d5"}
"""SHA-256 of the sample below, by generator version."""
OLD_DIGEST = "1bd8a72d793c91fa79ec090f75b7b04ebc0a35f7e2ab1bedbd08f5ed18868c6e"


@pytest.fixture
def config():
    return CorpusConfig.model_validate({
        "n": 6, "splits": {"train": 1.0}, "difficulties": {1: 1, 3: 1}, "toolbox": {"isolate": False, "cache": False},
    })  # fmt: skip


def test_the_sample_changes_only_with_the_generator_version(config, tmp_path):
    """Raise GENERATOR_VERSION and add a line to SAMPLE_DIGEST if this fails, unless the change was not intended."""
    solver, digest = Solver(config, tmp_path, tmp_path / "replies"), hashlib.sha256()
    try:
        for unit in corpus_units(config, NO_FILES):
            record, _, _ = solver.make_record(unit)
            steps = [[step.thought, step.call.tool, step.call.args] for step in record.trace.steps]
            item = record.item.model_dump(mode="json")
            digest.update(canonical_json([item, steps, record.trace.answer, record.accepted, record.acceptance]))
    finally:
        solver.close()
    assert SAMPLE_DIGEST[GENERATOR_VERSION] == digest.hexdigest()


@pytest.fixture
def old_corpus(config, tmp_path):
    """A finished corpus whose manifest names its generator by the digest of source files, as version 0.1.0 did."""
    small = config.model_copy(update={"n": 2, "families": {"space": 1.0}, "shard_size": 1})
    folder = tmp_path / "corpus"
    build(small, folder, workers=1)
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["plan"]["generator"]
    manifest["plan"]["code"] = OLD_DIGEST
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return small, folder


def test_a_corpus_with_the_digest_of_the_last_sources_is_version_1_and_is_repaired(old_corpus):
    small, folder = old_corpus
    corpus = Corpus(folder).manifest.corpus
    assert build(small, folder).made == 0
    (folder / "shards" / "train-00001.zip").unlink()
    report = build(small, folder, workers=1)
    assert (report.made, report.corpus) == (1, corpus)
    assert Corpus(folder).manifest.plan["generator"] == 1


def test_a_build_that_began_before_the_move_is_resumed(config, tmp_path):
    plan = prepare_plan(config, tmp_path, NO_FILES)
    plan["code"] = OLD_DIGEST
    assert plan.pop("generator") == VERSION_BY_DIGEST[OLD_DIGEST] == 1
    teacher = plan["config"]["teacher"]
    for old, name in TeacherConfig.old_names.items():
        teacher[old] = teacher.pop(name)
    plan["config"]["shifted"] = plan["config"].pop("shift_share")
    (tmp_path / ".building" / "plan.json").write_text(json.dumps(plan))
    assert prepare_plan(config, tmp_path, NO_FILES)["generator"] == 1


def test_other_generators_are_refused(old_corpus, monkeypatch):
    small, folder = old_corpus
    assert upgrade_plan({"code": "0" * 64})["generator"] == "0" * 64
    assert upgrade_plan([]) == {}
    monkeypatch.setattr(build_plan, "GENERATOR_VERSION", 2)
    with pytest.raises(ConfigError, match=r"another plan \(the version of the item generator differ\)"):
        build(small, folder)
    shutil.rmtree(folder)


def test_keys_of_earlier_releases_are_read_under_their_present_names():
    teacher = {"plain": True, "by_eye": 0.25, "detours": 0.5, "max_slips": 1}
    config = CorpusConfig.model_validate({"shifted": 0.5, "teacher": teacher})
    assert config.shift_share == 0.5
    renamed = {"canonical_wording": True, "visual_guess_rate": 0.25, "detour_rate": 0.5, "max_parse_errors": 1}
    assert config.teacher == TeacherConfig(**renamed)
    assert config.identity()["teacher"].keys() >= renamed.keys()
    assert not config.identity()["teacher"].keys() & teacher.keys()
