# ruff: noqa: E501  (one row a broken build)
"""Broken builds of dispatch and combine, symmetric memory and groups; rows of `broken_builds.BUILDS`.

docs/bug_reports.md says which public report each belongs to. The tests start real ranks, so one at a time.
"""

_SIDE, _MOVES, _AREA = "collectives/ep/side.py", "collectives/ep/moves.py", "collectives/ep/area.py"
_GROUPS, _WORK, _TORCH = "collectives/groups.py", "collectives/work.py", "collectives/dist/process_group.py"
_SCHEMES, _REPORTS, _TURNS = (
    "tests/ep/test_schemes.py",
    "tests/ep/test_reports.py",
    "tests/ep/test_reports_groups.py",
)
_BUFFER, _COLL, _AGREE = (
    "tests/ep/test_buffer.py",
    "tests/collectives/test_coll_groups.py",
    "tests/collectives/test_coll_agree.py",
)
_SURVIVORS, _DEAD = "tests/collectives/test_coll_survivors.py", "tests/ep/test_dead_ranks.py"
_DIST = "tests/dist/test_backend.py"
_UNLIKE = "tests/collectives/test_disagreement.py"

COLLECTIVE = (
    # dispatch and combine
    ("rank without tokens skips", _MOVES, "            side.exchange(opening, tag)", "            route.spread.tokens and side.exchange(opening, tag)", f"{_SCHEMES} closed_form_of_bytes"),
    ("counts cut", _SIDE, "np.divmod(fields, np.int32(blocks.shape.most + 1))", "np.divmod(fields, np.int32(blocks.shape.most))", f"{_SCHEMES} closed_form_of_bytes"),
    ("bytes of tokens not counted", "collectives/ep/traffic.py", "m + mine.tokens * b", "m + 0 * b", f"{_SCHEMES} closed_form_of_bytes"),
    ("dispatch and combine share blocks", _AREA, "at, channel, word = at + 2 * (size + self.table_bytes), channel + 1, word + WORDS", "at, channel, word = at, channel + 1, word + WORDS", f"{_BUFFER} low_latency"),
    ("a third operation let in", "collectives/ep/masked.py", "if not any(side.busy for side in self._moves.sides[number]):", "if True:", f"{_BUFFER} low_latency"),
    ("cached dispatch needs tokens", "collectives/ep/normal.py", "np.empty((handle.route.topk_idx.shape[0], 0), np.int64)", "np.empty((max(1, handle.route.topk_idx.shape[0]), 0), np.int64)", f"{_BUFFER} normal"),
    ("overflow not seen", _MOVES, "check_rows(rows, self.ranks.members, sent.limit)", "pass", f"{_REPORTS} what_one_rank_does_wrong"),
    ("trouble raised at the call", _MOVES, "blocks, trouble = side.blocks(form, most), call.trouble", "blocks, trouble = side.blocks(form, most), call.trouble\n        if trouble:\n            raise InternalError(trouble)", f"{_REPORTS} what_one_rank_does_wrong"),
    ("capacities not compared", "collectives/ep/facts.py", "sizes = words, hidden, topk, experts, capacity", "sizes = words, hidden, topk, experts, 0", f"{_BUFFER} low_latency"),
    ("missing rank not named", "collectives/ep/tables.py", "if not (states != states[0]).any():", "if True:", f"{_REPORTS} different_calls"),
    ("one block for all events", _SIDE, "self.place.block + parity * self.place.block_bytes, shape.nbytes", "self.place.block, shape.nbytes", f"{_REPORTS} a_rank_frozen"),
    ("counter taken for data", _MOVES, "side.again(route.spread.pairs * sent.costs.row_bytes)", "pass", f"{_REPORTS} counter_does_not_stand"),
    ("one rail of a payload waited for", _SIDE, "            self._await(CHUNKS + self.event % 2, self.area.ranks.size)", "            self._await(CHUNKS + self.event % 2, 1)", f"{_SCHEMES} planes_their_own"),
    ("blocks as large as the own group needs", _AREA, "        out_bytes, back_bytes = _largest(ranks, out_bytes, back_bytes)\n", "", _TURNS),
    ("channel kept with its old members", _AREA, "self.open_groups(always=kept is not None)", "self.open_groups()", _TURNS),
    ("ranks of a group in 8 bits", _AREA, "place.channel, self.ranks.members.astype(np.int32)", "place.channel, (self.ranks.members & 255).astype(np.int32)", "tests/ep/test_many_ranks.py"),
    ("all back ends on one channel", _AREA, "        self._channels = channel, count\n", "        channel = device.library.setdefault('one', channel)\n        self._channels = channel, count\n", _TURNS),
    ("expert served by another trampoline", "collectives/xccl/relay_plan.py", "return (trampoline * self.group_size + member) * slots + slot", "return (member * self.group_size + trampoline) * slots + slot", "tests/xccl/test_relay_plan.py renumbered"),
    ("mask not said", _AREA, "view(np.int64)[2] = mask", "view(np.int64)[2] = bool(mask)", _DEAD),
    ("dead rank not refused", "collectives/ep/masked.py", "        if dead:\n            raise RankLostError", "        if False:\n            raise RankLostError", _DEAD),
    ("mask on the channels of the one before", _AREA, "(2 if self._set == 1 else 1) if mask", "1 if mask", _DEAD),
    ("refusal of an expert exchange kept to oneself", "collectives/moe_refusals.py", "        pair.give_up(costs)\n", "        raise FabricError('')\n", f"{_UNLIKE} exchange-tokens"),
    ("rows past the capacity kept to oneself", "collectives/moe_rows.py", "raise give_up(self.device, self._back[micro_batch], self._combine_costs, UsageError(text))", "raise UsageError(text)", f"{_UNLIKE} exchange-overflow"),
    ("a sleeper does not hear of a refusal", "collectives/moe.py", "            pair.pull(result, self._no_plan().counts)\n", "", f"{_UNLIKE} idle and combine"),
    ("capacity not part of what all make", "collectives/moe_base.py", "at most {self.max_rows} rows", "rows", f"{_UNLIKE} exchange-made"),
    ("outputs refused at an expert kept to oneself", "collectives/xccl/relay_base.py", "            if self.role == \"expert\":\n", "            if False:\n", f"{_UNLIKE} a2e-outputs"),
    ("micro-batches of A2E not told apart", "collectives/xccl/relay_base.py", "names[stage.word] = f\"in {call} of micro-batch {number}\"", "names[stage.word] = 'in it'", f"{_UNLIKE} a2e-batch"),
    ("a death told as a call that differs", _AREA, "if isinstance(error, RankLostError) and np.isin(error.ranks, self.ranks.members).any():", "if False:", f"{_UNLIKE} cann and dead"),
    # groups
    ("elements of MPI carried as bytes", "collectives/mpi_specs.py", "return raw if kind is None else", "return raw if True else", f"{_UNLIKE} mpi-Bcast"),
    ("derived types without their basic one", "memsem/datatypes.py", "return cls._merged([kind._copies(starts)], kind.base)", "return cls._merged([kind._copies(starts)], '')", f"{_UNLIKE} mpi-Bcast"),
    ("messages of a group without their type", "collectives/p2p.py", "self._post(data, \"Isend\", dest, tag, _kind_of(dtype))", "self._post(data, \"Isend\", dest, tag)", f"{_UNLIKE} message-dtype"),
    ("making communicators in any call", "memsem/communicator.py", "if len({row[0] for row in rows}) > 1:", "if False:", f"{_UNLIKE} mpi-communicators"),
    ("the root's counts not said", "collectives/rooted.py", "places = np.flatnonzero(theirs != roots).tolist()", "places = []", f"{_UNLIKE} gather_v-size"),
    ("deaths told when the host sees them", "emulator/device.py", "return self.board.dead if self._told is None else self._told", "return self.board.dead", _SURVIVORS),
    ("overlapping groups share words", _GROUPS, "return (2 * self._slot + call % 2) * self.space.words", "return (call % 2) * self.space.words", f"{_COLL} test_groups and shared"),
    ("groups told apart by when they were made", _GROUPS, "= space.made.get((chosen, name), 0) + 1", "= len(space.made) + 1", f"{_COLL} test_groups and shared"),
    ("works of other groups stand still", "collectives/progress.py", "return bool(space.busy) and bool(_in_need(space, mine))", "return False", "tests/collectives/test_progress.py"),
    ("reason of a choice not kept", "collectives/calls.py", "self._note = (kind, nbytes, name, why)", "self._note = (kind, nbytes, name, '')", f"{_COLL} test_groups and shared"),
    ("offsets of 32 bits", "collectives/pieces.py", "index = _index(starts // unit, sizes // unit)", "index = _index(starts.astype(np.int32) // unit, sizes // unit)", f"{_COLL} two_to_the_31"),
    ("barriers wait for the dead", "emulator/device.py", "            self.engine.open_group(BARRIER_CHANNEL, living)\n", "", _SURVIVORS),
    ("order of collectives not explained", "collectives/disagreement.py", "    missing = absent(group.store.last_calls(), work.number, group.members)\n    table", "    return\n    missing = absent(group.store.last_calls(), work.number, group.members)\n    table", f"{_AGREE} order"),
    ("descriptors not compared", _WORK, "            compare(self)\n        self._moving = None", "            pass\n        self._moving = None", f"{_AGREE} differences"),
    ("time-out without effect", _WORK, "return movement.Here(self.group, self.number, self._phase, until_ps)", "return movement.Here(self.group, self.number, self._phase, None)", f"{_AGREE} its_instant"),
    ("set_timeout without effect", "collectives/dist/identity.py", "    def set_timeout(self, timeout: timedelta) -> None:\n        \"\"\"Set the virtual time a call of this group may take, from the next one on.\"\"\"\n        self._timeout_ps = timeout_ps(timeout)", "    def set_timeout(self, timeout: timedelta) -> None:\n        pass", f"{_DIST} errors and size"),
    ("strides ignored", "collectives/dist/tensors.py", "if len(arrays) == 1 and arrays[0].flags.c_contiguous:", "if len(arrays) == 1:", f"{_DIST} over_rma"),
    ("barriers in less code never late", "collectives/coll.py", "if limit_ps is not None and took_ps > limit_ps:", "if False:", f"{_DIST} less_code"),
    ("barriers in less code not counted", "collectives/at_once.py", "            group.calls = number\n            chosen", "            chosen", f"{_DIST} less_code"),
    ("barriers in less code not compared", "collectives/at_once.py", "            if not agreed:\n                compare(_called", "            if False:\n                compare(_called", f"{_DIST} errors and order"),
    ("never prepared after a late first call", "collectives/disagreement.py", "if not group.prepared:", "if work.number == 1:", f"{_DIST} less_code"),
    ("records never wait", "emulator/engine/native.py", "if not self._local[WAITING]:", "if True:", f"{_DIST} every_call and started"),
    ("groups of torch meet at their first use", "collectives/dist/identity.py", "        if self._made_by_all():\n            group.meet()", "        del group", f"{_DIST} any_order"),
    ("groups of torch told apart by their first use", "collectives/dist/identity.py", "        group = self.group  # groups of the same members are told apart by the order they are made in\n        if self._made_by_all():\n            group.meet()", "        return", f"{_DIST} any_order and local"),
    ("futures wait at once", "collectives/dist/work.py", "        if self._future is None:\n", "        if self._future is None:\n            self.wait()\n", f"{_DIST} buckets"),
    ("works leave at waits only", _WORK, "progress.catch_up(self.group)", "pass", f"{_DIST} buckets"),
    # symmetric memory
    ("teams share words", "memsem/team.py", "self._first = block * world.words", "self._first = min(block, 1) * world.words", "tests/memsem/test_teams.py overlapping"),
    ("empty put skipped", "memsem/movement.py", "        ops.enter()\n        low, rd_below", "        if not data.size:\n            return None\n        ops.enter()\n        low, rd_below", "tests/memsem/test_signals.py still_signal"),
    ("any signal counts for all", "memsem/happens_before.py", "certain = [s for s in adds if total - s.value < need]", "certain = adds", "tests/memsem/test_checker.py additive_counter"),
    ("reset without effect", "memsem/signals.py", "self._device.post(post, None, Op.PUT)\n        self._ops.note(Kind.RESET", "self._ops.note(Kind.RESET", "tests/memsem/test_signals.py resetting"),
    ("quiet waits for nothing", "memsem/operations.py", "        self.device.quiet()\n        self._completed()", "        self._completed()", "tests/memsem/test_signals.py after_quiet"),
    ("words not cleared", "memsem/heap.py", "        self._clear(piece, clear)\n        self._agree", "        self._agree", "tests/memsem/test_heap.py first_signal"),
)  # fmt: skip
"""(name, file, line, wrong, test)."""
