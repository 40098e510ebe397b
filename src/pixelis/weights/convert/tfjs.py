"""Convert a TensorFlow.js graph model to ONNX with NumPy and onnx: the operators that NanoDet uses.

TensorFlow's convolutions expect channels last, ONNX's first. Each is emitted between two transpositions; onnxruntime
removes adjacent pairs. Expressions of constants are folded here.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pixelis.core.errors import WeightsError
from pixelis.weights.convert import model_bytes

CHANNELS_FIRST = [0, 3, 1, 2]
CHANNELS_LAST = [0, 2, 3, 1]

Array = NDArray[Any]


def to_onnx(graph: Path, values: Path) -> bytes:
    """The ONNX file of a graph model (`model.json`) and its one shard of values; the same bytes every time."""
    model = json.loads(graph.read_text(encoding="utf-8"))
    constants = read_constants(model["weightsManifest"], values.read_bytes())
    builder = _Builder(constants)
    for node in model["modelTopology"]["node"]:
        builder.add(node)
    return builder.finish(model["signature"])


def read_constants(manifest: list[dict[str, Any]], shard: bytes) -> dict[str, Array]:
    """The constants by name; float16 ones are converted to float32, exactly."""
    constants: dict[str, Array] = {}
    offset = 0
    for entry in (entry for group in manifest for entry in group["weights"]):
        stored_dtype = np.dtype(entry.get("quantization", entry)["dtype"]).newbyteorder("<")
        count = int(np.prod(entry["shape"], dtype=np.int64))
        if offset + count * stored_dtype.itemsize > len(shard):
            raise WeightsError(f"tfjs values end before {entry['name']}: {len(shard)} bytes")
        array = np.frombuffer(shard, stored_dtype, count, offset).reshape(entry["shape"])
        constants[entry["name"]] = array.astype(entry["dtype"])
        offset += count * stored_dtype.itemsize
    if offset != len(shard):
        raise WeightsError(f"tfjs values hold {len(shard)} bytes, the manifest describes {offset}")
    return constants


class _Node(NamedTuple):
    op: str
    name: str
    inputs: list[str]
    attributes: dict[str, Any]

    @classmethod
    def from_entry(cls, node: dict[str, Any]) -> _Node:
        inputs = [name.removesuffix(":0") for name in node.get("input", [])]
        return cls(node["op"], node["name"], inputs, node.get("attr", {}))

    def integers(self, name: str) -> list[int]:
        return [int(i) for i in self.attributes[name]["list"]["i"]]

    def window(self, name: str) -> list[int]:
        """The two middle numbers of a channels-last attribute such as strides."""
        return self.integers(name)[1:3]

    def is_valid_padded(self) -> bool:
        return base64.b64decode(self.attributes["padding"]["s"]) == b"VALID"


class _Builder:
    """The ONNX graph under construction."""

    def __init__(self, constants: dict[str, Array]) -> None:
        self.constants = constants
        self.nodes: list[Any] = []
        self.initializers: dict[str, Array] = {}
        self.inputs: list[str] = []

    def add(self, entry: dict[str, Any]) -> None:
        node = _Node.from_entry(entry)
        if node.op == "Const":
            return
        if node.op == "Placeholder":
            self.inputs.append(node.name)
            return
        if all(name in self.constants for name in node.inputs) and node.op in _CONSTANT_FOLDERS:
            self.constants[node.name] = _CONSTANT_FOLDERS[node.op]([self.constants[name] for name in node.inputs])
            return
        if node.op not in _EMITTERS:
            raise WeightsError(f"tfjs graph holds {node.op} ({node.name}): this converter does not know it")
        _EMITTERS[node.op](self, node)

    def constant(self, name: str) -> Array:
        if name not in self.constants:
            raise WeightsError(f"tfjs graph: {name} should be a constant")
        return self.constants[name]

    def value(self, name: str) -> str:
        """A node's input; a constant becomes an initializer."""
        if name in self.constants:
            self.initializers[name] = self.constants[name]
        return name

    def add_initializer(self, name: str, array: Array) -> str:
        """Add an initializer."""
        self.initializers[name] = array
        return name

    def emit(self, op: str, inputs: Iterable[str], outputs: Iterable[str], **attributes: Any) -> None:
        from onnx import helper

        self.nodes.append(helper.make_node(op, list(inputs), list(outputs), **attributes))

    def channels_first(self, node: _Node, op: str, *extra_inputs: str, **attributes: Any) -> None:
        """Emit an operator on images between two transpositions."""
        transposed, result = f"{node.name}/first", f"{node.name}/result"
        self.emit("Transpose", [self.value(node.inputs[0])], [transposed], perm=CHANNELS_FIRST)
        self.emit(op, [transposed, *extra_inputs], [result], **attributes)
        self.emit("Transpose", [result], [node.name], perm=CHANNELS_LAST)

    def finish(self, signature: dict[str, Any]) -> bytes:
        inputs, outputs = (_shapes(signature[part]) for part in ("inputs", "outputs"))
        return model_bytes("tfjs", self.nodes, inputs, outputs, self.initializers)


def _shapes(entries: dict[str, Any]) -> dict[str, list[int]]:
    """Shapes by name, from one part of a signature."""
    sizes = {name: [int(d["size"]) for d in entries[name]["tensorShape"]["dim"]] for name in sorted(entries)}
    return {name.removesuffix(":0"): shape for name, shape in sizes.items()}


def _convolution(builder: _Builder, node: _Node) -> None:
    if not node.is_valid_padded():
        raise WeightsError(f"tfjs graph: {node.name} pads by itself; only VALID is known")
    kernel = builder.constant(node.inputs[1]).transpose(3, 2, 0, 1)  # (h, w, in, out) -> (out, in, h, w)
    name = builder.add_initializer(f"{node.inputs[1]}/first", np.ascontiguousarray(kernel))
    builder.channels_first(node, "Conv", name, strides=node.window("strides"), dilations=node.window("dilations"))


def _max_pool(builder: _Builder, node: _Node) -> None:
    if not node.is_valid_padded():
        raise WeightsError(f"tfjs graph: {node.name} pads by itself; only VALID is known")
    builder.channels_first(node, "MaxPool", kernel_shape=node.window("ksize"), strides=node.window("strides"))


def _resize(builder: _Builder, node: _Node) -> None:
    if not node.attributes["half_pixel_centers"]["b"]:
        raise WeightsError(f"tfjs graph: {node.name} resizes without half-pixel centres")
    height, width = (int(v) for v in builder.constant(node.inputs[1]))
    first, result = f"{node.name}/first", f"{node.name}/result"
    shape, sizes = f"{node.name}/shape", f"{node.name}/sizes"
    builder.emit("Transpose", [builder.value(node.inputs[0])], [first], perm=CHANNELS_FIRST)
    builder.emit("Shape", [first], [shape], start=0, end=2)
    target_size = builder.add_initializer(f"{node.name}/wanted", np.array([height, width], np.int64))
    builder.emit("Concat", [shape, target_size], [sizes], axis=0)
    builder.emit("Resize", [first, "", "", sizes], [result], mode="linear", coordinate_transformation_mode="half_pixel")
    builder.emit("Transpose", [result], [node.name], perm=CHANNELS_LAST)


def _pad(builder: _Builder, node: _Node) -> None:
    pads = builder.constant(node.inputs[1]).T.reshape(-1).astype(np.int64)  # all beginnings, then all ends
    inputs = [builder.value(node.inputs[0]), builder.add_initializer(f"{node.name}/pads", pads)]
    if node.op == "PadV2":
        inputs.append(builder.add_initializer(f"{node.name}/value", builder.constant(node.inputs[2])))
    builder.emit("Pad", inputs, [node.name])


def _transpose(builder: _Builder, node: _Node) -> None:
    perm = [int(v) for v in builder.constant(node.inputs[1])]
    builder.emit("Transpose", [builder.value(node.inputs[0])], [node.name], perm=perm)


def _reshape(builder: _Builder, node: _Node) -> None:
    shape = builder.add_initializer(f"{node.name}/shape", builder.constant(node.inputs[1]).astype(np.int64))
    builder.emit("Reshape", [builder.value(node.inputs[0]), shape], [node.name])


def _concat(builder: _Builder, node: _Node) -> None:
    *parts, axis = node.inputs
    builder.emit("Concat", [builder.value(p) for p in parts], [node.name], axis=int(builder.constant(axis)))


def _split(builder: _Builder, node: _Node) -> None:
    sizes = builder.constant(node.inputs[1]).astype(np.int64)
    outputs = [node.name, *(f"{node.name}:{i}" for i in range(1, len(sizes)))]
    axis = int(builder.constant(node.inputs[2]))
    sizes_name = builder.add_initializer(f"{node.name}/sizes", sizes)
    builder.emit("Split", [builder.value(node.inputs[0]), sizes_name], outputs, axis=axis)


def _leaky_relu(builder: _Builder, node: _Node) -> None:
    builder.emit("LeakyRelu", [builder.value(node.inputs[0])], [node.name], alpha=node.attributes["alpha"]["f"])


def _emit_same_op(op: str) -> Callable[[_Builder, _Node], None]:
    """An operator with the same meaning in both formats."""
    return lambda builder, node: builder.emit(op, [builder.value(name) for name in node.inputs], [node.name])


def _sparse_to_dense(inputs: list[Array]) -> Array:
    indices, shape, values, default = inputs
    dense = np.full([int(v) for v in shape], default)
    dense[tuple(indices.T)] = values
    return dense


_CONSTANT_FOLDERS: dict[str, Callable[[list[Array]], Array]] = {
    "SparseToDense": _sparse_to_dense,
    "AddV2": lambda inputs: inputs[0] + inputs[1],
}
_EMITTERS: dict[str, Callable[[_Builder, _Node], None]] = {
    "Conv2D": _convolution,
    "MaxPool": _max_pool,
    "ResizeBilinear": _resize,
    "Pad": _pad,
    "PadV2": _pad,
    "Transpose": _transpose,
    "Reshape": _reshape,
    "ConcatV2": _concat,
    "SplitV": _split,
    "LeakyRelu": _leaky_relu,
    "Add": _emit_same_op("Add"),
    "AddV2": _emit_same_op("Add"),
    "Sigmoid": _emit_same_op("Sigmoid"),
    "Identity": _emit_same_op("Identity"),
}
