/* What lies where in the shared buffer. Offsets only: the buffer has another address in every process.
 *
 *   core_t | ranks | trees | path tables | words | conditions | chains | rounds | logs | slots | operations | trace | node arena
 */
#ifndef SUPERPOD_LAYOUT_H
#define SUPERPOD_LAYOUT_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <stdint.h>

typedef int64_t i64;
typedef int32_t i32;
typedef uint64_t u64;
typedef uint32_t u32;

#define INF ((i64)1 << 62)
#define LATE ((i64)1 << 62) /* time-outs, observations and resumptions sort after everything else at their instant */
#define MAX_RANKS 4095
#define SP_VERSION 3 /* of the functions native.py calls; change both together */

enum { SELF, CHIP, NODE, POD };
enum { RUN, BLOCKED, EXITED, DEAD };
/* Stages grow along one operation; those from S_CHECK on are LATE. */
enum { S_NONE, S_ROW, S_EGRESS, S_INGRESS, S_DELIVER, S_ACK, S_ATOMIC, S_RESPONSE, S_PULL, S_PULL_IN, S_BULK,
       S_CHECK, S_TIMEOUT, S_POLL, S_RESUME };
enum { OP_PUT, OP_GET, OP_ATOMIC };
enum { W_NONE, W_WAIT, W_QUIET, W_GET, W_ATOMIC, W_READ, W_OBSERVE, W_TEST, W_POLL, W_EXCHANGE };
enum { C_COMPUTE = 32, C_PUT, C_GET, C_FENCE, C_POST, C_FINISH }; /* calls that do not block, for the digest */
enum { FATAL_NONE, FATAL_DEADLOCK, FATAL_LIVELOCK, FATAL_LOST, FATAL_DIRTY, FATAL_WALL, FATAL_ABORT, FATAL_OPERATIONS,
       FATAL_NODES, FATAL_LOG, FATAL_TRACE, FATAL_REUSE };
enum { PORT_EGRESS, PORT_INGRESS, PORT_LOCAL };
enum { KIND_PUT, KIND_GET, KIND_META, KIND_PULL };
enum { LOG_PUT = 1, LOG_SNAPSHOT };

typedef struct {
    i64 n, dies_per_chip, dies_per_node, put[4], request[4], response[4], ack[4], write_bw[4], read_bw[4];
    i64 price, poll, poll_max, words, channels, chain_steps, log_entries, lookahead, wall_ms, keep_going, livelock;
    i64 trace_records, node_bytes;
} config_t;

typedef struct { i64 t, key, val; i32 peer, aux; } node_t; /* a pending event */
typedef struct { i64 file, file_offset, offset, nbytes, op_id; } ref_t;
typedef struct {
    i64 bytes, word, value, compare, seq;
    ref_t ref;
    i32 kind, op, poster, peer, has_ref, next; /* next: free list, or the poster's open gets */
} op_t;
typedef struct { i64 t; i32 kind, rank; i64 file, file_offset, offset, nbytes, op_id, key, a, b; } log_t;
typedef struct { i64 t, key, start, end, bytes; i32 rank, peer, port, kind; } record_t;
typedef struct { i64 word, cmp, value; } condition_t;
typedef struct { i64 channel, compute, meta, pull_start, record; } chain_t;

typedef struct {
    u32 word; /* futex */
    i32 state;
    i64 clock, result, wait, wait_seq, since, armed, decided, done, a, b, c, num_conditions, any;
    i64 bound, look, above[3], mates[4]; /* above: of my chip, of my node, by class; mates: how many, by class */
    i64 free[3], hash[3][2], busy[3], calls[2], bytes[4];
    i64 unacked, gets; /* puts without ack; first open get (operation + 1) */
    i64 vain, skipped, wakes, waited;
    i64 heap, count, capacity; /* offset of my nodes */
    i64 slot, pull_start, record, pulling, remaining, last, records, exchange_seq, chain_count, chain_at;
    pthread_mutex_t log_lock;
    i64 log_head, log_tail;
} __attribute__((aligned(64))) rank_t;

typedef struct {
    i64 posted, taken, rowers, active, even; /* even: all rows so far have the same meta_bytes */
    i64 start, key, meta, row_bytes, tag, has_rows, self; /* offsets of i64[n], by source */
    i64 low, meta_end, done_count, records;               /* offsets of i64[n], by target */
    i64 shift, order;                                     /* of a complete even exchange: i64[n], i64[n] */
    i64 received;                                         /* offset of i32[n][n], target major */
    i64 counts, offsets;                                  /* offsets of i32[n][n], source major */
    i64 done;                                             /* offset of u8[n][n], target major */
} slot_t;

typedef struct {
    pthread_mutex_t lock;
    config_t cfg;
    u64 magic;
    i64 half, owner, dirty, fatal, fatal_rank, events, entries, live, active, arena_used, arena_size, op_free, ops_used; /* op_free: operation + 1 */
    i64 arena_free[40];
    i64 ranks, bounds, winners, head_t, head_key, classes, paths, words, conditions, chains, rounds, logs, slots, ops;
    i64 arena, trace, num_ops, total;
    i64 trace_head, trace_tail;
    char reason[256];
} core_t;

#define AT(c, type, offset) ((type *)((char *)(c) + (offset)))
#define RANK(c, p) (AT(c, rank_t, (c)->ranks) + (p))
#define SLOT(c, s) (AT(c, slot_t, (c)->slots) + (s))
#define OP(c, i) (AT(c, op_t, (c)->ops) + (i))
#define CLASS(c, p, q) (AT(c, uint8_t, (c)->classes)[(p) * (c)->cfg.n + (q)])
#define WORD(c, p, w) (AT(c, i64, (c)->words)[(p) * (c)->cfg.words + (w)])

static inline i64 key_of(i64 rank, i64 seq, i64 sub, i64 stage) { return rank << 50 | seq << 18 | sub << 6 | stage; }
static inline i64 staged(i64 key, i64 stage) { return (key & ~(i64)63) | stage; }
static inline i64 max64(i64 a, i64 b) { return a > b ? a : b; }
static inline i64 min64(i64 a, i64 b) { return a < b ? a : b; }

/* State of one entry: whom to wake, and whose events are being settled. */
typedef struct { core_t *c; i64 batch, num_woken; i32 *woken; int trace_fd, wake_all; } ctx_t;

void sp_init_mutex(pthread_mutex_t *m);
void sp_settle(ctx_t *x);
void sp_evaluate(ctx_t *x, i64 p, i64 t, i64 changed);
void sp_check(ctx_t *x, i64 p, const node_t *e);
void sp_timeout(ctx_t *x, i64 p, const node_t *e);
void sp_poll_end(ctx_t *x, i64 p, const node_t *e);
void sp_decide(ctx_t *x, i64 p, i64 t, i64 result);
void sp_resume(ctx_t *x, i64 p, i64 t, i64 result);
void sp_settle_rows(ctx_t *x, i64 p, i64 t, i64 key);
void sp_row(ctx_t *x, i64 p, const node_t *e);
void sp_bulk(ctx_t *x, i64 p, const node_t *e);
void sp_pull(ctx_t *x, i64 p, const node_t *e);
void sp_pull_in(ctx_t *x, i64 p, const node_t *e);
void sp_start_pull(ctx_t *x, i64 p, i64 base);
i64 sp_open_slot(core_t *c, i64 p, i64 channel);
void sp_flush_trace(core_t *c, int fd);
void sp_fail(core_t *c, i64 code, i64 rank);
void sp_mark(ctx_t *x, i64 p);
#endif
