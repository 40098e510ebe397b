"""Convert EfficientNet-Lite0 from its torch pickle to safetensors, then to one ONNX file with two outputs.

The graph is written here rather than traced, so that the ONNX file has the same bytes with any torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pixelis.core.errors import WeightsError
from pixelis.weights.convert import Shape, model_bytes

SIDE = 224

BATCH_NORM_EPSILON = 1e-3

Tensors = dict[str, NDArray[Any]]


class _Stage(NamedTuple):
    """A row of EfficientNet's table: how many blocks, kernel side, stride of the first block, output channels."""

    blocks: int
    kernel: int
    stride: int
    channels: int


ROWS = ((1, 3, 1, 16), (2, 3, 2, 24), (2, 5, 2, 40), (3, 3, 2, 80), (3, 5, 1, 112), (4, 5, 2, 192), (1, 3, 1, 320))
STAGES = tuple(_Stage(*row) for row in ROWS)


def to_safetensors(pickle: Path) -> bytes:
    """The tensors of a torch pickle, read without running any code in it."""
    from pickle import UnpicklingError

    import torch
    from safetensors.numpy import save

    try:
        state = torch.load(pickle, map_location="cpu", weights_only=True)
    except (UnpicklingError, RuntimeError, EOFError) as error:
        raise WeightsError(f"{pickle.name}: not a file of plain tensors; refused") from error
    # some of these tensors are transposed views, and safetensors writes the memory as it lies
    names = sorted(name for name in state if not name.endswith("num_batches_tracked"))
    return bytes(save({name: np.ascontiguousarray(state[name].numpy()) for name in names}))


def to_onnx(tensors: Path) -> bytes:
    """The ONNX file: `image` (N, 3, 224, 224) to `feature` (N, 1280) and `logits` (N, 1000); always the same bytes."""
    from safetensors.numpy import load_file

    state: Tensors = load_file(tensors)
    graph = _Graph(state)
    value = graph.convolve("image", "_conv_stem", "_bn0", stride=2, side=SIDE, relu=True)
    side, channels, block = SIDE // 2, 32, 0
    for stage in STAGES:
        for stride in (stage.stride, *[1] * (stage.blocks - 1)):
            value = graph.block(value, block, stride, side, skip=stride == 1 and channels == stage.channels)
            side, channels, block = -(-side // stride), stage.channels, block + 1
    value = graph.convolve(value, "_conv_head", "_bn1", stride=1, side=side, relu=True)
    graph.emit("GlobalAveragePool", [value], "pooled")
    graph.emit("Flatten", ["pooled"], "feature", axis=1)
    graph.emit("Gemm", ["feature", graph.use("_fc.weight"), graph.use("_fc.bias")], "logits", transB=1)
    inputs: dict[str, Shape] = {"image": ["N", 3, SIDE, SIDE]}
    outputs: dict[str, Shape] = {"feature": ["N", 1280], "logits": ["N", 1000]}
    return model_bytes("efficientnet-lite0", graph.nodes, inputs, outputs, graph.initializers)


class _Graph:
    """The ONNX nodes so far, and the tensors that they use."""

    def __init__(self, state: Tensors) -> None:
        self.state = state
        self.nodes: list[Any] = []
        self.initializers: Tensors = {}

    def use(self, name: str) -> str:
        if name not in self.state:
            raise WeightsError(f"EfficientNet-Lite0: no tensor {name} in the file")
        self.initializers[name] = self.state[name]
        return name

    def emit(self, op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        from onnx import helper

        self.nodes.append(helper.make_node(op, inputs, [output], **attributes))
        return output

    def convolve(self, value: str, conv: str, norm: str, *, stride: int, side: int, relu: bool) -> str:
        """Convolution with TensorFlow's SAME padding, batch norm, and ReLU6 where the network has one."""
        weight = self.state[self.use(f"{conv}.weight")]
        kernel, groups = weight.shape[2], weight.shape[0] if "_depthwise" in conv else 1
        begin, end = same_padding(side, kernel, stride)
        shape = {"strides": [stride] * 2, "pads": [begin, begin, end, end], "group": groups}
        value = self.emit("Conv", [value, f"{conv}.weight"], f"{conv}/convolved", **shape)
        parameters = [self.use(f"{norm}.{p}") for p in ("weight", "bias", "running_mean", "running_var")]
        value = self.emit("BatchNormalization", [value, *parameters], f"{norm}/normed", epsilon=BATCH_NORM_EPSILON)
        if not relu:
            return value
        self.initializers["zero"], self.initializers["six"] = np.array(0, np.float32), np.array(6, np.float32)
        return self.emit("Clip", [value, "zero", "six"], f"{norm}/activated")

    def block(self, value: str, number: int, stride: int, side: int, *, skip: bool) -> str:
        """An inverted residual block: expand, depthwise convolution, project, and add the input."""
        name, residual = f"_blocks.{number}", value
        if f"{name}._expand_conv.weight" in self.state:
            value = self.convolve(value, f"{name}._expand_conv", f"{name}._bn0", stride=1, side=side, relu=True)
        value = self.convolve(value, f"{name}._depthwise_conv", f"{name}._bn1", stride=stride, side=side, relu=True)
        value = self.convolve(value, f"{name}._project_conv", f"{name}._bn2", stride=1, side=side, relu=False)
        return self.emit("Add", [value, residual], f"{name}/added") if skip else value


def same_padding(side: int, kernel: int, stride: int) -> tuple[int, int]:
    """Pixels to add before and after, as TensorFlow does: the odd one after."""
    total = max((-(-side // stride) - 1) * stride + kernel - side, 0)
    return total // 2, total - total // 2
