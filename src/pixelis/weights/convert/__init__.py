"""Converters from published weight formats to ONNX, and the bytes of an ONNX file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

OPSET = 17
IR_VERSION = 8

Shape = Sequence[int | str]


def model_bytes(
    name: str,
    nodes: list[Any],
    inputs: Mapping[str, Shape],
    outputs: Mapping[str, Shape],
    initializers: Mapping[str, NDArray[np.generic]],
) -> bytes:
    """An ONNX file of float32 inputs and outputs, by name and shape; the same bytes every time."""
    from onnx import TensorProto, checker, helper, numpy_helper

    def value_infos(shapes: Mapping[str, Shape]) -> list[Any]:
        return [helper.make_tensor_value_info(key, TensorProto.FLOAT, shape) for key, shape in shapes.items()]

    tensors = [numpy_helper.from_array(initializers[key], key) for key in sorted(initializers)]
    graph = helper.make_graph(nodes, name, value_infos(inputs), value_infos(outputs), tensors)
    opsets = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="pixelis")
    checker.check_model(model)
    return bytes(model.SerializeToString(deterministic=True))
