"""TensorBoard event files, written by hand: a few bytes of protobuf in framed records save a dependency of 50 MB."""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping
from pathlib import Path

_POLYNOMIAL = 0x82F63B78  # CRC-32C, reflected
_TABLE = []
for _byte in range(256):
    for _ in range(8):
        _byte = (_byte >> 1) ^ (_POLYNOMIAL if _byte & 1 else 0)
    _TABLE.append(_byte)


def crc32c(content: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in content:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def masked_crc(content: bytes) -> bytes:
    """The checksum as TFRecord stores it, rotated so that a checksum of checksums is not constant."""
    crc = crc32c(content)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def frame_record(content: bytes) -> bytes:
    length = struct.pack("<Q", len(content))
    return length + masked_crc(length) + content + masked_crc(content)


def encode_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def encode_bytes_field(field: int, content: bytes) -> bytes:
    """A length-delimited field: text or a nested message."""
    return encode_varint(field << 3 | 2) + encode_varint(len(content)) + content


def encode_event(wall: float, step: int, values: Mapping[str, float]) -> bytes:
    """`Event{wall_time = 1, step = 2, summary = 5 {value = 1 {tag = 1, simple_value = 2}}}`"""
    summary = b""
    for tag, value in values.items():
        number = encode_varint(2 << 3 | 5) + struct.pack("<f", value)
        summary += encode_bytes_field(1, encode_bytes_field(1, tag.encode()) + number)
    wall_time = encode_varint(1 << 3 | 1) + struct.pack("<d", wall)
    return wall_time + encode_varint(2 << 3) + encode_varint(step & 2**64 - 1) + encode_bytes_field(5, summary)


class TensorBoardLogger:
    """One event file of a run. A resumed run begins another one; TensorBoard shows them as one curve."""

    def __init__(self, folder: Path, *, first_step: int = 0) -> None:
        now = time.time()
        self._file = (folder / f"events.out.tfevents.{int(now)}.{first_step:08d}.pixelis").open("ab")
        head = encode_varint(1 << 3 | 1) + struct.pack("<d", now) + encode_bytes_field(3, b"brain.Event:2")
        self._file.write(frame_record(head))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._file.write(frame_record(encode_event(time.time(), step, values)))
        self._file.flush()

    def close(self) -> None:
        self._file.close()
