"""The machines that will train: how many, how fast, how connected."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Device:
    """What one device sustains in fp32 training, as a roofline: FLOP/s, bytes/s of memory, seconds per op."""

    name: str
    flops_per_s: float
    memory_bytes_per_s: float
    overhead_s: float


DEVICES = {
    device.name: device
    for device in (
        Device("v100", 14.0e12, 800e9, 10e-6),
        Device("a100", 17.5e12, 1400e9, 10e-6),
        Device("h100", 55.0e12, 2600e9, 10e-6),
        Device("cpu", 60e9, 12e9, 5e-6),
    )
}


@dataclass(frozen=True, slots=True)
class Cluster:
    """`nodes` machines of `gpus_per_node` devices each; links are full duplex, per node and direction."""

    nodes: int = 4
    gpus_per_node: int = 1
    bandwidth_bit_per_s: float = 10e9
    latency_s: float = 50e-6
    local_bandwidth_bit_per_s: float = 100e9
    device: Device = DEVICES["v100"]

    @property
    def world_size(self) -> int:
        return self.nodes * self.gpus_per_node

    def __str__(self) -> str:
        return (
            f"{self.nodes} nodes x {self.gpus_per_node} {self.device.name}, "
            f"{self.bandwidth_bit_per_s / 1e9:g} Gbit/s, {self.latency_s * 1e6:g} us"
        )
