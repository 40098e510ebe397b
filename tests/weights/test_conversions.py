"""Conversions against independent implementations: torch for EfficientNet, a graph worked out by hand for tfjs."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pixelis.core.errors import WeightsError
from pixelis.weights import is_available, weight_path
from pixelis.weights.convert import efficientnet, tfjs
from pixelis.weights.labels import from_js
from pixelis.weights.session import open_session

VALID = {"padding": {"s": base64.b64encode(b"VALID").decode()}}


def tfjs_files(
    folder: Path, nodes: list[dict[str, Any]], values: dict[str, np.ndarray], shape: list[int]
) -> list[Path]:
    """A graph model on the disk, its floats kept as float16."""
    shard, manifest = b"", []
    for name, array in values.items():
        entry: dict[str, Any] = {"name": name, "shape": list(array.shape), "dtype": str(array.dtype)}
        stored = array
        if array.dtype == np.float32:
            entry["quantization"] = {"dtype": "float16", "original_dtype": "float32"}
            stored = array.astype(np.float16)
        shard += stored.tobytes()
        manifest.append(entry)
        nodes = [{"op": "Const", "name": name}, *nodes]
    described = {"tensorShape": {"dim": [{"size": str(d)} for d in shape]}}
    model = {
        "modelTopology": {"node": nodes},
        "weightsManifest": [{"paths": ["v.bin"], "weights": manifest}],
        "signature": {"inputs": {"x:0": described}, "outputs": {"y:0": {"tensorShape": {"dim": [{"size": "1"}]}}}},
    }
    (folder / "g.json").write_text(json.dumps(model))
    (folder / "v.bin").write_bytes(shard)
    return [folder / "g.json", folder / "v.bin"]


def run(onnx: bytes, folder: Path, x: np.ndarray) -> np.ndarray:
    (folder / "m.onnx").write_bytes(onnx)
    return open_session(folder / "m.onnx").run(None, {"x": x})[0]


def test_a_tfjs_convolution_reads_its_kernel_as_height_width_in_out(tmp_path: Path) -> None:
    strides = {"strides": {"list": {"i": ["1", "1", "2", "1"]}}, "dilations": {"list": {"i": ["1", "1", "1", "1"]}}}
    nodes = [
        {"op": "Placeholder", "name": "x"},
        {"op": "Conv2D", "name": "c", "input": ["x", "k"], "attr": {**VALID, **strides}},
        {"op": "Add", "name": "a", "input": ["c", "b"]},
        {"op": "LeakyRelu", "name": "l", "input": ["a"], "attr": {"alpha": {"f": 0.5}}},
        {"op": "Reshape", "name": "y", "input": ["l", "s"]},
    ]
    values = {
        "k": np.array([1, 10], np.float32).reshape(1, 1, 2, 1),  # one output: first channel + 10 * second
        "b": np.array([-30], np.float32),
        "s": np.array([2], np.int32),
    }
    files = tfjs_files(tmp_path, nodes, values, [1, 1, 3, 2])
    x = np.array([[1, 2], [0, 0], [3, 4]], np.float32).reshape(1, 1, 3, 2)  # strides of two skip the middle one
    # 1 + 20 - 30 = -9 -> -4.5; 3 + 40 - 30 = 13
    assert run(tfjs.to_onnx(*files), tmp_path, x).tolist() == [-4.5, 13.0]


def test_tfjs_padding_names_beginnings_and_ends_of_each_axis(tmp_path: Path) -> None:
    nodes = [
        {"op": "Placeholder", "name": "x"},
        {"op": "PadV2", "name": "p", "input": ["x", "n", "v"]},
        {"op": "Reshape", "name": "y", "input": ["p", "s"]},
    ]
    values = {
        "n": np.array([[0, 0], [1, 2]], np.int32),
        "v": np.array(7, np.float32),
        "s": np.array([-1], np.int32),
    }
    files = tfjs_files(tmp_path, nodes, values, [1, 1])
    assert run(tfjs.to_onnx(*files), tmp_path, np.array([[5]], np.float32)).tolist() == [7, 5, 7, 7]


def test_an_operator_that_the_converter_does_not_know_is_named(tmp_path: Path) -> None:
    nodes = [{"op": "Placeholder", "name": "x"}, {"op": "FusedMatMul", "name": "y", "input": ["x"]}]
    with pytest.raises(WeightsError, match=r"FusedMatMul \(y\): this converter does not know it"):
        tfjs.to_onnx(*tfjs_files(tmp_path, nodes, {}, [1]))


def test_tfjs_values_that_end_early_are_refused(tmp_path: Path) -> None:
    files = tfjs_files(tmp_path, [], {"k": np.ones(4, np.float32)}, [1])
    files[1].write_bytes(files[1].read_bytes()[:-1])
    with pytest.raises(WeightsError, match="end before k"):
        tfjs.to_onnx(*files)


def test_same_padding_puts_the_odd_pixel_after() -> None:
    assert efficientnet.same_padding(224, 3, 2) == (0, 1)
    assert efficientnet.same_padding(112, 3, 1) == (1, 1)
    assert efficientnet.same_padding(56, 5, 2) == (1, 2)


def test_a_pickle_that_runs_code_is_refused(tmp_path: Path) -> None:
    import pickle

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "ran",))

    (tmp_path / "evil.pth").write_bytes(pickle.dumps({"w": Evil()}, protocol=2))
    with pytest.raises(WeightsError, match=r"evil\.pth: not a file of plain tensors"):
        efficientnet.to_safetensors(tmp_path / "evil.pth")
    assert not (tmp_path / "ran").exists()


def test_a_label_file_with_too_few_classes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "l.js").write_text("exports.X = {\n    0: 'tench, ' +\n        'Tinca tinca',\n};\n")
    with pytest.raises(WeightsError, match="holds 1 classes, wanted 1000"):
        from_js(tmp_path / "l.js")


@pytest.mark.weights
def test_efficientnet_in_onnx_equals_the_network_written_in_torch() -> None:
    if not is_available("efficientnet-lite0"):
        pytest.skip("run `pixelis models pull efficientnet-lite0`")
    import torch
    from torch.nn import functional

    state = torch.load(weight_path("efficientnet-lite0-pickle"), weights_only=True)

    def convolve(x: torch.Tensor, conv: str, norm: str, stride: int = 1, act: bool = True) -> torch.Tensor:
        weight = state[f"{conv}.weight"]
        kernel, side = weight.shape[-1], x.shape[-1]
        total = max((-(-side // stride) - 1) * stride + kernel - side, 0)
        x = functional.pad(x, [total // 2, total - total // 2] * 2)
        x = functional.conv2d(x, weight, stride=stride, groups=x.shape[1] if weight.shape[1] == 1 else 1)
        mean, var = state[f"{norm}.running_mean"], state[f"{norm}.running_var"]
        x = functional.batch_norm(x, mean, var, state[f"{norm}.weight"], state[f"{norm}.bias"], eps=1e-3)
        return functional.relu6(x) if act else x

    image = np.random.default_rng(0).uniform(-1, 1, (2, 3, 224, 224)).astype(np.float32)
    x = convolve(torch.from_numpy(image), "_conv_stem", "_bn0", 2)
    strides = [1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1]
    for number, stride in enumerate(strides):
        block, before = f"_blocks.{number}", x
        if number:
            x = convolve(x, f"{block}._expand_conv", f"{block}._bn0")
        x = convolve(x, f"{block}._depthwise_conv", f"{block}._bn1", stride)
        x = convolve(x, f"{block}._project_conv", f"{block}._bn2", act=False)
        x = x + before if x.shape == before.shape else x
    feature = convolve(x, "_conv_head", "_bn1").mean((2, 3))
    logits = feature @ state["_fc.weight"].T + state["_fc.bias"]
    ours = open_session(weight_path("efficientnet-lite0")).run(["feature", "logits"], {"image": image})
    assert np.abs(ours[0] - feature.numpy()).max() < 1e-4
    assert np.abs(ours[1] - logits.numpy()).max() < 1e-4


@pytest.mark.weights
def test_conversions_give_the_pinned_bytes_again() -> None:
    if not (is_available("nanodet") and is_available("efficientnet-lite0")):
        pytest.skip("run `pixelis models pull`")
    assert (
        tfjs.to_onnx(weight_path("nanodet-graph"), weight_path("nanodet-values")) == weight_path("nanodet").read_bytes()
    )
    tensors = weight_path("efficientnet-lite0-tensors")
    assert efficientnet.to_safetensors(weight_path("efficientnet-lite0-pickle")) == tensors.read_bytes()
    assert efficientnet.to_onnx(tensors) == weight_path("efficientnet-lite0").read_bytes()
