# ruff: noqa: E501  (one row a broken build)
"""Broken builds of recovery in place: name, file, line, what it becomes, test."""

KV, SCHEDULER, ENGINE, DISPATCH = (
    "serving/model/kv_cache.py",
    "serving/scheduler.py",
    "serving/engine.py",
    "serving/dispatch.py",
)
PLACE, STREAM, BEATS, IN_PLACE = (
    f"serving/recovery/{name}.py" for name in ("placement", "stream", "beats", "in_place")
)
ROLE, ROLES, NIC = (
    "serving/recovery/roles.py",
    "tests/recovery/test_roles.py",
    "tests/faults/test_nic_faults.py",
)
ABORTS, CHAOS = "tests/serving/test_planned_aborts.py", "tests/faults/test_chaos.py"
PURE, RANKS = "tests/recovery/test_in_place.py", "tests/recovery/test_in_place_ranks.py"
OUTBOX = "tests/recovery/test_outbox_ranks.py"

RECOVERY = (
    ("roll back keeps one token", KV, "del table[kept:]\n        self._lengths[sequence] = length\n", "del table[kept:]\n        self._lengths[sequence] = length + 1\n", PURE),
    ("roll back keeps a page", KV, "-(-length // self.page_size)\n        self._give_back", "-(-length // self.page_size) + 1\n        self._give_back", PURE),
    ("no roll back", "serving/forward.py", "self._kv.truncate(segment.request.spec.request_id, segment.start)", "pass", RANKS),
    ("lost page given away as it is", KV, "self.pages[:, page, :, :-1] = 0.0", "pass", PURE),
    ("lost pages still read", ENGINE, "if request.spec.request_id not in lost and", "if", RANKS),
    ("expert left on the dead", PLACE, "slots[list(gone)] = EMPTY", "pass", PURE),
    ("replica not looked for", PLACE, "if (slots == expert).any():", "if False:", PURE),
    ("expert mask not updated", "serving/forward.py", "        self.place([placement] * len(self._moe_layers))\n        self._idle_costs", "        self._idle_costs", RANKS),
    ("ended request handed out again", DISPATCH, "in gone and not has_ended(spec)", "in gone", PURE),
    ("handed out to the dead", "serving/balance.py", "int(np.argmin(_without(loads, dead)))", "int(np.argmin(loads))", PURE),
    ("replayed tokens forgotten", "serving/request.py", "self.spec.prompt_tokens + self.replayed", "self.spec.prompt_tokens", PURE),
    ("replayed token not checked", SCHEDULER, "range(max(least, self.start - first), max", "range(max(least, self.start + self.count - 1 - first), max", PURE),
    ("token counted before it is written", STREAM, 'row["count"] = count', 'row["count"] = count + 1', PURE),
    ("heartbeat never sent", BEATS, "self._device.engine.put(self._to,", "(lambda *_: None)(self._to,", RANKS),
    ("silence never noticed", BEATS, "> self._times.timeout_ps and", "> 1 << 60 and", RANKS),
    ("shell watches itself", BEATS, "if rank != shell:", "if True:", PURE),
    ("frozen rank comes back", "emulator/faults/injector.py", "if fenced:\n            self.end(now)", "if False:\n            self.end(now)", RANKS),
    ("death while others recover missed", IN_PLACE, "while self._changed and not self._undisturbed(self._set_up):\n                pass", "self._set_up()", RANKS),
    ("channels of old members", "serving/link.py", "self._exchange.regroup(np.array(living, np.int32))", "pass", RANKS),
    ("spare stands in for nobody", PLACE, "slots[spare] = slots[dead]", "pass", ROLES),
    ("a spare called in for a spare", ROLE, "served = [rank for rank in dead if rank not in self.out]", "served = list(dead)", ROLES),
    ("the last that serves leaves", ROLE, "and len(self.members) > 1", "", ROLES),
    ("lost expert loaded all the same", PLACE, "if expert in missing or not reloads:", "if False:", ROLES),
    ("joiner keeps what its giver keeps", PLACE, "slots[giver, given[-1]] = EMPTY", "pass", ROLES),
    ("lost completion never asked after", "serving/recovery/outbox.py", "now_ps - t.sent_ps > self._ask_again_ps]", "False]", OUTBOX),
    ("late completion delivered at once", "memsem/verbs/faults.py", "start_ps=delay_ps,", "start_ps=0,", NIC),
    ("full ring loses its receives", "memsem/verbs/faults.py", "held, self._held = self._held, []", "held, self._held = [], []", NIC),
    ("saturated taken for down", "emulator/probing.py", "if not reads and not writes:", "if not writes:", NIC),
    ("plans strike an idle pod", "emulator/faults/generate.py", "if m.in_flight >= self._in_flight]", "]", CHAOS),
    ("abort lost with who was to tell", DISPATCH, "self._again += [spec for spec in self._taken_back if not has_ended(spec)]", "pass", ABORTS),
    ("aborts not said again", "serving/aborts.py", 'does nothing."""\n        self._next = 0', 'does nothing."""', ABORTS),
    ("abort taken for a lost request", STREAM, 'row["finish"] = request.finish.encode()', "pass", PURE),
    ("abort nobody asked for accepted", "launch/chaos/history.py", "if e.aborted and abort_ps is None:", "if False:", CHAOS),
    ("degraded counted as exact", "launch/chaos/report.py", "sum(request not in degraded for request in equal)", "len(equal)", CHAOS),
    ("states of other pods drawn", "emulator/faults/generate.py", "states[number // len(others) % len(states)]", "STATES[number // len(others) % len(STATES)]", CHAOS),
)  # fmt: skip
