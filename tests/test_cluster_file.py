"""Clusters from options and files."""

from pathlib import Path

import pytest

from stanza_compiler.cluster import DEVICES, Cluster, Device
from stanza_compiler.cluster_file import read_cluster
from stanza_compiler.errors import UsageError

DEVICE = '[device]\nname = "{}"\nflops = "{}"\nmemory-bandwidth = "{}"'


def test_nothing_given_is_the_default_cluster() -> None:
    assert read_cluster({"nodes": None, "device": None}, None) == Cluster()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.toml", 'nodes = 8\ngpus-per-node = 2\nbandwidth = "25Gbit"\nlatency = "5us"\ndevice = "a100"'),
        ("c.json", '{"nodes": 8, "gpus_per_node": 2, "bandwidth": "25Gbit", "latency": "5us", "device": "a100"}'),
    ],
)
def test_a_file_describes_the_cluster(tmp_path: Path, name: str, text: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    assert read_cluster({}, file) == Cluster(8, 2, 25e9, 5e-6, device=DEVICES["a100"])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.toml", '[device]\nname = "t4"\nflops = "6.5TFLOP/s"\nmemory-bandwidth = "250GB/s"\noverhead = "7us"'),
        (
            "c.json",
            '{"device": {"name": "t4", "flops": "6.5 TFLOPS", "memory_bandwidth": "250 GB/s", "overhead": "7us"}}',
        ),
    ],
)
def test_a_file_describes_a_device(tmp_path: Path, name: str, text: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    assert read_cluster({}, file) == Cluster(device=Device("t4", 6.5e12, 250e9, 7e-6))
    assert read_cluster({"device": "a100"}, file) == Cluster(device=DEVICES["a100"])


def test_options_override_the_file(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('nodes = 8\nlocal-bandwidth = "300Gbit"')
    assert read_cluster({"nodes": "3"}, file) == Cluster(nodes=3, local_bandwidth_bit_per_s=300e9)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nodes = 0", r"--cluster c.toml: nodes: '0' is not a positive whole number"),
        ("nodes = true", r"'True' is not a positive whole number"),
        ("bandwidth = 10e9", r"is not a bandwidth above zero; write it like 10Gbit"),
        ("node = 3", r"'node' is unknown; did you mean nodes\?"),
        ("nodes", r"--cluster c.toml: not TOML"),
        ("[nodes]\nname = 3", r"--cluster c.toml: nodes: \"\{'name': 3\}\" is not a positive whole number"),
        ('device = "t4"', r"--cluster c.toml: device: 't4' is unknown; pass one of v100"),
        ("device = 4", r"--cluster c.toml: device: '4' is unknown; pass one of v100"),
        ('[device]\nname = "t4"\nflops = "6.5TFLOP/s"', r"--cluster c.toml: device: has no memory-bandwidth; write"),
        (
            DEVICE.format("v100", "6TFLOP/s", "2GB/s"),
            r"c.toml: device: name: 'v100' is no name for a device of one's own",
        ),
        (DEVICE.format("measure", "6TFLOP/s", "2GB/s"), r"c.toml: device: name: 'measure' is no name"),
        (
            DEVICE.format("t4", "6T", "2GB/s"),
            r"c.toml: device: flops: '6T' is not a speed .*; write it like 6.5TFLOP/s",
        ),
        (
            DEVICE.format("t4", "6TFLOP/s", "0GB/s"),
            r"device: memory-bandwidth: '0GB/s' is not a memory's bandwidth above",
        ),
        (
            DEVICE.format("t4", "6TFLOP/s", "2GB/s") + "\ncores = 2",
            r"c.toml: device: 'cores' is unknown; pass one of name",
        ),
    ],
)
def test_a_wrong_entry_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.toml").write_text(text)
    with pytest.raises(UsageError, match=message):
        read_cluster({}, Path("c.toml"))


def test_json_that_is_no_object_is_refused(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text("[4]")
    with pytest.raises(UsageError, match="holds no table"):
        read_cluster({}, tmp_path / "c.json")


def test_a_file_that_is_missing_or_binary_is_refused(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=r"no text file"):
        read_cluster({}, tmp_path / "c.toml")
    with pytest.raises(UsageError, match=r"no such file or directory"):
        read_cluster({}, tmp_path / "absent.toml")
