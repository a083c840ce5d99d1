"""Takes apart initialisers that an exporter merged because they were equal."""

from collections import Counter

import onnx

from stanza_compiler.onnx_import.names import scope
from stanza_compiler.onnx_import.values import Known, is_uniform

_ROLES = {
    "BatchNormalization": ("", "weight", "bias", "running_mean", "running_var"),
    "Conv": ("", "weight", "bias"),
    "ConvTranspose": ("", "weight", "bias"),
    "Gemm": ("", "weight", "bias"),
    "GroupNormalization": ("", "weight", "bias"),
    "InstanceNormalization": ("", "weight", "bias"),
    "LayerNormalization": ("", "weight", "bias"),
    "RMSNormalization": ("", "weight"),
}


def unmerged(graph: onnx.GraphProto, initializers: dict[str, Known]) -> tuple[onnx.GraphProto, dict[str, Known]]:
    """Give each torch module its own weight again where one, with equal elements throughout, stands for several.

    Exporters store equal tensors once, such as the ones and zeros that all norms of a fresh model begin with. Trained
    as they are stored these would stay one weight, so that no cut could lie between two norms. Nodes that come from the
    same module go on sharing, and so does what has different elements: it may well be tied in the model.
    """
    copied = onnx.GraphProto()
    copied.CopyFrom(graph)
    uses = Counter(name for node in copied.node for name in node.input)
    merged = {name for name, known in initializers.items() if uses[name] > 1 and _is_uniform(known)}
    found = dict(initializers)
    origins = {name: name for name in initializers}
    for node in copied.node:
        if node.op_type == "Identity" and node.input[0] in merged:  # how the exporter of TorchScript writes them
            found[node.output[0]] = _renamed(initializers[node.input[0]], node.output[0])
            continue
        path = scope(node)
        roles = _ROLES.get(node.op_type, ())
        for slot, name in enumerate(node.input):
            if name not in merged or not path:
                continue
            own = f"{path}.{roles[slot] if slot < len(roles) else name.rpartition('.')[2]}"
            while origins.setdefault(own, name) != name:
                own += "_"
            if own not in found:
                found[own] = _renamed(initializers[name], own)
            node.input[slot] = own
    return copied, found


def _is_uniform(known: Known) -> bool:
    tensor = known.tensor
    return known.trains and tensor.numel() > 1 and is_uniform(tensor)


def _renamed(known: Known, name: str) -> Known:
    return Known(known.tensor.clone(), name, known.trains)
