"""Media: real files in every format, made here with Pillow and PyAV, and the ways in which files are bad."""

import hashlib
import io
import os
import struct
import zlib
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image as Pil

from pixelis.core.errors import MediaError
from pixelis.core.geometry import Size
from pixelis.media import Clip, Image, MediaLimits, open_media

CORNERS = np.array([[[255, 0, 0], [0, 255, 0]], [[0, 0, 255], [255, 255, 255]]], dtype=np.uint8)
"""Red and green above, blue and white below."""
PICTURE = np.kron(CORNERS, np.ones((16, 24, 1), dtype=np.uint8))  # (32, 48, 3)


def save(path: Path, picture: Pil.Image | None = None, **options) -> Path:
    (picture or Pil.fromarray(PICTURE)).save(path, **options)
    return path


def video(path: Path, *, times: list[int], codec: str = "mpeg4", rate: int = 10) -> Path:
    """A clip whose frame i is grey 20 * i, at the given times in units of 1 / (10 * rate) s."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.time_base = stream.codec_context.time_base = Fraction(1, 10 * rate)
        for i, pts in enumerate(times):
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), 20 * i % 256, dtype=np.uint8), format="rgb24")
            frame.pts, frame.time_base = pts, stream.codec_context.time_base
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


@pytest.mark.parametrize("suffix", ["png", "bmp", "tiff", "gif"])
def test_a_lossless_picture_keeps_every_pixel(tmp_path, suffix):
    assert (open_media(save(tmp_path / f"a.{suffix}")).frame(0) == PICTURE).all()


@pytest.mark.parametrize("suffix", ["jpg", "webp"])
def test_a_lossy_picture_keeps_its_corners(tmp_path, suffix):
    frame = open_media(save(tmp_path / f"a.{suffix}", quality=95)).frame(0).astype(int)
    assert np.abs(frame[2:14:5, 2:20:6] - [255, 0, 0]).max() < 30
    assert np.abs(frame[20:30:5, 28:46:6] - 255).max() < 30


def test_the_identity_of_a_file_is_the_sha256_of_its_bytes(tmp_path):
    path = save(tmp_path / "a.png")
    assert open_media(path).sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_exif_orientation_six_is_turned_upright(tmp_path):
    exif = Pil.Exif()
    exif[0x0112] = 6  # the camera was turned: show rotated by 90 degrees clockwise
    image = open_media(save(tmp_path / "a.png", exif=exif))
    assert image.size == Size(32, 48)
    assert image.frame(0)[0, 0].tolist() == [0, 0, 255]  # bottom left becomes top left


def test_black_on_nothing_lies_on_white_and_white_on_nothing_on_black(tmp_path):
    for value, ground in ((0, 255), (255, 0)):
        rgba = np.zeros((8, 8, 4), dtype=np.uint8)
        rgba[2:4, 2:4] = [value, value, value, 255]
        frame = open_media(save(tmp_path / f"{value}.png", Pil.fromarray(rgba))).frame(0)
        assert frame[0, 0].tolist() == [ground] * 3
        assert frame[2, 2].tolist() == [value] * 3


def test_sixteen_bits_become_eight_by_their_full_range(tmp_path):
    deep = np.array([[0, 32896, 65535]], dtype=np.uint16)
    assert open_media(save(tmp_path / "a.png", Pil.fromarray(deep))).frame(0)[0, :, 0].tolist() == [0, 128, 255]


def test_palette_and_cmyk_become_rgb(tmp_path):
    palette = Pil.fromarray(PICTURE).quantize(4)
    assert (open_media(save(tmp_path / "p.png", palette)).frame(0) == PICTURE).all()
    ink = Pil.new("CMYK", (4, 4), (0, 255, 255, 0))  # no cyan: red
    assert open_media(save(tmp_path / "c.tiff", ink)).frame(0)[0, 0].tolist() == [255, 0, 0]


def test_pixels_cannot_be_written_into(tmp_path):
    with pytest.raises(ValueError, match="read-only"):
        open_media(save(tmp_path / "a.png")).frame(0)[0, 0, 0] = 1


def test_the_bytes_decide_what_a_file_is_and_not_its_name(tmp_path):
    path = save(tmp_path / "a.png").rename(tmp_path / "a.mp4")
    assert open_media(path).kind == "image"


@pytest.mark.parametrize("suffix", ["mp4", "webm", "avi", "mov"])
def test_a_clip_of_ten_frames_a_second(tmp_path, suffix):
    codec = "libvpx" if suffix == "webm" else "mpeg4"
    clip = open_media(video(tmp_path / f"a.{suffix}", times=[10 * i for i in range(12)], codec=codec))
    assert (clip.kind, clip.frame_count, clip.size) == ("clip", 12, Size(64, 48))
    assert clip.duration_s == pytest.approx(1.2, abs=0.01)
    assert clip.index_at(0.55) == 5
    for index in (11, 3, 7, 0):  # in any order
        assert abs(int(clip.frame(index).mean()) - 20 * index) < 6


def test_a_variable_frame_rate_is_what_the_file_says(tmp_path):
    clip = open_media(video(tmp_path / "a.mp4", times=[0, 10, 50, 60, 100]))  # 0, .1, .5, .6, 1.0 s
    assert [round(clip.time_of(i), 3) for i in range(5)] == [0.0, 0.1, 0.5, 0.6, 1.0]
    assert [clip.index_at(t) for t in (0.0, 0.3, 0.5, 0.99)] == [0, 1, 2, 3]


@pytest.mark.parametrize("codec", ["mpeg4", "libx264"])
def test_an_avi_with_b_frames_gives_the_same_frame_in_any_order(tmp_path, codec):
    path = tmp_path / "a.avi"
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.codec_context.max_b_frames = 2
        for i in range(120):
            frame = np.full((48, 64, 3), 40, dtype=np.uint8)
            frame[:, i % 60 : i % 60 + 4] = 255
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode(None))
    with av.open(str(path)) as container:
        straight = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    clip = open_media(path)
    assert clip.frame_count == len(straight) == 120
    for index in (119, 5, 20, 0, 61, 62, 118):
        assert (clip.frame(index) == straight[index]).all(), index


def test_an_animated_gif_gives_the_same_frame_in_any_order(tmp_path):
    frames = [Pil.fromarray(np.roll(PICTURE, 2 * i, axis=1)) for i in range(12)]
    path = save(tmp_path / "a.gif", frames[0], save_all=True, append_images=frames[1:], duration=100)
    forward, backward = open_media(path), open_media(path)
    there = [forward.frame(i).tobytes() for i in range(12)]
    assert [backward.frame(i).tobytes() for i in reversed(range(12))] == there[::-1]
    assert len(set(there)) == 12


def test_the_frames_of_an_animation_are_counted_before_they_are_decoded(tmp_path):
    frames = [Pil.new("RGB", (100, 100), (20 * i, 0, 0)) for i in range(10)]
    path = save(tmp_path / "a.gif", frames[0], save_all=True, append_images=frames[1:])
    with pytest.raises(MediaError, match="10 frames of 100x100 pixels; at most 90000"):
        open_media(path, limits=MediaLimits(animation_pixels=90_000))


def test_an_animated_gif_is_a_clip_with_its_own_times(tmp_path):
    frames = [Pil.new("RGB", (8, 8), (60 * i, 0, 0)) for i in range(3)]
    clip = open_media(
        save(tmp_path / "a.gif", frames[0], save_all=True, append_images=frames[1:], duration=[100, 300, 100])
    )
    assert (clip.kind, clip.frame_count) == ("clip", 3)
    assert clip.index_at(0.35) == 1
    assert clip.frame(2)[0, 0, 0] == 120


def test_a_folder_of_frames_goes_by_number_and_not_by_letter(tmp_path):
    for number in (10, 2, 1):
        save(tmp_path / f"f_{number}.png", Pil.new("L", (8, 8), number))
    clip = open_media(tmp_path, fps=2.0)
    assert [int(clip.frame(i)[0, 0, 0]) for i in range(3)] == [1, 2, 10]
    assert clip.duration_s == 1.5


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("nowhere.png")])
def test_what_is_no_plain_file_in_a_folder_of_frames_is_named(tmp_path, make):
    save(tmp_path / "1.png", Pil.new("L", (8, 8)))
    make(tmp_path / "2.png")
    with pytest.raises(MediaError, match=r"2\.png .* is not a plain file"):
        open_media(tmp_path)


def test_the_bytes_of_a_folder_are_limited(tmp_path):
    save(tmp_path / "1.png", Pil.new("L", (8, 8)))
    with pytest.raises(MediaError, match="10 of one"):
        open_media(tmp_path, limits=MediaLimits(image_bytes=10))


def test_a_folder_of_two_sizes_says_which_frame_differs(tmp_path):
    save(tmp_path / "1.png", Pil.new("L", (8, 8)))
    save(tmp_path / "2.png", Pil.new("L", (9, 8)))
    with pytest.raises(MediaError, match=r"2\.png has 9x8"):
        open_media(tmp_path).frame(1)


def test_a_frame_beyond_the_end_and_a_time_beyond_the_end(tmp_path):
    clip = open_media(video(tmp_path / "a.mp4", times=[0, 10, 20]))
    with pytest.raises(MediaError, match="frame 3 does not exist"):
        clip.frame(3)
    with pytest.raises(MediaError, match="outside"):
        clip.index_at(9.0)


def test_a_clip_that_changes_after_it_was_opened_is_not_decoded_further(tmp_path):
    path = video(tmp_path / "a.mp4", times=[10 * i for i in range(60)])
    clip = open_media(path)
    clip.frame(0)
    os.utime(path, ns=(1, 1))
    with pytest.raises(MediaError, match="changed after it was opened"):
        clip.frame(50)


def png_of(width: int, height: int) -> bytes:
    """A PNG header that promises a size, with next to no data."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" * 64)) + chunk(b"IEND", b"")


def test_a_bomb_of_30000_by_30000_is_refused_from_its_header(tmp_path):
    (tmp_path / "bomb.png").write_bytes(png_of(30_000, 30_000))
    with pytest.raises(MediaError, match=r"(too large|at most)"):
        open_media(tmp_path / "bomb.png")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("empty.png", b""),
        ("text.jpg", b"this is not a picture\n" * 40),
        ("zero.png", png_of(0, 5)),
        ("no_frames.gif", b"GIF89a\x08\x00\x08\x00\x00\x00\x00;"),
        ("cut.mp4", b"\0\0\0\x18ftypisom\0\0\0\0isom"),
        ("cut.webm", b"\x1a\x45\xdf\xa3\x01\x00"),
        ("playlist.mp4", b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n"),
    ],
)
def test_what_is_not_a_medium_gets_one_clear_line(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(MediaError) as caught:
        open_media(tmp_path / name)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_truncated_picture_and_a_truncated_clip(tmp_path):
    noise = np.random.default_rng(0).integers(0, 255, (200, 200, 3), dtype=np.uint8)
    path = save(tmp_path / "a.png", Pil.fromarray(noise))
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(MediaError, match="truncated or corrupt"):
        open_media(path)
    whole = video(tmp_path / "a.avi", times=[10 * i for i in range(40)])
    whole.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    try:
        clip = open_media(whole)
    except MediaError:
        return
    with pytest.raises(MediaError):
        [clip.frame(index) for index in range(40)]


@pytest.mark.parametrize("path", ["/no/such/file.png", "bad\0name.png", "/dev/null"])
def test_a_path_that_cannot_be_opened(path):
    with pytest.raises(MediaError):
        open_media(path)


@pytest.mark.parametrize(
    "address", ["https://example.org/a.png", Path("https://example.org/a.png"), "data:image/png;base64,"]
)
def test_a_web_address_gets_a_sentence_that_says_what_to_do(address):
    with pytest.raises(MediaError, match="is a web address: download the file and give its path"):
        open_media(address)


def test_a_pdf_and_a_folder_of_videos_get_a_sentence_that_says_what_to_do(tmp_path):
    (tmp_path / "paper.pdf").write_bytes(b"%PDF-1.7\n...")
    with pytest.raises(
        MediaError, match=r"is a PDF: make a picture of each page \(`pdftoppm -r 150 -png paper.pdf page`"
    ):
        open_media(tmp_path / "paper.pdf")
    (tmp_path / "b.MP4").write_bytes(b"...")
    with pytest.raises(MediaError, match=r"holds videos, no pictures: give one of them, such as .*b\.MP4"):
        open_media(tmp_path)


def test_limits_hold_for_clips(tmp_path):
    path = video(tmp_path / "a.mp4", times=[10 * i for i in range(12)])
    with pytest.raises(MediaError, match="over 5 frames"):
        open_media(path, limits=MediaLimits(clip_frames=5))
    with pytest.raises(MediaError, match="over 100 pixels"):
        open_media(path, limits=MediaLimits(frame_pixels=100))


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_change_of_bytes_raises_anything_but_a_media_error(tmp_path, data):
    buffer = io.BytesIO()
    kind = data.draw(st.sampled_from(["PNG", "GIF", "JPEG", "BMP", "TIFF", "WEBP"]))
    Pil.fromarray(PICTURE).save(buffer, format=kind)
    content = bytearray(buffer.getvalue())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "fuzzed"
    path.write_bytes(bytes(content[: data.draw(st.integers(1, len(content)))]))
    try:
        medium = open_media(path, limits=MediaLimits(image_pixels=1_000_000))
        medium.frame(medium.frame_count - 1)
    except MediaError:
        pass


def test_a_clip_from_frames_in_memory_has_an_identity_of_its_own():
    frames = [PICTURE, PICTURE[::-1]]
    clip = Clip.from_frames(frames, fps=2.0)
    assert clip.duration_s == 1.0
    assert clip.sha256 != Clip.from_frames(frames, fps=4.0).sha256
    with pytest.raises(MediaError, match="one size"):
        Clip.from_frames([PICTURE, PICTURE[:8]], fps=2.0)


def test_an_array_that_is_not_rgb_is_refused():
    with pytest.raises(MediaError, match="uint8"):
        Image.from_array(np.zeros((4, 4), dtype=np.uint8))


def test_the_same_clip_gives_the_same_frames_whatever_the_order(realdata):
    path = realdata / "video" / "sam2_01_dog.mp4"
    forward, backward = open_media(path), open_media(path)
    wanted = [0, 60, 120, 240, 288]
    assert [hashlib.sha256(forward.frame(i)).hexdigest() for i in wanted] == [
        hashlib.sha256(backward.frame(i)).hexdigest() for i in reversed(wanted)
    ][::-1]
