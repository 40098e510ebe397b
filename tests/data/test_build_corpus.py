"""Building a corpus: workers, kills, locks, full disks and dying processes, and always the same bytes."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pixelis.core.errors import ConfigError, TraceError
from pixelis.data.build.build_corpus import CorpusBuild, build, shard_jobs
from pixelis.data.build.build_plan import GENERATOR_VERSION, prepare_plan
from pixelis.data.build.solver import Solver, unit_path
from pixelis.data.build.solver_pool import SolverPool
from pixelis.data.corpus.corpus import Corpus
from pixelis.data.corpus.corpus_config import CorpusConfig
from pixelis.data.corpus.item_files import ItemFiles
from pixelis.data.corpus.record import encode, pack
from pixelis.data.corpus.splits import Unit

HERE = Path(__file__).parent
NOT_HASHED = ("build.json", ".lock")
NO_FILES = ItemFiles.read(())

YAML = """
n: 16
shard_size: 5
families: {{search: 1, space: 1}}
difficulties: {{1: 1, 2: 1}}
splits: {{train: 0.7, test: 0.3}}
store_artifacts: true
teacher: {{kind: plugin, plugin: "standin:{teacher}"}}
toolbox: {{isolate: false, cache_path: {cache}}}
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache") / "results.sqlite"


@pytest.fixture(autouse=True)
def _standin_can_be_imported(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))


@pytest.fixture
def config(cache):
    def make(teacher="StandIn", **changes):
        given = {
            "n": 16,
            "shard_size": 5,
            "families": {"search": 1.0, "space": 1.0},
            "difficulties": {1: 1.0, 2: 1.0},
            "splits": {"train": 0.7, "test": 0.3},
            "store_artifacts": True,
            "teacher": {"kind": "plugin", "plugin": f"standin:{teacher}"},
            "toolbox": {"isolate": False, "cache_path": str(cache)},
        }
        return CorpusConfig.model_validate(given | changes)

    return make


def hashes(folder: Path) -> dict[str, str]:
    """Every file of a corpus but the two that speak of the machine."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in NOT_HASHED
    }


@pytest.fixture(scope="module")
def reference(tmp_path_factory, cache):
    """A corpus built in one go by the command line, with two processes."""
    folder = tmp_path_factory.mktemp("reference")
    (folder / "corpus.yaml").write_text(YAML.format(teacher="StandIn", cache=cache))
    done = verb(folder, "--json")
    assert done.returncode == 0, done.stderr
    return folder / "corpus", json.loads(done.stdout)


def command(folder: Path, *words: str) -> list[str]:
    run = "from pixelis.cli import data; from pixelis.core.errors import PixelisError\nimport sys\n"
    run += "try: data.app()\nexcept PixelisError as error: print('error:', error, file=sys.stderr); sys.exit(2)"
    return [sys.executable, "-c", run, "build", str(folder / "corpus.yaml"), "-o", str(folder / "corpus"), *words]


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join((str(HERE), os.environ.get("PYTHONPATH", ""))),
    }


def verb(folder: Path, *words: str) -> subprocess.CompletedProcess:
    return subprocess.run(command(folder, *words), capture_output=True, text=True, check=False, env=environment())


def test_a_build_is_whole_and_says_so(reference):
    folder, report = reference
    assert report["whole"]
    assert (report["records"], report["made"], report["timeouts"], report["undone"]) == (16, 16, 0, {})
    corpus = Corpus(folder)
    corpus.verify()
    assert report["corpus"] == corpus.manifest.corpus
    assert [(s.name, s.records) for s in corpus.manifest.shards] == [
        ("train-00000.zip", 5),
        ("train-00001.zip", 5),
        ("train-00002.zip", 1),
        ("test-00000.zip", 5),
    ]
    assert not (folder / ".building").exists()
    assert json.loads((folder / "build.json").read_text())["report"]["corpus"] == report["corpus"]


def test_traces_of_a_corpus_know_no_clock_and_keep_their_artifacts(reference):
    corpus = Corpus(reference[0])
    record = corpus[0]
    assert {step.result.seconds for step in record.trace.steps} == {0.0}
    assert all(corpus.blob(artifact.sha256, record) for _, artifact in record.trace.artifacts)
    assert record.teaching == {"outcome": "answered", "cited": [1]}


def test_one_process_gives_the_bytes_of_two_and_uses_the_cache(reference, config, tmp_path):
    seen = []
    report = build(config(), tmp_path / "corpus", workers=1, on_progress=seen.append)
    assert hashes(tmp_path / "corpus") == hashes(reference[0])
    assert report.cache_hit_rate == 1.0
    assert seen[-1].completed == seen[-1].total == 16
    assert [s.completed for s in seen] == list(range(1, 17))


def test_a_build_killed_again_and_again_ends_with_the_same_bytes(reference, cache, tmp_path):
    (tmp_path / "corpus.yaml").write_text(YAML.format(teacher="Slow", cache=cache))
    finished = tmp_path / "corpus"
    for wanted in (2, 7):  # records on disk before each kill -9
        running = subprocess.Popen(command(tmp_path), env=environment(), stdout=subprocess.DEVNULL)
        while records_on_disk(finished) < wanted:
            assert running.poll() is None
            time.sleep(0.02)
        running.kill()
        running.wait()
        assert not (finished / "manifest.json").exists()
    kept = records_on_disk(finished)
    assert kept >= 7
    done = verb(tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["made"] <= 16 - kept
    ours, theirs = hashes(finished), hashes(reference[0])
    ours.pop("manifest.json")  # the plan names another teacher
    theirs.pop("manifest.json")
    assert ours == theirs
    assert Corpus(finished).manifest.corpus == Corpus(reference[0]).manifest.corpus


def records_on_disk(folder: Path) -> int:
    """Records that a further run need not make: in shards, and in units whose shard is not there yet."""
    sizes = {"train-00000.zip": 5, "train-00001.zip": 5, "train-00002.zip": 1, "test-00000.zip": 5}
    shards = {path.name for path in folder.glob("shards/*.zip")}
    units = [path.stem.rpartition("-") for path in folder.glob(".building/units/*.unit")]
    loose = [u for u in units if f"{u[0]}-{int(u[2]) // 5:05d}.zip" not in shards]
    return sum(sizes[name] for name in shards) + len(loose)


def test_what_was_damaged_meanwhile_is_made_again(reference, config, tmp_path):
    folder = tmp_path / "corpus"
    shutil.copytree(reference[0], folder)
    plan = json.loads((folder / "manifest.json").read_text())["plan"]
    (folder / "manifest.json").unlink()
    (folder / ".building" / "units").mkdir(parents=True)
    (folder / ".building" / "plan.json").write_text(json.dumps(plan))
    (folder / ".building" / "units" / "train-0000010.unit").write_bytes(b"half")
    (folder / "shards" / ".train-00002.zip.534-1403.part").write_bytes(b"killed while this was written")
    (folder / "shards" / "train-00002.zip").unlink()
    cut = folder / "shards" / "train-00001.zip"
    cut.write_bytes(cut.read_bytes()[:1000])
    assert build(config(), folder, workers=1).made == 6
    assert hashes(folder) == hashes(reference[0])


def test_a_whole_corpus_is_left_alone(reference, config):
    before = hashes(reference[0])
    report = build(config(), reference[0])
    assert (report.made, report.is_complete, report.records) == (0, True, 16)
    assert hashes(reference[0]) == before


@pytest.mark.parametrize("harm", ["missing", "cut", "other"])
def test_a_finished_corpus_that_was_damaged_is_made_whole_again(harm, reference, config, tmp_path):
    folder = tmp_path / "corpus"
    shutil.copytree(reference[0], folder)
    victim = folder / "shards" / "train-00001.zip"
    if harm == "missing":
        victim.unlink()
    elif harm == "cut":
        victim.write_bytes(victim.read_bytes()[:1000])
    else:  # sound in itself, and not what the manifest says
        shutil.copy(folder / "shards" / "test-00000.zip", victim)
    report = build(config(), folder, workers=1)
    assert (report.is_complete, report.made, report.records) == (True, 5, 16)
    assert hashes(folder) == hashes(reference[0])


def test_a_manifest_that_cannot_be_read_is_one_line(reference, config, tmp_path):
    folder = tmp_path / "corpus"
    shutil.copytree(reference[0], folder)
    for content in ("[]", '{"version": 1}', "{"):
        (folder / "manifest.json").write_text(content)
        with pytest.raises(TraceError, match="is not a manifest"):
            build(config(), folder)


def test_a_unit_of_another_item_is_made_again(reference, config, tmp_path):
    folder = tmp_path / "corpus"
    (folder / ".building" / "units").mkdir(parents=True)
    corpus, (first, second, *_) = Corpus(reference[0]), next(shard_jobs(config(), NO_FILES)).units
    line = encode(corpus[0])
    unit_path(folder / ".building", first).write_bytes(pack(line, {}))
    building = CorpusBuild(config(), folder, {}, NO_FILES, lambda progress: None)
    assert building.load_record(first) == corpus[0]
    for wrong in (
        first._replace(seed=77), first._replace(difficulty=5), first._replace(family="motion"),
        first._replace(shift="fog", severity=2),
    ):  # fmt: skip
        unit_path(folder / ".building", first).write_bytes(pack(line, {}))
        assert building.load_record(wrong) is None
        assert not unit_path(folder / ".building", first).exists()
    unit_path(folder / ".building", second).write_bytes(pack(line, {}))  # under another item's name
    assert building.load_record(second) is None


def test_a_shard_of_other_items_is_made_again(reference, config, tmp_path):
    folder = tmp_path / "corpus"
    shutil.copytree(reference[0] / "shards", folder / "shards")
    building = CorpusBuild(config(), folder, {}, NO_FILES, lambda progress: None)
    first, second, *_ = shard_jobs(config(), NO_FILES)
    assert building.load_shard_facts(folder / "shards" / first.name, first.units) is not None
    shutil.copy(folder / "shards" / first.name, folder / "shards" / second.name)
    assert building.load_shard_facts(folder / "shards" / second.name, second.units) is None
    assert not (folder / "shards" / second.name).exists()


def test_a_run_that_is_stopped_counts_what_lies_in_later_shards_too(reference, config, tmp_path, monkeypatch):
    folder = tmp_path / "corpus"
    plan = prepare_plan(config("Offline"), folder_made(folder), NO_FILES)
    shutil.copytree(reference[0] / "shards", folder / "shards")
    for lost in ("train-00000.zip", "train-00002.zip"):
        (folder / "shards" / lost).unlink()
    units = folder / ".building" / "units"
    units.mkdir()
    record = Corpus(reference[0])[10]  # the only one of train-00002
    units.joinpath("train-0000010.unit").write_bytes(pack(encode(record), {}))
    record = Corpus(reference[0])[3]  # one of the five of train-00000
    units.joinpath("train-0000003.unit").write_bytes(pack(encode(record), {}))
    report = build(config("Offline"), folder, workers=1)
    assert not report.is_complete
    assert sum(report.undone.values()) >= 1
    whole = Corpus(reference[0])
    there = [whole[k].accepted for k in (3, *range(5, 16))]
    assert (report.records, report.made, report.accepted) == (12, 0, sum(there))
    assert plan["generator"] == GENERATOR_VERSION


def folder_made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


@pytest.mark.parametrize(
    "says", ['printf \'{"unit": "tra\'', "echo nonsense; exec sleep 60", "echo '[1]'; exec sleep 60"]
)
def test_a_torn_reply_is_the_end_of_its_process_and_nobody_waits_for_ever(says, tmp_path, monkeypatch):
    torn = tmp_path / "python"
    torn.write_text(f"#!/bin/sh\n{says}\n")
    torn.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(torn))
    ended: list[Exception] = []

    def wait() -> None:
        with SolverPool({}, tmp_path, workers=1, threads=1) as pool:
            pool.submit(Unit("train", 7, "search", 1, 7))
            try:
                pool.wait_for_reply()
            except TraceError as error:
                ended.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    thread.join(30)
    assert "item train-0000007" in str(ended[0])
    assert "killed 3 processes" in str(ended[0])


def test_a_solver_leaves_no_pixels_on_disk_and_none_of_somebody_elses_files(config, tmp_path, monkeypatch):
    import tempfile

    scratch, here = tmp_path / "scratch", tmp_path / "here"
    scratch.mkdir()
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("TMPDIR", "")  # as good as none, and no name for the folder we are in
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    isolated = config(toolbox={"isolate": True, "cache": False}, families={"motion": 1.0})
    solver = Solver(isolated, tmp_path, tmp_path / "replies")
    unit = next(shard_jobs(isolated, NO_FILES)).units[0]
    mine = here / "pixelis-mine" / f"{solver.render_unit(unit).media[0].sha256}.npy"
    mine.parent.mkdir()
    mine.write_bytes(b"mine")
    try:
        record, _, _ = solver.make_record(unit)
        assert {step.result.status for step in record.trace.steps} == {"ok"}
        assert list(scratch.glob("pixelis-*"))  # pixels were handed to a worker
        assert not list(scratch.rglob("*.npy"))
        again, _, _ = solver.make_record(unit)  # and are handed over again, not believed to be there still
        assert again.trace.steps == record.trace.steps
    finally:
        solver.close()
    assert mine.read_bytes() == b"mine"


def test_another_plan_for_the_same_folder_is_refused(reference, config):
    with pytest.raises(ConfigError, match=r"holds a corpus with another plan \(config.n, config.seed differ\)"):
        build(config(n=20, seed=2), reference[0])


def test_a_folder_with_something_else_in_it_is_refused(config, tmp_path):
    (tmp_path / "thesis.doc").write_text("mine")
    with pytest.raises(ConfigError, match=r"holds 'thesis.doc' and is not a corpus: choose an empty folder"):
        build(config(), tmp_path)


def test_two_builds_into_one_folder_are_refused_and_a_killed_one_leaves_no_process(cache, tmp_path):
    import psutil

    (tmp_path / "corpus.yaml").write_text(YAML.format(teacher="Slow", cache=cache))
    running = subprocess.Popen(command(tmp_path), env=environment(), stdout=subprocess.DEVNULL)
    while not (tmp_path / "corpus" / ".building" / "tmp").exists() or not psutil.Process(running.pid).children():
        assert running.poll() is None
        time.sleep(0.02)
    second = verb(tmp_path)
    children = psutil.Process(running.pid).children(recursive=True)
    running.kill()
    running.wait()
    assert second.returncode == 2
    assert f"is being built by process {running.pid}: wait for it, or choose a folder" in second.stderr
    assert len(second.stderr.strip().splitlines()) == 1
    assert len(children) == 2
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive


def test_a_process_that_dies_is_replaced_and_nothing_is_lost(reference, config, tmp_path, monkeypatch):
    lives = tmp_path / "lives"
    lives.write_text("xx")
    monkeypatch.setenv("PIXELIS_TEST_LIVES", str(lives))
    assert build(config("Murderous"), tmp_path / "corpus", workers=1).is_complete
    assert Corpus(tmp_path / "corpus").manifest.corpus == Corpus(reference[0]).manifest.corpus


def test_an_item_that_kills_every_process_stops_the_build_by_name(config, tmp_path, monkeypatch):
    lives = tmp_path / "lives"
    lives.write_text("xxxxxx")
    monkeypatch.setenv("PIXELIS_TEST_LIVES", str(lives))
    with pytest.raises(TraceError, match=r"item train-0000002 .*seed 2\) killed 3 processes \(signal 9"):
        build(config("Murderous"), tmp_path / "corpus", workers=1)


def test_a_mistake_in_a_teacher_is_named_with_its_place(config, tmp_path):
    with pytest.raises(TraceError, match=r"item train-000000\d: KeyError: 'colour' \(standin.py:\d+\)"):
        build(config("Mistaken"), tmp_path / "corpus", workers=1)


def test_a_teacher_that_cannot_be_loaded_is_one_clear_line(config, tmp_path):
    with pytest.raises(ConfigError, match="teacher 'standin:Nobody' cannot be loaded"):
        build(config("Nobody"), tmp_path / "corpus", workers=2)


def test_a_full_disk_is_said_and_leaves_nothing_half_written(reference, config, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=500k", "tmpfs", str(disk)], check=False)
    if mounted.returncode != 0:
        pytest.skip("a small disk cannot be mounted here")
    try:
        with pytest.raises(TraceError, match="the disk is full; finished items are kept: free some space"):
            build(config(), disk / "corpus", workers=1)
        assert not list(disk.rglob("*.part"))
        done = records_on_disk(disk / "corpus")
        assert done > 0
        subprocess.run(["mount", "-o", "remount,size=50m", str(disk)], check=True)
        report = build(config(), disk / "corpus", workers=1)
        assert (report.is_complete, report.made) == (True, 16 - done)
        assert hashes(disk / "corpus") == hashes(reference[0])
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_mistyped_key_is_one_report_and_exit_status_two(cache, tmp_path):
    (tmp_path / "corpus.yaml").write_text(YAML.format(teacher="StandIn", cache=cache))
    done = verb(tmp_path, "teacher.knid=oracle", "n=none")
    assert done.returncode == 2
    assert "teacher.knid (command line): there is no such key; did you mean kind?" in done.stderr
    assert "n (command line): input should be a valid integer" in done.stderr
    assert not (tmp_path / "corpus").exists()
