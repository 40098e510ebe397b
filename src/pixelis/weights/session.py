"""Open ONNX files on the CPU with one thread, so that the same input always gives the same bytes."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnxruntime import InferenceSession


@cache
def open_session(path: Path, *, arena: bool = True) -> InferenceSession:
    """The session of this file, opened once in a process; without an arena, memory is returned after each run."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.use_deterministic_compute = True
    options.enable_cpu_mem_arena = arena
    options.log_severity_level = 3  # errors only: warnings about shapes help nobody
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
