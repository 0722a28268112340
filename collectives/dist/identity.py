"""A process group but for its calls: who is in it, what torch asks about, its end.

A group that all ranks make in turn meets its members when it is made, as other backends connect theirs: they
may then use their groups in any order. One made by its members alone (`use_local_synchronization`), in an
order of their own, costs nothing before its first collective, which meets them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Self

import torch
import torch.distributed as dist

import emulator
from collectives.dist.p2p import Messages
from collectives.dist.work import GroupWork, timeout_ps
from collectives.groups import Group
from emulator import Device
from emulator.errors import UsageError
from emulator.spare import give_back
from superpod_torch import NAME

_Base: Any = dist.ProcessGroup  # its stub lists overloads that no Python method can have


class GroupIdentity(_Base):  # type: ignore[misc]
    """A group of ranks.

    Args:
        rank, size: of this process in the group.
        members: the group's ranks in the whole run; empty for all.
        name: torch's name of the group.
        timeout: virtual time a collective may take.
    """

    def __init__(
        self, rank: int, size: int, members: Sequence[int], name: str, timeout: timedelta | None
    ) -> None:
        super().__init__(rank, size)
        self._device = emulator.init()
        self._members = tuple(members) or tuple(range(size))
        self._check_place(rank, len(members) or self._device.num_ranks)
        self._timeout_ps = timeout_ps(timeout)
        self._name, self._desc = name, ""
        self._met: Group | None = None
        if not members:
            self._meet(Group.world(self._device))
        self._ended = GroupWork.ended()
        self._messages = Messages(self._device, name, self._members, lambda: self._timeout_ps)
        if not members:
            give_back()  # what start-up has touched
            return
        group = self.group  # groups of the same members are told apart by the order they are made in
        if self._made_by_all():
            group.meet()

    @classmethod
    def from_options(cls, options: Any) -> Self:
        """Make the group of torch's `_DistributedBackendOptions`.

        Raises:
            UsageError: rank or world size are not those the run was started with.
        """
        ranks = list(options.global_ranks_in_group)
        return cls(options.group_rank, options.group_size, ranks, options.group_id, options.timeout)

    def _check_place(self, rank: int, size: int) -> None:
        """Raises UsageError unless rank and size are those the processes were started with."""
        members, device = self._members, self._device
        if len(members) != size:
            raise UsageError(
                f"superpod: world size {len(members)} in a run of {size} ranks; start the program with "
                f"superpod run -n {len(members)} or mpirun -n {len(members)}"
            )
        if members[rank] != device.rank:
            raise UsageError(f"superpod: rank {members[rank]} was started as rank {device.rank}")

    @property
    def device(self) -> Device:
        """This rank of the machine."""
        return self._device

    @property
    def group(self) -> Group:
        """The machine's group; after `abort` another one, made at the first use."""
        if self._met is None:
            name = self._name if self._made_by_all() else None
            self._meet(Group.of(self._device, self._members, name))
        assert self._met is not None
        return self._met

    def _made_by_all(self) -> bool:
        """Whether torch counted the group: all ranks make it, at one place of their program. Names of others
        are hashes, of how many groups a rank has made, too: not the same on all members."""
        return self._name.isdigit()

    def _meet(self, group: Group) -> None:
        group.apart = True  # as in torch, a call may block on one rank and not on another
        group.timeout_ps = self._timeout_ps
        self._met = group

    # --- what torch asks about ---------------------------------------------------------------------------

    def getBackendName(self) -> str:
        """Return "superpod"."""
        return NAME

    name = _get_backend_name = getBackendName

    def getGroupName(self) -> str:
        """Return torch's name of the group, by which functional collectives find it."""
        return self._name

    def setGroupName(self, name: str) -> None:
        """Take torch's name."""
        self._name = name

    def getGroupDesc(self) -> str:
        """Return what torch says the group is for."""
        return self._desc

    def setGroupDesc(self, desc: str) -> None:
        """Take torch's description."""
        self._desc = desc

    _set_group_name, _set_group_desc = setGroupName, setGroupDesc
    group_name, group_desc = property(getGroupName), property(getGroupDesc)

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    def _get_backend(self, device: torch.device) -> Self:
        """Return itself: backend and group are one."""
        return self

    bound_device_id = None
    supports_coalescing = supports_time_estimate = supports_splitting = False

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """Return False: any memory will do."""
        return False

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the virtual time a call of this group may take, from the next one on."""
        self._timeout_ps = timeout_ps(timeout)
        if self._met is not None:
            self._met.timeout_ps = self._timeout_ps

    _set_default_timeout = set_timeout

    def abort(self) -> None:
        """Give the machine's group back (the world stays)."""
        if self._met is not None and not self._met.open:
            self._met.free()
        self._met = None

    shutdown = abort

    def _get_sequence_number_for_group(self) -> int:
        return 0

    def _set_sequence_number_for_group(self) -> None:
        """Nothing: collectives are numbered by the machine's group."""
