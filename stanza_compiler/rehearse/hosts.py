"""Emulated hosts: one network namespace each, joined by a bridge, each link shaped in both directions.

inside        eth0 ── tbf ──> h0 ┐              tbf at both ends of a pair: a host's link is full duplex
namespace 0   10.77.0.1          ├─ bridge      and carries the rate each way
namespace 1   eth0 ── tbf ──> h1 ┘
"""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

BRIDGE = "switch"
# A burst leaves at once however slow the link: one that is large flatters small messages. One that is smaller than
# the packets which TCP hands over makes the kernel cut each into frames, and small packets cost the processor that
# the program needs. Linux sizes packets so that one is about a millisecond of the link (TSO autosizing): so do we.
BURST_S = 1.25e-3
SMALLEST_BURST_BYTES = 16_000
# Of a burst, what may be one packet: its frames' headers count against the rate as well.
PACKET_SHARE = 0.8
LARGEST_PACKET_BYTES = 65_000
# However large its packets: the kernel refills a bucket only so often.
REFILL_S = 250e-6
# What a switch's port holds before it drops.
QUEUE_S = 50e-3
SMALLEST_QUEUE_BYTES = 200_000


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that a host's interface has sent and received, frames' headers included but for segmentation."""

    sent: int
    received: int


class Hosts:
    """The hosts of one sandbox; all of it vanishes with the namespaces that this process lives in."""

    def __init__(self, count: int) -> None:
        self._keepers: list[subprocess.Popen[bytes]] = []
        _ip("link", "set", "lo", "up")
        _ip("link", "add", BRIDGE, "type", "bridge")
        _ip("link", "set", BRIDGE, "up")
        for host in range(count):
            # Somebody has to live in a namespace without a name.
            keeper = subprocess.Popen(
                ["unshare", "--net", "sh", "-c", "echo; exec sleep infinity"], stdout=subprocess.PIPE
            )
            self._keepers.append(keeper)
            assert keeper.stdout is not None
            keeper.stdout.readline()
            _ip("link", "add", f"h{host}", "type", "veth", "peer", "name", "eth0", "netns", str(keeper.pid))
            _ip("link", "set", f"h{host}", "addrgenmode", "none")
            _ip("link", "set", f"h{host}", "master", BRIDGE, "up")
            self._inside(host, "ip", "link", "set", "lo", "up")
            self._inside(host, "ip", "link", "set", "eth0", "addrgenmode", "none", "up")
            self._inside(host, "ip", "address", "add", f"{self.address(host)}/16", "dev", "eth0")

    @staticmethod
    def address(host: int) -> str:
        return f"10.77.{(host + 1) // 250}.{(host + 1) % 250}"

    def enter(self, host: int) -> list[str]:
        """The beginning of a command line that runs the rest of it on this host."""
        return ["nsenter", f"--net=/proc/{self._keepers[host].pid}/ns/net", "--"]

    def shape(self, bit_per_s: float | None) -> None:
        """Give every link this rate in both directions; None takes the limit away."""
        for host in range(len(self._keepers)):
            for enter, device in ((self.enter(host), "eth0"), ([], f"h{host}")):
                shaped = b"tbf" in _run([*enter, "tc", "qdisc", "show", "dev", device, "root"])
                if bit_per_s is not None:
                    _run([*enter, "tc", "qdisc", "replace", "dev", device, "root", *_bucket(bit_per_s)])
                elif shaped:
                    _run([*enter, "tc", "qdisc", "del", "dev", device, "root"])
                _run([*enter, "ip", "link", "set", device, "gso_max_size", str(_largest_packet_bytes(bit_per_s))])

    def traffic(self) -> list[Traffic]:
        """What has crossed each host's interface so far."""
        return [_traffic(Path(f"/proc/{keeper.pid}/net/dev").read_text()) for keeper in self._keepers]

    def _inside(self, host: int, *command: str) -> None:
        _run([*self.enter(host), *command])


def _bucket(bit_per_s: float) -> list[str]:
    queue = max(SMALLEST_QUEUE_BYTES, round(bit_per_s / 8 * QUEUE_S))
    return ["tbf", "rate", f"{round(bit_per_s)}bit", "burst", str(_burst_bytes(bit_per_s)), "limit", str(queue)]


def _burst_bytes(bit_per_s: float) -> int:
    byte_per_s = bit_per_s / 8
    enough = min(byte_per_s * BURST_S, LARGEST_PACKET_BYTES / PACKET_SHARE)
    return round(max(SMALLEST_BURST_BYTES, enough, byte_per_s * REFILL_S))


def _largest_packet_bytes(bit_per_s: float | None) -> int:
    if bit_per_s is None:
        return LARGEST_PACKET_BYTES
    return min(LARGEST_PACKET_BYTES, round(PACKET_SHARE * _burst_bytes(bit_per_s)))


def _traffic(table: str) -> Traffic:
    """Of a /proc/net/dev, eth0's line: name, 8 figures received, 8 sent."""
    figures = next(line for line in table.splitlines() if line.strip().startswith("eth0:")).split(":")[1].split()
    return Traffic(sent=int(figures[8]), received=int(figures[0]))


def _ip(*arguments: str) -> None:
    _run(["ip", *arguments])


def _run(command: Sequence[str]) -> bytes:
    """Raises CalledProcessError with what the command said."""
    return subprocess.run(command, check=True, capture_output=True, timeout=30).stdout
