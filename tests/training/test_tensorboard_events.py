"""TensorBoard's files, read back by hand."""

import struct

from pixelis.training.common.tensorboard_events import TensorBoardLogger, crc32c, encode_event, masked_crc


def test_the_checksum_of_nine_digits():
    assert crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C (Castagnoli)


def test_a_record_is_framed_with_the_checksums_of_its_length_and_content(tmp_path):
    events = TensorBoardLogger(tmp_path)
    events.write(7, {"loss": 1.5})
    events.close()
    (path,) = tmp_path.iterdir()
    content, bodies = path.read_bytes(), []
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        assert content[8:12] == masked_crc(content[:8])
        body = content[12 : 12 + length]
        assert content[12 + length : 16 + length] == masked_crc(body)
        bodies.append(body)
        content = content[16 + length :]
    assert b"brain.Event:2" in bodies[0]
    assert bodies[1][9:] == b"\x10\x07" + b"\x2a\x0d\x0a\x0b\x0a\x04loss\x15" + struct.pack("<f", 1.5)


def test_large_steps_take_several_bytes():
    assert b"\x10\xac\x02" in encode_event(0.0, 300, {})
