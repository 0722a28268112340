/* What a process keeps for itself: its clock, its buffered posts, the digest of its calls. */
#ifndef SUPERPOD_ENTRY_H
#define SUPERPOD_ENTRY_H
#include "layout.h"
#include <time.h>

/* An event to be handed over, with its operation if it has one. target -1: retire stream `aux`. */
typedef struct { i64 t, key; i64 target, aux, has_op; op_t op; } post_t;

typedef struct {
    i64 now, result, index, records, slot, wakes; /* read by the caller, in this order */
    i64 args[9];                                  /* written by the caller of sp_exchange */
    i32 *rows; /* i32[4][n], i64[n]: counts and offsets in, counts, offsets and tags out */
    i64 seq, waiting; /* waiting: whether there were records for me at my last observation */
    core_t *c;
    i64 rank, calls[2], num_posts, max_posts, finished, observed;
    post_t *posts;
    uint8_t *open; /* by channel: posted, not waited for */
    ctx_t ctx;
    i64 jitter_ppm, jitter_us;
    u64 jitter_state;
    const i64 *sizes; /* of the records of the row I post next, or 0 */
    uint8_t *opened;  /* by channel: I opened a group there */
    i64 wall_from, wall_t;  /* wall clock: host ns and my time when the call under way began */
    i64 measured_from;      /* measured compute: my thread's ns when it began, or 0 */
} local_t;

/* One row of an exchange. in_place: counts and offsets are where sp_next_row says, and what comes is read there. */
typedef struct {
    i64 channel, row_bytes, meta, tag, pull_start, record, steps, has_counts, has_offsets, in_place;
} row_args_t;
typedef struct { i32 *counts, *offsets; } row_t;

static inline i64 clock_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (i64)t.tv_sec * 1000000000 + t.tv_nsec;
}

post_t *sp_new_post(local_t *l);
post_t *sp_post_op(local_t *l, const args_t *a);
int sp_compute(local_t *l, i64 ps, i64 kind, i64 publish);
row_t sp_next_row(local_t *l, i64 channel);
int sp_post_row(local_t *l, const row_args_t *a);
i64 sp_set_sizes(local_t *l, const i64 *sizes, i64 count);
int sp_wait_rows(local_t *l, const row_args_t *a, i64 slot);
i64 sp_schedule(local_t *l, const step_t *steps, i64 count, const send_t *sends, i64 puts, i64 step_ps, i64 timeout);
i64 sp_charged(const send_t *sends, i64 count, i64 *wire);
int sp_acquire(local_t *l);
void sp_release(local_t *l, int wake_all);
long sp_futex_until(u32 *word, u32 value, i64 until_ns);
void sp_wall_meet(ctx_t *x);
void sp_wall_begin(local_t *l);
i64 sp_wall_catch_up(local_t *l);
int sp_wall_sleep(local_t *l, u32 ticket);
void sp_wall_end(local_t *l, i64 kind);
void sp_wall_attach(const core_t *c);
void sp_charge_measured(local_t *l);
int sp_enter(local_t *l, i64 wait, i64 timeout, i64 bound);
void sp_begin(local_t *l);
void sp_note(local_t *l, i64 kind, i64 start, i64 a, i64 b, i64 d);
#endif
