"""The process group of the backend "superpod": every call of torch's, as a collective of the machine.

torch calls it from Python (`dist.all_reduce`, FSDP2) and from C++ (the reducer of DistributedDataParallel,
functional collectives, which DTensor uses). Both find the methods here by name; where torch has two names for
one call, the second is an alias.

Left out: sparse and quantised tensors, `monitored_barrier`, splitting and shrinking groups.
Source: torch 2.13, `ProcessGroup.hpp` and `PyProcessGroup.hpp` for names and arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from collectives import coll
from collectives.dist import tensors as t
from collectives.dist.identity import GroupIdentity
from collectives.dist.p2p import MessageWork
from collectives.dist.tensors import Tensors
from collectives.dist.work import PS_PER_MICROSECOND, GroupWork, timeout_ps
from collectives.refusals import told

Lists = Sequence[Tensors]
_SHORTEST_PS = 1000 * PS_PER_MICROSECOND
"""The shortest time-out torch knows: it counts in milliseconds."""


class SuperpodProcessGroup(GroupIdentity):
    """The calls of a group of ranks; made as `GroupIdentity` is."""

    # --- one to all, all to one --------------------------------------------------------------------------

    def broadcast(self, tensors: Tensors, opts: Any = None, **_: Any) -> GroupWork:
        """Copy the root's tensor to all."""
        opts = opts or dist.BroadcastOptions()
        place = t.landing([t.one(tensors, "broadcast")], load=True)
        inner = coll.broadcast(self.group, place.array, opts.rootRank, **_how(opts, tensors))
        return GroupWork(inner, tensors, place.settle)

    def reduce(self, tensors: Tensors, opts: Any = None, **_: Any) -> GroupWork:
        """Reduce to the root; the other ranks' tensors stay as they are."""
        opts = opts or dist.ReduceOptions()
        tensor = t.one(tensors, "reduce")
        how = t.reduction(opts.reduceOp, tensors)
        mine = opts.rootRank == self.rank()
        place = t.landing([tensor]) if mine else None
        send = t.flat(how.scaled(tensor))
        inner = coll.reduce(
            self.group, send, place.array if place else None, how.op, opts.rootRank, **_how(opts, tensors)
        )
        return GroupWork(inner, tensors, place.settle if place else None)

    def gather(self, outputs: Lists, inputs: Tensors, opts: Any = None, **_: Any) -> GroupWork:
        """Bring all tensors to the root's list."""
        opts = opts or dist.GatherOptions()
        send = t.flat(t.one(inputs, "gather"))
        if opts.rootRank != self.rank():
            return GroupWork(coll.gather(self.group, send, None, opts.rootRank, **_how(opts, inputs)), [])
        whole = self._list(outputs, "gather", "the root's list of outputs")
        place = t.landing(whole)
        inner = coll.gather(self.group, send, place.array, opts.rootRank, **_how(opts, inputs))
        return GroupWork(inner, whole, place.settle)

    def scatter(self, outputs: Tensors, inputs: Lists, opts: Any = None, **_: Any) -> GroupWork:
        """Bring one tensor of the root's list to each rank."""
        opts = opts or dist.ScatterOptions()
        place = t.landing([t.one(outputs, "scatter")])
        send = None
        if opts.rootRank == self.rank():
            send = t.packed(self._list(inputs, "scatter", "the root's list of inputs"))
        inner = coll.scatter(self.group, send, place.array, opts.rootRank, **_how(opts, outputs))
        return GroupWork(inner, outputs, place.settle)

    # --- all to all: the same for everybody --------------------------------------------------------------

    def allreduce(self, tensors: Tensors, opts: Any = None, **_: Any) -> GroupWork:
        """Reduce in place, on all ranks. Several tensors go as one, behind each other."""
        opts = opts or dist.AllreduceOptions()
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        how = t.reduction(getattr(opts, "reduceOp", opts), tensors)
        place = t.landing(tensors, load=True)
        send = place.array if how.factor is None else t.packed([how.scaled(tensor) for tensor in tensors])
        inner = coll.all_reduce(self.group, send, place.array, how.op, **_how(opts, tensors))
        return GroupWork(inner, tensors, place.settle)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None, **_: Any) -> GroupWork:
        """As `allreduce`; tensors of different dtypes are several collectives."""
        kinds = list(dict.fromkeys(tensor.dtype for tensor in tensors))
        works = [self.allreduce([x for x in tensors if x.dtype == kind], opts) for kind in kinds]
        return _together(works, tensors)

    def allgather(self, outputs: Lists, inputs: Tensors, opts: Any = None, **_: Any) -> GroupWork:
        """Bring everyone's tensor to everyone's list; the list may say that sizes differ."""
        tensor = t.one(inputs, "all_gather")
        whole = self._list(outputs, "all_gather", "the list of outputs")
        t.check_count("all_gather", "my place in the list", whole[self.rank()].numel(), tensor.numel())
        place = t.landing(whole)
        how = _how(opts, inputs)
        if t.equal_sizes(whole):
            inner = coll.all_gather(self.group, t.flat(tensor), place.array, **how)
        else:
            counts = [output.numel() for output in whole]
            inner = coll.all_gather_v(self.group, t.flat(tensor), place.array, counts, **how)
        return GroupWork(inner, whole, place.settle)

    def all_gather_single(
        self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None, **_: Any
    ) -> GroupWork:
        """Bring everyone's tensor, behind each other, into one."""
        t.check_count("all_gather", "the output", output.numel(), self.size() * tensor.numel())
        t.check_dtypes([output, tensor])
        place = t.landing([output])
        inner = coll.all_gather(self.group, t.flat(tensor), place.array, **_how(opts, [tensor]))
        return GroupWork(inner, [output], place.settle)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None, **_: Any
    ) -> GroupWork:
        """Several `all_gather_single` as one collective of bytes."""
        t.check_count("all_gather", "the list of outputs", len(outputs), len(inputs))
        if len(inputs) == 1:
            return self.all_gather_single(outputs[0], inputs[0], opts)
        send = t.raw(inputs)
        rows = t.Rows(self.size(), send.size, outputs, inputs)
        inner = coll.all_gather(self.group, send, rows.array, **_how(opts))
        return GroupWork(inner, outputs, rows.settle)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather_coalesced(self, outputs: Lists, inputs: Tensors, opts: Any = None, **_: Any) -> GroupWork:
        """Several `allgather`: `outputs[rank][k]` gets `inputs[k]` of the rank."""
        works = [self.allgather([[row[k] for row in outputs]], [x], opts) for k, x in enumerate(inputs)]
        return _together(works, [x for row in outputs for x in row])

    def reduce_scatter(self, outputs: Tensors, inputs: Lists, opts: Any = None, **_: Any) -> GroupWork:
        """Reduce everyone's list; each rank gets the tensor of its place. Sizes may differ by place."""
        opts = opts or dist.ReduceScatterOptions()
        output, whole = (
            t.one(outputs, "reduce_scatter"),
            self._list(inputs, "reduce_scatter", "the list of inputs"),
        )
        t.check_count("reduce_scatter", "the output", output.numel(), whole[self.rank()].numel())
        how = t.reduction(opts.reduceOp, whole)
        place, send = t.landing([output]), t.packed([how.scaled(tensor) for tensor in whole])
        given = _how(opts, whole)
        if t.equal_sizes(whole):
            inner = coll.reduce_scatter(self.group, send, place.array, how.op, **given)
        else:
            counts = [tensor.numel() for tensor in whole]
            inner = coll.reduce_scatter_v(self.group, send, place.array, counts, how.op, **given)
        return GroupWork(inner, outputs, place.settle)

    def reduce_scatter_single(
        self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None, **_: Any
    ) -> GroupWork:
        """Reduce everyone's tensor; each rank gets its part of the result."""
        opts = opts or dist.ReduceScatterOptions()
        t.check_count("reduce_scatter", "the input", tensor.numel(), self.size() * output.numel())
        t.check_dtypes([output, tensor])
        how = t.reduction(opts.reduceOp, [tensor])
        place, send = t.landing([output]), t.flat(how.scaled(tensor))
        inner = coll.reduce_scatter(self.group, send, place.array, how.op, **_how(opts, [tensor]))
        return GroupWork(inner, [output], place.settle)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None, **_: Any
    ) -> GroupWork:
        """Several `reduce_scatter_single`."""
        pairs = zip(outputs, inputs, strict=True)
        return _together([self.reduce_scatter_single(out, x, opts) for out, x in pairs], outputs)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def barrier(self, opts: Any = None, timeout: Any = None, **_: Any) -> GroupWork:
        """Wait for all members. `timeout`, or `opts.timeout`, counts for this call, the group's otherwise."""
        if timeout is not None:
            return GroupWork(coll.barrier(self.group, async_op=True), [], limit_ps=timeout_ps(timeout))
        group = self._met or self.group
        blocking = opts is None or not opts.asyncOp
        took_ps = group.quick() if blocking and group.quick is not None else -1
        if took_ps >= 0:
            if took_ps >= _SHORTEST_PS:  # reading a time-out takes longer on the host than all before
                coll.check_time(group, took_ps, _limit_ps(opts))
            return self._ended
        limit_ps = _limit_ps(opts)
        if blocking and limit_ps is None:
            coll.meet(group)
            return self._ended
        return GroupWork(coll.barrier(group, async_op=True), [], limit_ps=limit_ps)

    # --- all to all: to each something else --------------------------------------------------------------

    def all_to_all_single(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_splits: Sequence[int] | None = None,
        input_splits: Sequence[int] | None = None,
        opts: Any = None,
        **_: Any,
    ) -> GroupWork:
        """Send each rank its rows of `tensor`; rows of others land in `output`, by rank."""
        t.check_dtypes([output, tensor])
        size, place, send, how = self.group.size, t.landing([output]), t.flat(tensor), _how(opts, [tensor])
        if not input_splits and not output_splits:
            t.check_even(tensor, size, "input")
            t.check_even(output, size, "output")
            inner = coll.all_to_all(self.group, send, place.array, **how)
        else:
            send_counts = t.counts_of(tensor, input_splits or (), size, "input")
            recv_counts = t.counts_of(output, output_splits or (), size, "output")
            inner = coll.all_to_all_v(self.group, send, send_counts, place.array, recv_counts, **how)
        return GroupWork(inner, [output], place.settle)

    alltoall_base = all_to_all_single

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None, **_: Any) -> GroupWork:
        """Send each rank the tensor of its place in the list."""
        for what, given in (("the list of outputs", outputs), ("the list of inputs", inputs)):
            t.check_count("all_to_all", what, len(given), self.size())
        t.check_dtypes([*outputs, *inputs])
        place, send = t.landing(outputs), t.packed(inputs)
        counts = [x.numel() for x in inputs], [x.numel() for x in outputs]
        inner = coll.all_to_all_v(self.group, send, counts[0], place.array, counts[1], **_how(opts, inputs))
        return GroupWork(inner, outputs, place.settle)

    # --- one to one --------------------------------------------------------------------------------------

    def send(self, tensors: Tensors, dst: int, tag: int = 0) -> MessageWork:
        """Start a send to a group rank."""
        return self._messages.send(t.one(tensors, "send"), dst, tag)

    def recv(self, tensors: Tensors, src: int, tag: int = 0) -> MessageWork:
        """Start a receive from a group rank."""
        return self._messages.receive(t.one(tensors, "recv"), src, tag)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> MessageWork:
        """Start a receive from whoever sends first."""
        return self._messages.receive(t.one(tensors, "recv"), None, tag)

    # --- parts -------------------------------------------------------------------------------------------

    def _list(self, lists: Lists, call: str, what: str) -> Tensors:
        """Return the one list with a tensor for each rank. Raises SizeError."""
        t.check_count(call, what, len(lists), 1)
        t.check_count(call, what, len(lists[0]), self.size())
        return lists[0]


_UNTOLD = {"barrier"}  # has nothing of its own to refuse
for _name, _call in list(vars(SuperpodProcessGroup).items()):
    if callable(_call) and not _name.startswith("__") and _name not in _UNTOLD:
        setattr(SuperpodProcessGroup, _name, told(_call))


def _limit_ps(opts: Any) -> int | None:
    """Return the time-out of one call; None where it is the group's."""
    return None if opts is None else timeout_ps(opts.timeout)


def _how(opts: Any, tensors: Tensors = ()) -> dict[str, Any]:
    """Return the keywords of a collective: the dtype numpy has no name for, and whether the caller waits."""
    how: dict[str, Any] = {"async_op": True} if getattr(opts, "asyncOp", False) else {}
    kind = t.kind_of(tensors[0]) if len(tensors) else None
    return how if kind is None else {**how, "dtype": kind}


def _together(works: Sequence[GroupWork], results: Tensors) -> GroupWork:
    """Return one work that ends with the last of several."""

    def finish() -> None:
        for work in works:
            work.wait()

    return GroupWork(None, results, finish)
