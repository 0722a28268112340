"""Numbers both implementations share: states of a rank, kinds of waits, reasons why a run cannot go on."""

RUN, BLOCKED, EXITED, DEAD = range(4)
(W_NONE, W_WAIT, W_QUIET, W_GET, W_ATOMIC, W_READ, W_OBSERVE, W_TEST, W_POLL, W_EXCHANGE) = range(10)
W_SCHEDULE = 10
OPERATIONS = (
    "",
    "wait",
    "quiet",
    "wait_get",
    "atomic",
    "read",
    "observe",
    "test",
    "test",
    "exchange",
    "schedule",
)
COMPARISONS = ("==", "!=", ">", ">=", "<", "<=")
(
    FATAL_NONE,
    FATAL_DEADLOCK,
    FATAL_LIVELOCK,
    FATAL_LOST,
    FATAL_DIRTY,
    FATAL_WALL,
    FATAL_ABORT,
    FATAL_OPERATIONS,
) = range(8)
FATAL_NODES, FATAL_LOG, FATAL_TRACE, FATAL_REUSE, FATAL_INBOX, FATAL_STREAM, FATAL_GROUP = range(8, 15)
INTERRUPTED = 15
"""A change of membership ended the wait; the run goes on."""
OVERFLOWS = {
    FATAL_OPERATIONS: "too many operations under way at once",
    FATAL_NODES: "no room for pending events (raise node_bytes)",
    FATAL_LOG: "the apply log of rank {rank} is full (raise log_entries, or bound what is outstanding)",
    FATAL_TRACE: "the trace ring is full and could not be written out",
    FATAL_REUSE: "an exchange was posted on a channel whose buffers are still in use",
    FATAL_INBOX: "the inbox of rank {rank} is full (raise inbox_entries, or let it take its records)",
    FATAL_GROUP: "rank {rank} gave other members for a channel than the rest of its group",
    FATAL_STREAM: "rank {rank} used one stream towards two ranks",
}
LIMIT_PS = 1 << 60
ROW_LIMIT = 1 << 31
RECORD_LIMIT = 1 << 40
NOT_A_MEMBER = -(1 << 30)  # an exchange on a channel of groups that I am in none of
