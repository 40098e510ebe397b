"""Traces on disk: round trips, flipped bytes, missing files, crashes, full disks."""

import json
import multiprocessing
import os
import subprocess
import sys
import textwrap
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pixelis.core.errors import TraceError
from pixelis.core.geometry import Box, Span, TextSpan, Track
from pixelis.tools.results import Blob, ToolCall, ToolResult
from pixelis.trace import TokenRecord
from pixelis.trace.artifacts import artifact_folder, artifact_path
from pixelis.trace.codec import append, check_target, decode, encode, read, write
from pixelis.trace.schema import StepDraft, seal_trace, verify

WHEN = datetime(2026, 1, 1, tzinfo=UTC)


def one_step(text="a", blob=None):
    artifacts = (blob.artifact(),) if blob else ()
    step = StepDraft(
        call=ToolCall(tool="OCR"), result=ToolResult(tool="OCR", status="ok", text=text, artifacts=artifacts)
    )
    return seal_trace(query=text, media=[], origin="plan", created_at=WHEN, steps=[step], pixelis="0.1.0")


def test_what_is_written_is_read_back(recording, tmp_path):
    path = tmp_path / "a" / "trace.jsonl"
    write([recording.trace], path, recording.blobs)
    append(recording.trace, path, {})  # its artifacts lie there already
    assert list(read(path)) == [recording.trace, recording.trace]
    (_, artifact), *_ = recording.trace.artifacts
    stored = artifact_path(path, artifact)
    assert stored == tmp_path / "a" / "trace.artifacts" / artifact.sha256[:2] / f"{artifact.sha256}.png"
    assert stored.read_bytes() == recording.blobs[artifact.sha256]
    assert [p.name for p in path.parent.iterdir() if p.name.startswith(".")] == []


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
units = st.floats(0, 1, allow_nan=False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
footprints = st.one_of(
    st.builds(Box, x0=st.floats(0, 0.4), y0=st.floats(0, 0.4), x1=st.floats(0.5, 1), y1=st.floats(0.5, 1), label=texts),
    st.builds(TextSpan, text=texts, quad=st.tuples(*[st.tuples(units, units)] * 4), score=units),
    st.builds(Span, start_s=st.floats(0, 1e6), end_s=st.floats(1e6, 1e9)),
    st.builds(Track, track_id=st.integers(0, 9), frames=st.just((1, 5)), boxes=st.just(((0, 0, 0.5, 0.5),) * 2)),
)
ledgers = st.lists(st.tuples(st.integers(0, 9), st.floats(-50, 0)), max_size=4).map(
    lambda rows: TokenRecord(
        ids=tuple(i for i, _ in rows), logprobs=tuple(p for _, p in rows), kinds=("thought",) * len(rows)
    )
)
drafts = st.builds(
    StepDraft,
    thought=texts,
    call=st.builds(ToolCall, tool=texts, args=st.dictionaries(texts, json_values, max_size=3)),
    result=st.builds(
        ToolResult,
        tool=texts,
        status=st.sampled_from(["ok", "failed", "invalid", "timeout"]),
        text=texts,
        output=st.dictionaries(texts, json_values, max_size=3),
        footprints=st.lists(footprints, max_size=3).map(tuple),
        confidence=st.none() | units,
        seconds=st.floats(0, 1e6),
    ),
    tokens=st.none() | ledgers,
)


@settings(max_examples=120, suppress_health_check=[HealthCheck.too_slow])
@given(steps=st.lists(drafts, max_size=3), query=texts, answer=st.none() | texts)
def test_any_trace_survives_its_line(steps, query, answer):
    trace = seal_trace(
        query=query, media=[], origin="policy:nano", created_at=WHEN, steps=steps, answer=answer, pixelis="0.1.0"
    )
    line = encode(trace)
    again = decode(line)
    assert again == trace
    assert encode(again) == line
    assert line.count(b"\n") == 1
    verify(again)


def test_every_flipped_byte_of_a_line_is_found(recording):
    line = encode(recording.trace)
    for place in range(0, len(line) - 1, 3):
        for bit in (1, 4):
            changed = bytearray(line)
            changed[place] ^= bit
            with pytest.raises(TraceError):
                decode(bytes(changed))


@pytest.mark.parametrize("change", [(b":", b": "), (b'{"answer"', b'{ "answer"'), (b"0.97", b"0.970"), (b"\n", b" \n")])
def test_another_spelling_of_the_same_json_is_found(recording, change):
    with pytest.raises(TraceError):
        decode(encode(recording.trace).replace(*change, 1))


def test_a_key_that_stands_twice_is_found(recording):
    line = encode(recording.trace)
    with pytest.raises(TraceError, match="twice"):
        decode(b'{"answer":"No.",' + line[1:])


def test_the_line_of_the_broken_trace_and_the_step_are_named(recording, tmp_path):
    path = tmp_path / "t.jsonl"
    write([recording.trace, recording.trace], path, recording.blobs)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1].replace(b'"text":"EXIT"', b'"text":"EXIX"', 1))
    traces = read(path)
    next(traces)
    with pytest.raises(TraceError, match=r"t\.jsonl:2: chain broken at step 3"):
        next(traces)


def test_a_trace_from_the_future_says_to_update(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"answer":null,"version":3}\n')
    with pytest.raises(TraceError, match=r"t\.jsonl:1: trace version 3, this build reads up to 1; update pixelis"):
        list(read(path))


@pytest.mark.parametrize(
    "line",
    [b"[]", b"null", b"{}", b'{"version":true}', b'{"version":0}', b'{"version":1}', b'{"version":1,"steps":[1]}',
     b"\xff\xfe", b"NaN", b'{"version":1,"steps":[{"seconds":NaN}]}', b"[" * 100_000, b"photograph"],
)  # fmt: skip
def test_a_line_that_is_no_trace_gets_one_sentence(tmp_path, line):
    path = tmp_path / "t.jsonl"
    path.write_bytes(line + b"\n")
    with pytest.raises(TraceError, match=r"t\.jsonl:1: "):
        list(read(path))


def test_a_missing_file_or_a_folder_gets_one_sentence(tmp_path):
    with pytest.raises(TraceError, match="cannot be read"):
        list(read(tmp_path / "none.jsonl"))
    with pytest.raises(TraceError, match="cannot be read"):
        list(read(tmp_path))


def test_a_changed_byte_of_an_artifact_names_the_step(recording, tmp_path):
    path = tmp_path / "t.jsonl"
    write([recording.trace], path, recording.blobs)
    (_, artifact), *_ = recording.trace.artifacts
    file = artifact_path(path, artifact)
    content = bytearray(file.read_bytes())
    content[30] ^= 1
    file.write_bytes(content)
    with pytest.raises(TraceError, match=r"t\.jsonl:1: step 2 \(ZOOM\): artifact view.png was changed"):
        list(read(path))
    append(recording.trace, path, recording.blobs)  # mends it: the content decides the name
    assert len(list(read(path))) == 2


def test_a_missing_artifact_names_the_step(recording, tmp_path):
    path = tmp_path / "t.jsonl"
    write([recording.trace], path, recording.blobs)
    (_, artifact), *_ = recording.trace.artifacts
    artifact_path(path, artifact).unlink()
    with pytest.raises(TraceError, match=r"step 2 \(ZOOM\): artifact view.png is missing"):
        list(read(path))
    assert list(read(path, check_artifacts=False)) == [recording.trace]


def test_a_pipe_in_the_place_of_an_artifact_keeps_nobody_waiting(recording, tmp_path):
    path = tmp_path / "t.jsonl"
    append(recording.trace, path, recording.blobs)
    ((_, artifact),) = recording.trace.artifacts
    artifact_path(path, artifact).unlink()
    os.mkfifo(artifact_path(path, artifact))
    with pytest.raises(TraceError, match=r"artifact view.png is not a plain file"):
        list(read(path))


def test_arguments_nested_without_end_are_refused(recording):
    deep = json.loads("[" * 200 + "]" * 200)
    step = StepDraft(call=ToolCall(tool="OCR", args={"box": deep}), result=ToolResult.failed("OCR", "no"))
    with pytest.raises(TraceError, match="levels deep"):
        seal_trace(query="", media=(), origin="plan", created_at=WHEN, steps=[step], pixelis="0.1.0")
    record = json.loads(encode(recording.trace))
    record["steps"][0]["call"]["args"] = deep
    with pytest.raises(TraceError, match="levels deep"):
        decode(json.dumps(record).encode())


def test_artifacts_that_were_not_handed_over_or_are_others_are_refused(tmp_path):
    blob = Blob("view.png", "image/png", b"pixels")
    trace = one_step(blob=blob)
    path = tmp_path / "t.jsonl"
    for blobs in ({}, {blob.artifact().sha256: b"other pixels"}):
        for put in (lambda b: append(trace, path, b), lambda b: write([trace], path, b)):
            with pytest.raises(TraceError, match="step 1"):
                put(blobs)
            assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "a" * 63, "A" * 64, ""])
def test_an_artifact_cannot_name_a_file_elsewhere(tmp_path, name):
    artifact = Blob("x", "image/png", b"x").artifact().model_copy(update={"sha256": name})
    with pytest.raises(TraceError, match="not a SHA-256"):
        artifact_path(tmp_path / "t.jsonl", artifact)


def test_a_line_that_a_crash_cut_off_is_reported_and_taken_away_by_the_next_append(tmp_path):
    path = tmp_path / "t.jsonl"
    first, second = one_step("first"), one_step("second")
    append(first, path, {})
    with path.open("ab") as file:
        file.write(encode(second)[:-200])
    with pytest.raises(TraceError, match=r"t\.jsonl:2: .*truncated, and the next append removes it"):
        list(read(path))
    append(second, path, {})
    assert list(read(path)) == [first, second]


def test_a_whole_trace_that_lacks_only_its_newline_is_kept(tmp_path):
    path = tmp_path / "t.jsonl"
    first, second = one_step("first"), one_step("second")
    path.write_bytes(encode(first).rstrip(b"\n"))
    assert list(read(path)) == [first]
    append(second, path, {})
    assert list(read(path)) == [first, second]


@pytest.mark.parametrize("content", [b"my notes\n", b"my notes", b"\x89PNG\r\n"])
def test_a_file_that_is_no_trace_file_is_left_alone(tmp_path, content):
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    for act in (
        lambda: append(one_step(), path, {}),
        lambda: write([one_step()], path, {}),
        lambda: check_target(path),
    ):
        with pytest.raises(TraceError, match="not a trace file"):
            act()
    assert path.read_bytes() == content
    with pytest.raises(TraceError, match="not a file"):
        append(one_step(), tmp_path, {})


FULL_DISK = """
    import resource, sys
    from pathlib import Path
    from pixelis.core.errors import TraceError
    from pixelis.trace import codec
    path, line = Path(sys.argv[1]), Path(sys.argv[2]).read_bytes()
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
    try:
        (codec.append if sys.argv[4] == "append" else lambda t, p, b: codec.write([t], p, b))(
            codec.decode(line), path, {h: bytes.fromhex(b) for h, b in [sys.argv[5].split("=")]})
    except TraceError as error:
        print(error)
        sys.exit(3)
"""


@pytest.mark.parametrize("how", ["append", "write"])
@pytest.mark.parametrize("fails", ["line", "artifact"])
def test_a_full_disk_leaves_the_file_as_it_was(tmp_path, how, fails):
    blob = Blob("view.bin", "application/octet-stream", b"p" * (100 if fails == "line" else 6000))
    first, second = one_step("first"), one_step("second " * 50, blob)
    path = tmp_path / "out" / "t.jsonl"
    append(first, path, {})
    before = path.read_bytes()
    line = tmp_path / "line"
    line.write_bytes(encode(second))
    room = len(before) + 300 if how == "append" else 500  # part of the line fits, the whole does not
    room = room if fails == "line" else 5000
    handed_over = f"{blob.artifact().sha256}={blob.content.hex()}"
    command = [sys.executable, "-c", textwrap.dedent(FULL_DISK), path, line, str(room), how, handed_over]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    assert "could not be written" in done.stdout
    assert done.stdout.count("\n") == 1
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_new_file_on_a_full_disk_is_not_left_behind(tmp_path):
    line = tmp_path / "line"
    line.write_bytes(encode(one_step("text " * 100)))
    path = tmp_path / "out" / "t.jsonl"
    command = [sys.executable, "-c", textwrap.dedent(FULL_DISK), path, line, "300", "append", "00=00"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 3
    assert list(path.parent.iterdir()) == []


def test_a_folder_that_cannot_be_written_gets_one_sentence(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("x")
    with pytest.raises(TraceError, match="could not be written"):
        append(one_step(), blocked / "t.jsonl", {})


def _append_many(path: str, name: str) -> None:
    blob = Blob("v", "image/png", b"shared pixels")
    for i in range(20):
        append(one_step(f"{name} {i}", blob), path, {blob.artifact().sha256: blob.content})


def test_several_processes_may_append_to_one_file(tmp_path):
    path = tmp_path / "t.jsonl"
    context = multiprocessing.get_context("fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn")
    writers = [context.Process(target=_append_many, args=(str(path), name)) for name in "abc"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [w.exitcode for w in writers] == [0, 0, 0]
    assert sorted(t.query for t in read(path)) == sorted(f"{name} {i}" for name in "abc" for i in range(20))
    assert len([f for f in artifact_folder(path).rglob("*") if f.is_file()]) == 1


def test_a_failed_append_takes_back_the_artifacts_it_wrote(tmp_path, monkeypatch):
    from pixelis.trace import codec

    def full(descriptor, line):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(codec, "write_at_end", full)
    blob = Blob("v", "image/png", b"pixels")
    with pytest.raises(TraceError, match="No space left"):
        append(one_step("x", blob), tmp_path / "t.jsonl", {blob.artifact().sha256: blob.content})
    assert list(tmp_path.iterdir()) == []


def test_a_line_that_is_too_long_is_refused_unread(tmp_path, monkeypatch):
    from pixelis.trace import codec

    path = tmp_path / "t.jsonl"
    append(one_step("a" * 3000), path, {})
    monkeypatch.setattr(codec, "MAX_LINE_BYTES", 1000)
    with pytest.raises(TraceError, match="over 1000 bytes"):
        list(read(path))
    with pytest.raises(TraceError, match="at most 1000"):
        append(one_step("b" * 3000), path, {})


def test_lines_are_json_that_any_program_reads(recording, tmp_path):
    path = tmp_path / "t.jsonl"
    write([recording.trace], path, recording.blobs)
    (line,) = Path(path).read_text().splitlines()
    assert json.loads(line)["steps"][2]["result"]["footprints"][0]["text"] == "EXIT"
