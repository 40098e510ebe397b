"""The toolbox over real processes: deadlines, crashes, memory, the cache, names, and what arguments may be."""

import math
import os
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pixelis.core.errors import ConfigError
from pixelis.media import Clip, Image, MediaSet, open_media
from pixelis.tools.results import ToolCall, ToolResult
from pixelis.tools.toolbox import Toolbox, ToolboxConfig
from pixelis.tools.worker import Spool

HERE = Path(__file__).parent
DEMO = HERE.parents[1] / "src" / "pixelis" / "demo"
PLUGINS = tuple(f"misbehaving:{name}" for name in ("Quiet", "Hanging", "Crashing", "Raising", "Greedy"))
NOISE = np.random.default_rng(5).integers(0, 255, (60, 80, 3), dtype=np.uint8)
PICTURE = MediaSet((Image.from_array(NOISE),))


@pytest.fixture
def toolbox(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(HERE))
    config = ToolboxConfig(
        plugins=PLUGINS, seg="classical", cache_path=tmp_path / "cache.sqlite", deadline_s=20.0, memory_bytes=6 * 2**30
    )
    with Toolbox(config) as box:
        yield box


@pytest.fixture(scope="module")
def in_process(tmp_path_factory):
    """Without a process of its own and without a cache: the tools as they are, for many small calls."""
    with Toolbox(ToolboxConfig(seg="classical", isolate=False, cache=False)) as box:
        yield box


def run(toolbox: Toolbox, tool: str, where: MediaSet = PICTURE, /, **args) -> ToolResult:
    return toolbox.run(ToolCall(tool=tool, args=args), where).result


def test_a_tool_runs_in_another_process_which_is_kept(toolbox):
    first, second = run(toolbox, "QUIET"), toolbox.run(ToolCall(tool="QUIET", args={"media": "Image_0"}), PICTURE)
    assert first.ok
    assert int(first.text) != os.getpid()
    assert second.cached or second.result.text == first.text


def test_a_hanging_tool_is_stopped_at_its_deadline_and_the_next_call_works(toolbox, tmp_path):
    toolbox.config = toolbox.config.model_copy(update={"deadline_s": 3.0})
    result = run(toolbox, "HANG")
    assert result.status == "timeout"
    assert "3 s" in result.error
    assert run(toolbox, "ZOOM", box=[0, 0, 0.5, 0.5]).ok


def test_a_timeout_is_never_kept(toolbox):
    toolbox.config = toolbox.config.model_copy(update={"deadline_s": 2.0})
    run(toolbox, "HANG")
    assert toolbox.cache.info().entries == 0


def test_a_crash_of_native_code_is_a_result_that_names_the_signal(toolbox):
    result = run(toolbox, "CRASH")
    assert result.status == "crashed"
    assert "signal 11" in result.error
    assert run(toolbox, "QUIET").ok


def test_the_memory_ceiling_holds(toolbox):
    assert run(toolbox, "GREEDY", gigabytes=0.1).ok
    result = run(toolbox, "GREEDY", gigabytes=60.0)
    assert not result.ok
    assert "memory" in result.error
    assert toolbox.cache.info().entries == 1  # the call that fitted; with more memory the other would too


def test_a_backend_that_raises_is_a_failed_result_with_its_words(toolbox):
    result = run(toolbox, "RAISE")
    assert result.status == "failed"
    assert "ZeroDivisionError" in result.error
    assert result.error.endswith(": one by nothing")


def test_an_unknown_tool_and_an_unknown_medium_name_what_there_is(toolbox):
    assert "SEG, ZOOM, TRK, OCR, TEMP, PROP" in run(toolbox, "FETCH").error
    assert run(toolbox, "FETCH").status == "invalid"
    assert "this query has Image_0" in run(toolbox, "OCR", media="Image_7").error


def test_a_disabled_tool_gives_a_typed_empty_result():
    with Toolbox(ToolboxConfig(disabled=("READ",), isolate=False, cache=False)) as box:
        result = run(box, "OCR", box="nonsense")
    assert (result.tool, result.status, result.footprints, result.error) == ("OCR", "disabled", (), "")


def test_disabling_what_does_not_exist_is_an_error():
    with pytest.raises(ConfigError, match="FETCH"):
        Toolbox(ToolboxConfig(disabled=("FETCH",)))


@pytest.mark.parametrize("plugin", ["nowhere:Nothing", "math:pi", "misbehaving:Missing", "justaname"])
def test_a_plugin_that_is_no_tool_is_refused(plugin):
    with pytest.raises(ConfigError, match="plugin"):
        Toolbox(ToolboxConfig(plugins=(plugin,)))


def test_the_aliases_of_the_paper_are_understood(in_process):
    assert run(in_process, "crop", box=[0, 0, 0.5, 0.5]).tool == "ZOOM"
    assert run(in_process, "READ").tool == "OCR"
    assert run(in_process, "Temporal").tool == "TEMP"


def test_the_same_call_comes_from_the_cache_under_the_name_that_the_query_uses(toolbox):
    other = MediaSet((Image.from_array(NOISE[::-1]), *PICTURE.sources))
    first = toolbox.run(ToolCall(tool="ZOOM", args={"box": [0, 0, 0.5, 0.5]}), PICTURE)
    again = toolbox.run(ToolCall(tool="ZOOM", args={"box": [0, 0, 0.5, 0.5], "media": "image_1"}), other)
    assert not first.cached
    assert again.cached
    assert again.blobs == first.blobs
    assert (first.first_seconds, again.first_seconds) == (None, first.result.seconds)
    assert again.result.footprints[0].media == "Image_1"
    assert again.result.view.media == "Image_1"


def test_a_damaged_cache_file_costs_only_time(tmp_path):
    path = tmp_path / "cache.sqlite"
    path.write_bytes(b"this is not a database" * 400)
    with Toolbox(ToolboxConfig(isolate=False, cache_path=path)) as box, pytest.warns(UserWarning, match="out of use"):
        assert run(box, "ZOOM", scale=2.0).ok


def test_two_processes_give_the_same_bytes_as_none(toolbox, in_process):
    call = ToolCall(tool="SEG", args={"target": [0.5, 0.5]})
    there, here = toolbox.run(call, PICTURE), in_process.run(call, PICTURE)
    same = {"seconds": 0.0}
    assert there.result.model_copy(update=same) == here.result.model_copy(update=same)


def test_a_clip_in_memory_reaches_the_worker(toolbox):
    clip = Clip.from_frames([NOISE, NOISE[::-1].copy()], fps=2.0)
    result = run(toolbox, "ZOOM", MediaSet((clip,)), frame=1, box=[0, 0, 0.5, 1])
    assert result.ok
    assert result.view.frame == 1
    assert result.view.media == "Video_0"
    assert "frames 0 to 1" in run(toolbox, "ZOOM", MediaSet((clip,)), frame=2, scale=2.0).error


def test_a_file_that_changes_between_opening_and_the_call(toolbox, tmp_path):
    from PIL import Image as Pil

    path = tmp_path / "a.png"
    Pil.fromarray(NOISE).save(path)
    media = MediaSet((open_media(path),))
    Pil.fromarray(NOISE[::-1]).save(path)
    result = run(toolbox, "ZOOM", media, scale=2.0)
    assert result.status == "failed"
    assert "changed after it was opened" in result.error
    Pil.fromarray(NOISE).save(path)  # as it was: the failure must not have been kept for this content
    assert run(toolbox, "ZOOM", media, scale=2.0).ok


def test_what_a_tool_itself_could_not_do_is_kept(toolbox):
    call = ToolCall(tool="SEG", args={"target": "wherewithal"})
    assert not toolbox.run(call, PICTURE).cached
    assert toolbox.run(call, PICTURE).cached


def test_a_box_of_less_than_a_millionth_of_the_source_still_has_area(in_process):
    view = run(in_process, "ZOOM", box=[0.5, 0.5, 0.51, 0.51]).view
    result = run(in_process, "PROP", PICTURE.with_view(view), media="View_0", box=[0.5, 0.5, 0.50001, 0.50001])
    assert result.ok, result.error
    assert 0.0 < result.footprints[0].area < 1e-9
    edge = run(in_process, "PROP", PICTURE.with_view(view), media="View_0", box=[0.99999, 0.99999, 1.0, 1.0])
    assert edge.ok, edge.error


def test_a_module_that_lies_among_the_media_is_not_imported(toolbox, tmp_path, monkeypatch):
    (tmp_path / "selectors.py").write_text(f"open({str(tmp_path / 'taken')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    assert run(toolbox, "ZOOM", scale=2.0).ok
    assert not (tmp_path / "taken").exists()


def test_a_worker_that_cannot_start_is_a_result(toolbox, monkeypatch):
    monkeypatch.setattr("sys.executable", "/no/such/python")
    result = run(toolbox, "ZOOM", scale=2.0)
    assert result.status == "crashed"
    assert "No such file" in result.error


def test_media_without_a_file_take_a_bounded_place_on_the_disk():
    spool = Spool(limit_bytes=40_000)
    made = [Image.from_array(np.full((60, 80, 3), value, dtype=np.uint8)) for value in range(6)]  # 14.4 kB each
    with spool.references((made[0],)) as (first,):
        for image in made[1:]:
            with spool.references((image,)) as (reference,):
                assert Path(reference["pixels"]).exists()
        assert Path(first["pixels"]).exists()  # in use, however old
        folder = Path(first["pixels"]).parent
        assert len(list(folder.iterdir())) == 2
    spool.close()
    assert not folder.exists()


def test_five_thousand_clips_that_are_forgotten_one_by_one_take_the_place_of_one():
    spool, largest = Spool(), 0
    for number in range(5000):
        frames = np.full((2, 4, 6, 3), number % 251, dtype=np.uint8)
        frames[0, 0, 0] = number // 251
        clip = Clip.from_frames(list(frames), fps=4)
        with spool.references((clip,)) as (reference,):
            file = Path(reference["pixels"])
            spool.release((clip,))
            assert file.exists()  # in use
        spool.release((clip,))
        assert not file.exists()
        if number % 500 == 0:
            largest = max(largest, len(list(file.parent.iterdir())))
    assert largest == 0
    with spool.references((clip,)) as (reference,):
        assert Path(reference["pixels"]).exists()  # written anew, not believed to be there still
    spool.close()
    spool.release((clip,))  # nothing is left to forget


@pytest.mark.parametrize("settings", [{"limits": {"temp_frames": 0}}, {"limits": {"pixels": 3}}, {"deadline_s": 0}])
def test_a_limit_that_is_none_is_refused(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        ToolboxConfig(**settings)


def test_several_threads_share_a_toolbox(toolbox):
    from concurrent.futures import ThreadPoolExecutor

    boxes = [[0.1 * i, 0.0, 0.1 * i + 0.2, 1.0] for i in range(8)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda box: run(toolbox, "ZOOM", box=box), boxes))
    assert [r.footprints[0].x0 for r in results] == pytest.approx([0.1 * i for i in range(8)], abs=0.02)


BAD_ARGUMENTS = [
    {"box": [0.5, 0, 0.1, 1]},
    {"box": [0, 0, 0, 0]},
    {"box": [0, 0, math.nan, 1]},
    {"box": [0, 0, math.inf, 1]},
    {"box": [-1, 0, 1, 1]},
    {"box": [0, 0, 2, 1]},
    {"box": ["0", "0", "1", "1"]},
    {"box": [0, 0, 1]},
    {"box": "everywhere"},
    {"box": [0, 0, 1, 1], "frame": -1},
    {"box": [0, 0, 1, 1], "frame": 1.5},
    {"box": [0, 0, 1, 1], "frame": 0, "time_s": 0.0},
    {"box": [0, 0, 1, 1], "colour": "red"},
    {"box": [0, 0, 1, 1], "media": 3},
    {"box": {"x0": 0}},
    {"scale": 0},
    {"scale": "2"},
    {},
    {"box": {1, 2}},
]


@pytest.mark.parametrize("args", BAD_ARGUMENTS, ids=str)
def test_bad_arguments_are_an_invalid_call_with_one_line(in_process, args):
    result = run(in_process, "ZOOM", **args)
    assert result.status == "invalid"
    assert result.error
    assert "\n" not in result.error


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
NAMES = ["media", "frame", "time_s", "box", "scale", "center", "target", "limit", "query", "start_s", "end_s", "top_k",
         "select_s", "frames", "label", "mask", "start_frame", "end_frame", "attributes", "track", "of"]  # fmt: skip
UNIT = st.floats(0, 1)
LIKELY = {
    "box": st.lists(UNIT, min_size=4, max_size=4),
    "target": st.text(max_size=12) | st.lists(UNIT, min_size=2, max_size=4),
    "center": st.lists(UNIT, min_size=2, max_size=2),
    "scale": st.floats(0.1, 70),
    "frame": st.integers(0, 6),
    "query": st.text(max_size=20),
}


def test_the_name_of_an_unknown_argument_cannot_break_the_line(in_process):
    result = in_process.run(ToolCall(tool="PROP", args={"track": {"a\nb": None}}), PICTURE).result
    assert result.status == "invalid"
    assert "track.a b: there is no such argument" in result.error


@pytest.mark.parametrize("tool", ["SEG", "ZOOM", "TRK", "OCR", "TEMP", "PROP"])
def test_no_arguments_whatever_raise(in_process, tool):
    frames = [np.roll(NOISE, 4 * i, axis=1) for i in range(4)]
    clip = MediaSet((Clip.from_frames(frames, fps=4.0), *PICTURE.sources))

    @settings(max_examples=40)
    @given(st.dictionaries(st.sampled_from(NAMES), JSON, max_size=4), st.fixed_dictionaries({}, optional=LIKELY))
    def nothing_raises(wild, likely):
        result = in_process.run(ToolCall(tool=tool, args={**wild, **likely}), clip).result
        assert result.status in ("ok", "failed", "invalid")
        assert result.ok or (result.error and "\n" not in result.error)
        assert "backend raised" not in result.error, result.error

    nothing_raises()


def test_every_schema_is_in_the_openai_function_format(in_process):
    import jsonschema

    for schema in in_process.schemas():
        assert schema["type"] == "function"
        assert set(schema["function"]) == {"name", "description", "parameters"}
        jsonschema.Draft202012Validator.check_schema(schema["function"]["parameters"])
        assert schema["function"]["parameters"]["additionalProperties"] is False


def test_a_worker_ends_when_its_parent_is_killed(tmp_path):
    import signal
    import subprocess
    import sys

    script = (
        "import sys, numpy as np\n"
        f"sys.path.insert(0, {str(HERE)!r})\n"
        "from pixelis.media import Image, MediaSet\n"
        "from pixelis.tools.results import ToolCall\n"
        "from pixelis.tools.toolbox import Toolbox, ToolboxConfig\n"
        "box = Toolbox(ToolboxConfig(plugins=('misbehaving:Quiet', 'misbehaving:Hanging'), cache=False))\n"
        "media = MediaSet((Image.from_array(np.zeros((8, 8, 3), np.uint8)),))\n"
        "print(box.run(ToolCall(tool='QUIET'), media).result.text, flush=True)\n"
        "box.run(ToolCall(tool='HANG'), media)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    worker = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    for _ in range(100):
        if not Path(f"/proc/{worker}/stat").exists() or Path(f"/proc/{worker}/stat").read_text().split()[2] == "Z":
            return
        time.sleep(0.1)
    pytest.fail("the worker outlived its parent")


def test_the_files_that_a_tool_needs_are_pulled_where_they_are_absent(monkeypatch):
    pulled: list[str] = []
    monkeypatch.setattr("pixelis.weights.pull", pulled.append)
    monkeypatch.setattr("pixelis.weights.is_available", lambda name: name == "ocr-detection")
    with Toolbox(ToolboxConfig(isolate=False, cache=False)) as toolbox:
        for name in ("READ", "ZOOM", "no such tool"):
            toolbox.pull_weights(name)
    assert pulled == ["ocr-recognition"]
