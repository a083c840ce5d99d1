"""Small ONNX models for tests, and onnxruntime's opinion of them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper

Sizes = Sequence[int | str | None]


def graph_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sizes],
    outputs: Sequence[str],
    weights: Mapping[str, Any] | None = None,
    *,
    opset: int = 20,
    integers: Sequence[str] = (),
    functions: Sequence[onnx.FunctionProto] = (),
    domains: Sequence[str] = (),
) -> onnx.ModelProto:
    """A model of float32 inputs, int64 where `integers` names them, whose outputs have any type and shape."""
    initializers = [numpy_helper.from_array(np.asarray(value), name) for name, value in (weights or {}).items()]
    takes = [
        helper.make_tensor_value_info(name, TensorProto.INT64 if name in integers else TensorProto.FLOAT, sizes)
        for name, sizes in inputs.items()
    ]
    gives = [onnx.ValueInfoProto(name=name) for name in outputs]
    graph = helper.make_graph(nodes, "graph", takes, gives, initializers)
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    model = helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=10)
    return onnx.shape_inference.infer_shapes(model)


def saved(model: onnx.ModelProto, folder: Path, name: str = "model.onnx") -> Path:
    path = folder / name
    onnx.save(model, path)
    return path


def by_onnxruntime(path: Path, args: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    feed = {each.name: arg.numpy() for each, arg in zip(session.get_inputs(), args, strict=True)}
    return [torch.from_numpy(np.asarray(output)) for output in session.run(None, feed)]
