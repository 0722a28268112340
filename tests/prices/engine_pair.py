"""Two ranks at a chosen distance, on an engine or on the sequential oracle: what calibration measures."""

import dataclasses
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))

from harness import KINDS, run, run_oracle

from emulator.engine.api import GT, LOG_PUT
from emulator.engine.posts import K_GET, K_PUT, K_RECV, K_SEND
from emulator.fabric import Fabric, Shape
from emulator.profile import Profile
from emulator.topology import LinkClass, Topology, engine_config

MACHINES = ("oracle", *KINDS)
CLASSES = {"same-chip": LinkClass.CHIP, "same-node": LinkClass.NODE, "cross-node": LinkClass.POD}
_DIES = {"same-chip": (2, 2), "same-node": (1, 2), "cross-node": (1, 1)}


class Pair:
    """Ranks 0 and 1 of a profile's machine, as near to each other as `pair` says.

    Args:
        machine: "oracle", "python" or "c".
    """

    def __init__(self, profile: Profile, pair: str, machine: str) -> None:
        chip, node = _DIES[pair]
        self.config = dataclasses.replace(
            engine_config(profile, 2), dies_per_chip=chip, dies_per_node=node, log_entries=1024
        )
        self.machine, self.cls = machine, CLASSES[pair]
        self.fabric = Fabric(profile, Topology.from_profile(profile, 1))

    def run(self, first, second):
        """Run one list of (call, arguments) a rank; returns (value, time) of each, and the apply logs."""
        programs = {0: (call for call in first), 1: (call for call in second)}
        if self.machine == "oracle":
            logs, _, _, applied = run_oracle(self.config, [programs[0], programs[1]])
        else:
            logs, _, _, _, applied = run(self.config, self.machine, programs.get, 8, threads=True)
        return logs, applied

    def deliveries(self, posts: list[dict], step_ps: int = 0) -> list[int]:
        """Post puts at once from time 0 on; returns when each is delivered, ps."""
        rows = [{**row, "log_kind": LOG_PUT, "real_bytes": 1, "file_id": 1} for row in posts]
        _, applied = self.run([("post", {"posts": rows, "step": step_ps}), ("quiet", {})], [])
        return [entry[0] for entry in applied[1]]

    def put_ps(self, nbytes: int, shape: Shape, step_ps: int = 0) -> int:
        """When a put from time 0 on is delivered."""
        return self.deliveries([row(K_PUT, nbytes, shape)], step_ps)[0]

    def get_ps(self, nbytes: int, shape: Shape, step_ps: int = 0) -> int:
        """When a get from time 0 on is in."""
        posts = {"posts": [row(K_GET, nbytes, shape)], "step": step_ps}
        logs, _ = self.run([("post", posts), ("wait_get", {"handle": 1})], [])
        return logs[0][1][1]

    def send_ps(self, nbytes: int, shape: Shape, step_ps: int = 0) -> int:
        """When a receive that was posted in time completes for a send from time 0 on."""
        send = {"posts": [{**row(K_SEND, nbytes, shape), "context": 9, "rnr_retries": 7}], "step": step_ps}
        receive = {"posts": [{"kind": K_RECV, "context": 9}], "step": 0}
        arrived = {"conditions": [(self.config.words_per_rank, GT, 0)], "any_": False, "timeout": None}
        logs, _ = self.run([("post", send)], [("post", receive), ("wait", arrived)])
        return logs[1][1][1]


def row(kind: int, nbytes: int, shape: Shape) -> dict:
    """Fields of a post to rank 1."""
    return {"kind": kind, "peer": 1, "nbytes": nbytes, **shape._asdict()}
