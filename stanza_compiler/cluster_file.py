"""The machines that the command line describes, some of them in a TOML or JSON file."""

import json
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from stanza_compiler.cluster import DEVICES, Cluster, Device
from stanza_compiler.errors import UsageError
from stanza_compiler.quantities import bandwidth, flop_rate, latency, memory_bandwidth, one_of, positive_integer

MEASURE = "measure"

# Seconds that starting an op costs where a file doesn't say.
OVERHEAD_S = 10e-6


def device(place: str, entry: str | Mapping[str, Any]) -> Device:
    """A known device, or the one that a table describes.

    `measure` stands for this machine, with a CPU's figures for what can't be measured.
    """
    if not isinstance(entry, str):
        return _described(place, entry)
    name = one_of(place, entry, (*DEVICES, MEASURE))
    return replace(DEVICES["cpu"], name=MEASURE) if name == MEASURE else DEVICES[name]


# What an entry is called on the command line and in files, the Cluster's field, how the entry is read.
ENTRIES: dict[str, tuple[str, Callable[[str, Any], Any]]] = {
    "nodes": ("nodes", positive_integer),
    "gpus-per-node": ("gpus_per_node", positive_integer),
    "bandwidth": ("bandwidth_bit_per_s", bandwidth),
    "latency": ("latency_s", latency),
    "local-bandwidth": ("local_bandwidth_bit_per_s", bandwidth),
    "device": ("device", device),
}


def read_cluster(options: Mapping[str, str | None], file: Path | None) -> Cluster:
    """The Cluster of `file`, with the options that were given in place of the file's entries.

    A file holds the options by name, `gpus-per-node` or `gpus_per_node`. It may also say `local-bandwidth`, the
    bandwidth between devices of one node, and describe a device in a table `device`. Raises UsageError.
    """
    entries = _file_entries(file) if file else {}
    entries |= {name: (f"--{name}", text) for name, text in options.items() if text is not None}
    fields = {}
    for name, (place, entry) in entries.items():
        field, read = ENTRIES[name]
        fields[field] = read(place, entry)
    return Cluster(**fields)


def read_text(option: str, file: Path) -> str:
    """What `file` holds; raises UsageError when that can't be read as text."""
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise UsageError(option, f"{file}: {reason[:1].lower()}{reason[1:]}", "pass a file that can be read") from error
    except UnicodeDecodeError as error:
        raise UsageError(option, f"{file} is no text file", "pass a text file in UTF-8") from error


def _file_entries(file: Path) -> dict[str, tuple[str, Any]]:
    """Place of every entry, and its text or table."""
    parse = json.loads if file.suffix == ".json" else tomllib.loads
    try:
        table = parse(read_text("--cluster", file))
    except ValueError as error:
        form = "JSON" if file.suffix == ".json" else "TOML"
        raise UsageError(
            f"--cluster {file}", f"not {form}: {error}", "name JSON files .json, all others are TOML"
        ) from error
    if not isinstance(table, dict):
        raise UsageError(f"--cluster {file}", "holds no table", "write entries like nodes = 4")
    return _named(f"--cluster {file}", table, ENTRIES)


def _described(place: str, table: Mapping[str, Any]) -> Device:
    """The device of a table with `name`, `flops` and `memory-bandwidth`, and maybe `overhead`."""
    entries = _named(place, table, ("name", "flops", "memory-bandwidth", "overhead"))
    for needed in ("name", "flops", "memory-bandwidth"):
        if needed not in entries:
            remedy = 'write name = "t4", flops = "6.5TFLOP/s", memory-bandwidth = "250GB/s"'
            raise UsageError(place, f"has no {needed}", remedy)
    at, name = entries["name"]
    if not name or name in (*DEVICES, MEASURE):
        raise UsageError(at, f"{name!r} is no name for a device of one's own", "choose another one")
    overhead_s = latency(*entries["overhead"]) if "overhead" in entries else OVERHEAD_S
    return Device(name, flop_rate(*entries["flops"]), memory_bandwidth(*entries["memory-bandwidth"]), overhead_s)


def _named(place: str, table: Mapping[str, Any], choices: Iterable[str]) -> dict[str, tuple[str, Any]]:
    """Place and text of a table's entries, named like `choices` or with `_` for `-`; a device's may be a table."""
    names = {key: one_of(place, key.replace("_", "-"), choices) for key in table}
    return {
        name: (f"{place}: {key}", table[key] if name == "device" and isinstance(table[key], dict) else str(table[key]))
        for key, name in names.items()
    }
