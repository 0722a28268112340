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
PURE, RANKS = "tests/recovery/test_in_place.py", "tests/recovery/test_in_place_ranks.py"

RECOVERY = (
    ("roll back keeps one token", KV, "self._lengths[sequence] = length\n", "self._lengths[sequence] = length + 1\n", PURE),
    ("roll back keeps a page", KV, "-(-length // self.page_size)\n        self._give_back", "-(-length // self.page_size) + 1\n        self._give_back", PURE),
    ("no roll back", "serving/forward.py", "self._kv.truncate(segment.request.spec.request_id, segment.start)", "pass", RANKS),
    ("lost page given away as it is", KV, "self.pages[:, page, :, :-1] = 0.0", "pass", PURE),
    ("lost pages still read", ENGINE, "if request.spec.request_id not in lost:", "if True:", RANKS),
    ("expert left on the dead", PLACE, "slots[list(dead)] = EMPTY", "pass", PURE),
    ("replica not looked for", PLACE, "if (slots == expert).any():", "if False:", PURE),
    ("expert mask not updated", "serving/forward.py", "        self.place([placement] * len(self._moe_layers))\n        self._idle_costs", "        self._idle_costs", RANKS),
    ("ended request handed out again", DISPATCH, "in gone and not has_ended(spec)", "in gone", PURE),
    ("handed out to the dead", DISPATCH, "masked[self._dead] = np.iinfo(np.int64).max", "pass", PURE),
    ("replayed tokens forgotten", "serving/request.py", "self.spec.prompt_tokens + self.replayed", "self.spec.prompt_tokens", PURE),
    ("replayed token not checked", SCHEDULER, "range(max(0, self.start - first), max", "range(max(0, self.start + self.count - 1 - first), max", PURE),
    ("token counted before it is written", STREAM, 'row["count"] = count', 'row["count"] = count + 1', PURE),
    ("heartbeat never sent", BEATS, "self._device.engine.put(self._to,", "(lambda *_: None)(self._to,", RANKS),
    ("silence never noticed", BEATS, "> self._times.timeout_ps:", "> 1 << 60:", RANKS),
    ("shell watches itself", BEATS, "if rank != shell:", "if True:", PURE),
    ("frozen rank comes back", "emulator/faults/injector.py", "if fenced:\n            self.end(now)", "if False:\n            self.end(now)", RANKS),
    ("death while others recover missed", IN_PLACE, "while not self._undisturbed(self._set_up):\n                pass", "self._set_up()", RANKS),
    ("channels of old members", "serving/link.py", "self._exchange.regroup(np.array(living, np.int32))", "pass", RANKS),
)  # fmt: skip
