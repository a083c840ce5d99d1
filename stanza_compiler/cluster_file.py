"""The machines that the command line describes, some of them in a TOML or JSON file."""

import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from stanza_compiler.cluster import DEVICES, Cluster, Device
from stanza_compiler.errors import UsageError
from stanza_compiler.quantities import bandwidth, latency, one_of, positive_integer

MEASURE = "measure"


def device(place: str, text: str) -> Device:
    """A known device; `measure` stands for this machine, with a CPU's figures for what can't be measured."""
    name = one_of(place, text, (*DEVICES, MEASURE))
    return replace(DEVICES["cpu"], name=MEASURE) if name == MEASURE else DEVICES[name]


# What an entry is called on the command line and in files, the Cluster's field, how its text is read.
ENTRIES: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "nodes": ("nodes", positive_integer),
    "gpus-per-node": ("gpus_per_node", positive_integer),
    "bandwidth": ("bandwidth_bit_per_s", bandwidth),
    "latency": ("latency_s", latency),
    "local-bandwidth": ("local_bandwidth_bit_per_s", bandwidth),
    "device": ("device", device),
}


def read_cluster(options: Mapping[str, str | None], file: Path | None) -> Cluster:
    """The Cluster of `file`, with the options that were given in place of the file's entries.

    A file holds the options by name, `gpus-per-node` or `gpus_per_node`, and may also say `local-bandwidth`, the
    bandwidth between devices of one node. Raises UsageError.
    """
    entries = _file_entries(file) if file else {}
    entries |= {name: (f"--{name}", text) for name, text in options.items() if text is not None}
    fields = {}
    for name, (place, text) in entries.items():
        field, read = ENTRIES[name]
        fields[field] = read(place, text)
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


def _file_entries(file: Path) -> dict[str, tuple[str, str]]:
    """Place and text of every entry."""
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
    names = {key: one_of(f"--cluster {file}", key.replace("_", "-"), ENTRIES) for key in table}
    return {name: (f"--cluster {file}: {key}", str(table[key])) for key, name in names.items()}
