/* What lies where in the shared buffer. Offsets only: the buffer has another address in every process.
 *
 *   core_t | ranks | trees | path tables | words | conditions | chains | rounds | logs | inboxes | slots | operations |
 *   streams | trace | programs | node arena
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
#define MAX_PLANES 4
#define NUM_UNITS 4
#define PORT_UNIT (3 * MAX_PLANES)
#define NUM_PORTS (PORT_UNIT + NUM_UNITS)
#define FOR_EVER 7 /* rnr_retries without end */
#define MAX_CHANNELS 1024
#define QUEUES 16 /* match queues of a rank, by context */
#define SP_VERSION 18 /* of the functions native.py calls; change both together */

enum { SELF, CHIP, NODE, POD };
enum { RUN, BLOCKED, EXITED, DEAD };
/* Stages grow along one operation at one instant; S_CHECK to S_RESUME are LATE. */
enum { S_START, S_ROW, S_EGRESS, S_INGRESS, S_DELIVER, S_ACK, S_ATOMIC, S_RESPONSE, S_PULL, S_PULL_IN, S_BULK,
       S_CHECK, S_TIMEOUT, S_POLL, S_RESUME, S_LOCAL, S_RETRY, S_FAIL };
enum { K_PUT, K_GET, K_WORD, K_SEND, K_LOCAL, K_RECV, K_CLOSE };
enum { NOTE_DELIVERED = 1, NOTE_REFUSED = 2 };
enum { ORD_TRACK = 1, ORD_STRONG = 2, ORD_STREAM = 4, ORD_FENCE = 8 };
enum { DONE_NEVER, DONE_ALWAYS, DONE_ON_ERROR, DONE_SENT };
enum { ST_OK, ST_REGION, ST_LOST, ST_RNR, ST_FLUSH, ST_LENGTH };
enum { IN_DONE = 1, IN_NOTE, IN_MATCH, IN_UNEXPECTED };
enum { NO_OP, SET, ADD };
enum { ATOMIC_ADD, SWAP, CAS, ATOMIC_AND, ATOMIC_OR, ATOMIC_XOR };
enum { W_NONE, W_WAIT, W_QUIET, W_GET, W_ATOMIC, W_READ, W_OBSERVE, W_TEST, W_POLL, W_EXCHANGE,
       W_SCHEDULE };
enum { C_COMPUTE = 32, C_PUT, C_GET, C_FENCE, C_POST, C_FINISH, C_POSTED }; /* calls that do not block, for the digest */
enum { FATAL_NONE, FATAL_DEADLOCK, FATAL_LIVELOCK, FATAL_LOST, FATAL_DIRTY, FATAL_WALL, FATAL_ABORT, FATAL_OPERATIONS,
       FATAL_NODES, FATAL_LOG, FATAL_TRACE, FATAL_REUSE, FATAL_INBOX, FATAL_STREAM, FATAL_GROUP,
       INTERRUPTED }; /* the last ends a wait, not the run */
enum { NOT_A_MEMBER = -(1 << 30) }; /* code of an exchange on a channel of groups that the caller opened none of */
enum { PORT_EGRESS, PORT_INGRESS, PORT_LOCAL };
enum { KIND_PUT, KIND_GET, KIND_META, KIND_PULL, KIND_SEND, KIND_WORD };
enum { LOG_PUT = 1, LOG_SNAPSHOT, LOG_RMW, LOG_DROP };

typedef struct { i64 put[4], request[4], response[4], ack[4], write_bw[4], read_bw[4]; } plane_t;
typedef struct {
    i64 n, dies_per_chip, dies_per_node;
    union {
        plane_t plane[MAX_PLANES];
        struct { i64 put[4], request[4], response[4], ack[4], write_bw[4], read_bw[4]; }; /* of plane 0 */
    };
    i64 price, poll, poll_max, words, channels, chain_steps, log_entries, lookahead, wall_ms, keep_going, livelock;
    i64 trace_records, node_bytes, conditions, inbox_entries, planes, schedule_bytes;
    i64 dilation, grace_ns, spin_ns, delays, measured; /* wall clock, see wall.c; dilation in millionths, 0: virtual */
} config_t;

typedef struct { i64 t, key, val; i32 peer, aux; } node_t; /* a pending event */
typedef struct { i64 file, file_offset, offset, nbytes, op_id; } ref_t;
typedef struct { /* POST_DTYPE */
    i64 nbytes, start, unit_ps, tail, done_ps, fence, value, compare;
    i64 region_tag, region_offset, region_bytes, region_need, state_mask, deny_mask, rnr_ps, lost_ps, user_a, user_b;
    i64 context, tag, source, mask, capacity, pull_bytes;
    ref_t ref;
    i64 log_a, log_b;
    i32 kind, peer, plane, unit, order, stream, rd_below, word, op, region_word, state_word, rnr_retries, lost_retries;
    i32 done, note, log_kind;
} args_t;
typedef struct { /* links are operation + 1, streams stream + 1, 0 for none */
    args_t a;
    i64 seq, posted, old;
    i64 epoch; /* > 0: retried for ever, and when it was refused last (epoch + 1) */
    i32 poster, stream, rnr_left, lost_left, status, wait_stage;
    i32 next;                     /* free list, match queue */
    i32 flight_prev, flight_next; /* poster's operations not yet delivered or dropped at their peer */
    i32 read_prev, read_next;     /* poster's gets and atomics not yet answered */
    i32 stream_prev, stream_next; /* of the stream, without DONE record yet */
    i32 held_next, waiters, wait_next, origin; /* held at S_START; waiting for me at the peer; sender of a pull */
    uint8_t in_flight, in_reads, finished, recorded, landed, silent, held, gone, dropped, blocking, acked_early;
    uint8_t quick; /* a put of a schedule: no ACK event, see sp_acknowledge */
} op_t;
typedef struct { /* a queue of one poster towards one peer. dead: known to the poster. failed: known to the peer */
    i32 next, poster, number, peer, ops, ops_tail, held, count;
    uint8_t dead, failed, retired;
} stream_t;
typedef struct { /* INBOX_DTYPE */
    i64 t, key, seq, value, nbytes, tag, context, user_a, user_b, file, file_offset, real_bytes;
    i32 kind, rank, status, context_lo;
} inbox_t;
typedef struct { i32 head, tail; } queue_t;
typedef struct { i64 t; i32 kind, rank; i64 file, file_offset, offset, nbytes, op_id, key, a, b; } log_t;
typedef struct { i64 t, key, start, end, bytes; i32 rank, peer, port, kind; } record_t;
typedef struct { i64 count, requested, achieved, error, late, worst, moved, moved_ps; } wall_t; /* host ns; of a rank */
typedef struct { i64 requested, achieved, late, kind; } delay_t;                      /* host ns */
/* cmp as sp_holds, or HERE: the exchange of slot `value` is at me. */
typedef struct { i64 word, cmp, value; } condition_t;
enum { HERE = 6 };
typedef struct { i64 channel, compute, meta, pull_start, record; } chain_t;
typedef struct { i64 compute, value; i32 first, count, word, cmp; } step_t;            /* STEP_DTYPE */
typedef struct { i64 nbytes, value, start; i32 peer, word, op, plane; } send_t;        /* SEND_DTYPE */

typedef struct {
    u32 word; /* futex */
    i32 state;
    i64 clock, result, wait, wait_seq, since, armed, decided, done, a, b, c, num_conditions, any;
    i64 bound, look, above[3], mates[4]; /* above: of my chip, of my node, by class; mates: how many, by class */
    i64 free[NUM_PORTS], hash[NUM_PORTS][2], busy[NUM_PORTS], calls[2], bytes[4];
    i64 used, unacked; /* bits of ports ever used; unfinished puts */
    i32 reads, reads_tail, flight_tail, held; /* links; held: without stream */
    queue_t posted[QUEUES], unexpected[QUEUES];
    i64 inbox_tail; /* its head is the inbox word */
    i64 vain, skipped, wakes, waited;
    i64 heap, count, capacity; /* offset of my nodes */
    i64 slot, pull_start, record, pulling, remaining, last, records, exchange_seq, chain_count, chain_at;
    i64 steps, step_at, first_step, step_ps, deadline, program_seq; /* of a schedule: see schedule.c */
    i64 acked; /* when the last ACK of a quick put comes */
    pthread_mutex_t log_lock;
    i64 log_head, log_tail;
    i64 assumed; /* wall clock: the others went on as if I acted from here on */
    i64 met, met_at, meeting, hold; /* meetings I came to; of the last: my clock, if I sleep there, what I want */
    i64 subscribed, interrupted, lost; /* to changes of membership; my wait was ended by one; since which change dead */
} __attribute__((aligned(64))) rank_t;

/* One exchange under way: of all ranks, or of a group, whose least rank + 1 is its leader (0: all ranks). */
typedef struct {
    i64 posted, taken, rowers, active, check;
    i64 even;   /* all rows so far have the same meta_bytes, and none has sizes */
    i64 lagged; /* how many rows say of each target how large its record is and when it leaves */
} round_t;
typedef struct { i64 lag, bytes; } sent_t;            /* of one record: when it leaves after the first, its size */
typedef struct { i32 leader, place; i64 check; } member_t; /* which group of a channel a rank opened */

typedef struct {
    i64 live;                                      /* exchanges under way in this slot: disjoint groups */
    i64 start, key, meta, row_bytes, tag, has_rows, self; /* offsets of i64[n], by source */
    i64 low, meta_end, done_count, records;               /* offsets of i64[n], by target */
    i64 shift, order;                                     /* of a complete even exchange: i64[n], i64[n] */
    i64 rounds;                                           /* offset of round_t[n], by leader's rank */
    i64 leader, place;                                    /* offsets of i32[n]: by rank, of the exchange there */
    i64 lagged;                                           /* offset of u8[n], by source */
    i64 received;                                         /* offset of i32[n][n], target major, by place */
    i64 counts, offsets;                                  /* offsets of i32[n][n], source major, by place */
    i64 done;                                             /* offset of u8[n][n], target major, by place */
    i64 sent;                                             /* offset of sent_t[n][n], source major, by place */
} slot_t;

typedef struct {
    pthread_mutex_t lock;
    config_t cfg;
    u64 magic;
    i64 half, owner, dirty, fatal, fatal_rank, events, entries, live, active, arena_used, arena_size, op_free, ops_used; /* op_free: operation + 1 */
    i64 arena_free[40];
    i64 ranks, bounds, winners, head_t, head_key, classes, paths, words, conditions, chains, rounds, logs, slots, ops;
    i64 inboxes, streams, stream_table, stream_mask, stream_free, streams_used; /* table: i32 by hash, stream + 1 */
    i64 arena, trace, num_ops, total;
    i64 trace_head, trace_tail;
    i64 idle, stale, epoch; /* sends retried for ever; of these refused since the last news; news so far */
    char reason[256];
    i64 members, lists, list_sizes, list_checks; /* by channel: member_t[n]; by leader's rank: i32[n], i32, i64 */
    i64 grouped;                                 /* by channel: i32 */
    u64 live_slots[(2 * MAX_CHANNELS + 63) / 64]; /* with an exchange under way */
    i64 programs; /* of schedules: offset of schedule_bytes by rank */
    i64 wall_start, wall_ahead, wall_round; /* host ns of time 0, or 0; meetings anybody came to, and complete ones */
    i64 walls, delays;                                 /* offsets of wall_t[n] and delay_t[n][cfg.delays] */
    i64 undo, undo_size, undo_count; /* journal, see undo.c: offset, entries, entries in use (-1: overflowed) */
    i64 changes; /* of membership so far */
} core_t;

#define AT(c, type, offset) ((type *)((char *)(c) + (offset)))
#define RANK(c, p) (AT(c, rank_t, (c)->ranks) + (p))
#define SLOT(c, s) (AT(c, slot_t, (c)->slots) + (s))
#define MEMBER(c, channel, p) (AT(c, member_t, (c)->members) + (channel) * (c)->cfg.n + (p))
#define OP(c, i) (AT(c, op_t, (c)->ops) + (i))
#define CLASS(c, p, q) (AT(c, uint8_t, (c)->classes)[(p) * (c)->cfg.n + (q)])
#define STREAM(c, i) (AT(c, stream_t, (c)->streams) + (i))
#define WALL(c, p) (AT(c, wall_t, (c)->walls) + (p))
#define WORD(c, p, w) (AT(c, i64, (c)->words)[(p) * ((c)->cfg.words + 1) + (w)])
#define INBOX_WORD(c) ((c)->cfg.words)

static inline i64 key_of(i64 rank, i64 seq, i64 sub, i64 stage) { return rank << 50 | seq << 18 | sub << 6 | stage; }
static inline i64 staged(i64 key, i64 stage) { return (key & ~(i64)63) | stage; }
static inline int is_rmw(const args_t *a) { return a->kind == K_GET && (a->log_kind & 7) == LOG_RMW; }
static inline i64 key_at(const op_t *o, i64 stage) { return key_of(o->poster, o->seq, 0, stage); }
static inline i64 max64(i64 a, i64 b) { return a > b ? a : b; }
static inline i64 min64(i64 a, i64 b) { return a < b ? a : b; }

/* State of one entry: whom to wake, and whose events are being settled. */
typedef struct { core_t *c; i64 batch, num_woken; i32 *woken; int trace_fd, wake_all; } ctx_t;

/* posts: hand-over, and what happens at the poster (order.c, finish.c) */
i64 sp_take_op(core_t *c);
void sp_free_op(core_t *c, i64 i);
void sp_admit(ctx_t *x, i64 i);
void sp_enter_stream(ctx_t *x, i64 i);
void sp_free_stream(core_t *c, stream_t *s);
void sp_answered(ctx_t *x, const op_t *o, i64 t);
void sp_unhold(core_t *c, i64 i);
void sp_retire(core_t *c, i64 p, i64 number);
stream_t *sp_stream(core_t *c, i64 p, i64 number, i64 peer);
void sp_start(ctx_t *x, i64 p, const node_t *e);
void sp_launch(ctx_t *x, i64 i, i64 t, i64 from);
void sp_gone(ctx_t *x, i64 i, i64 t);
void sp_finish_op(ctx_t *x, const node_t *e, i64 i, i64 status, i64 value);
void sp_part_ended(core_t *c, i64 i);
void sp_landed(ctx_t *x, const node_t *e, i64 status, i64 value);
void sp_failed(ctx_t *x, const node_t *e);
void sp_kill_stream(ctx_t *x, const node_t *e, stream_t *s, i64 after, int silent);
/* and at the peer (arrive.c) */
int sp_arrive(ctx_t *x, i64 p, const node_t *e);
void sp_leave_flight(ctx_t *x, i64 p, i64 i, i64 t);
void sp_news(core_t *c);
void sp_refuse(ctx_t *x, i64 p, const node_t *e, i64 status);
void sp_log(ctx_t *x, i64 p, const op_t *o, i64 t, i64 key, i32 kind, i64 a, i64 b);
void sp_log_drop(ctx_t *x, i64 p, const op_t *o, i64 t, i64 key);
/* records, match (inbox.c, match.c) */
enum { MATCH_REFUSED, MATCH_ACK, MATCH_LATER };
inbox_t sp_record_of(const op_t *o, i32 kind, i64 rank, i64 value, i64 status);
void sp_tell(ctx_t *x, i64 p, const node_t *e, inbox_t m);
void sp_evaluate_end(ctx_t *x, i64 p, i64 t, i64 records);
int sp_match(ctx_t *x, i64 p, const node_t *e);
void sp_pulled(ctx_t *x, i64 p, const node_t *e);
void sp_local(ctx_t *x, i64 p, const node_t *e);

/* schedules (schedule.c) */
int sp_goes_on(const rank_t *r);
void sp_advance(ctx_t *x, i64 p, i64 t);
int sp_too_early(ctx_t *x, i64 p, i64 t, i64 changed);
void sp_acknowledge(ctx_t *x, i64 i, i64 t);

void sp_init_mutex(pthread_mutex_t *m);
void sp_settle(ctx_t *x);
void sp_wall_realign(core_t *c, i64 t);
void sp_undo_begin(core_t *c);
void sp_undo_commit(core_t *c);
void sp_undo_end(core_t *c);
int sp_undo_roll_back(core_t *c);
void sp_undo_die(i64 k, i64 whole);
void sp_evaluate(ctx_t *x, i64 p, i64 t, i64 changed);
void sp_check(ctx_t *x, i64 p, const node_t *e);
void sp_timeout(ctx_t *x, i64 p, const node_t *e);
void sp_poll_end(ctx_t *x, i64 p, const node_t *e);
int sp_holds(i64 a, i64 cmp, i64 b);
void sp_decide(ctx_t *x, i64 p, i64 t, i64 result);
void sp_resume(ctx_t *x, i64 p, i64 t, i64 result);
void sp_settle_rows(ctx_t *x, i64 p, i64 t, i64 key);
void sp_row(ctx_t *x, i64 p, const node_t *e);
void sp_bulk(ctx_t *x, i64 p, const node_t *e);
void sp_pull(ctx_t *x, i64 p, const node_t *e);
void sp_pull_in(ctx_t *x, i64 p, const node_t *e);
void sp_start_pull(ctx_t *x, i64 p, i64 base);
i64 sp_open_slot(core_t *c, i64 p, i64 channel);

/* Ranks of an exchange in order; ranks is 0 for all of them. */
typedef struct { const i32 *ranks; i64 size, me, leader; } group_t;

static inline group_t group_of(const core_t *c, i64 channel, i64 p, i64 leader, i64 place)
{
    i64 n = c->cfg.n;
    if (!leader) return (group_t){ 0, n, p, 0 };
    i64 at = channel * n + leader - 1;
    return (group_t){ AT(c, i32, c->lists) + at * n, AT(c, i32, c->list_sizes)[at], place, leader };
}
static inline group_t own_group(const core_t *c, i64 channel, i64 p) /* that p opened */
{
    const member_t *m = MEMBER(c, channel, p);
    return group_of(c, channel, p, m->leader, m->place);
}
static inline group_t group_at(const core_t *c, i64 slot, i64 p) /* whose records reach p; it may not have opened it */
{
#ifdef BREAK_OWN_GROUP
    return own_group(c, slot / 2, p);
#endif
    const slot_t *s = SLOT(c, slot);
    return group_of(c, slot / 2, p, AT(c, i32, s->leader)[p], AT(c, i32, s->place)[p]);
}
static inline round_t *round_of(core_t *c, i64 slot, const group_t *g)
{
    return AT(c, round_t, SLOT(c, slot)->rounds) + (g->leader ? g->leader - 1 : 0);
}
#define RANK_AT(g, j) ((g)->ranks ? (g)->ranks[j] : (j))
void sp_flush_trace(core_t *c, int fd);
void sp_fail(core_t *c, i64 code, i64 rank);
void sp_mark(ctx_t *x, i64 p);
#endif
