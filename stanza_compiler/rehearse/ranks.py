"""The processes of one run, a few on each host."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from stanza_compiler.rehearse.hosts import Hosts
from stanza_compiler.rehearse.messages import Network, Run

PORT = 29_500


@contextmanager
def started(run: Run, network: Network, hosts: Hosts, number: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The ranks of the sandbox's run `number`, in order; none of them outlives the context."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        with ExitStack() as files:
            for rank in range(network.hosts * run.ranks_per_host):
                host, local_rank = divmod(rank, run.ranks_per_host)
                out, err = (files.enter_context(path.open("wb")) for path in logs(run, rank))
                enter_quota = [f"echo $$ > {folder}/cgroup.procs" for folder in network.quota_folders[host : host + 1]]
                command = " && ".join([*enter_quota, 'exec "$@"'])
                processes.append(
                    subprocess.Popen(
                        ["sh", "-c", command, "sh", *hosts.enter(host), sys.executable, *run.command],
                        env=_environment(run, network, hosts, rank, local_rank, PORT + number),
                        stdin=subprocess.DEVNULL,
                        stdout=out,
                        stderr=err,
                        # Not a session: the kernel would share its cores among sessions, whatever waits in them.
                        process_group=0,
                    )
                )
        yield processes
    finally:
        for process in processes:
            # Its own group: data loaders that it started end with it.
            os.killpg(process.pid, signal.SIGKILL) if process.poll() is None else None
        for process in processes:
            process.wait()


def logs(run: Run, rank: int) -> tuple[Path, Path]:
    """Where a rank's stdout and stderr go."""
    return Path(run.folder, f"rank{rank}.out"), Path(run.folder, f"rank{rank}.err")


def _environment(run: Run, network: Network, hosts: Hosts, rank: int, local_rank: int, port: int) -> dict[str, str]:
    return {
        # Ranks share this machine's cores, as they would not with as many machines.
        "OMP_NUM_THREADS": "1",
        **os.environ,
        "RANK": str(rank),
        "WORLD_SIZE": str(network.hosts * run.ranks_per_host),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(run.ranks_per_host),
        "MASTER_ADDR": hosts.address(0),
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "eth0",
        "NCCL_SOCKET_IFNAME": "eth0",
        "PYTHONUNBUFFERED": "1",
    }
