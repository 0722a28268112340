/* One engine entry: take the lock, hand over posts, publish the bound or block, settle, release, wake, sleep.
 *
 * Only ranks whose wait is decided are woken, after the lock is released. The lock is robust: a holder that died with
 * the dirty word set left the state half changed, and the run ends with a report; otherwise it is marked dead, if it
 * came to say who it is. In the build with the undo journal (undo.c) the half change is taken back, and it is marked dead.
 */
#include "entry.h"
#include "heap.h"
#include "ports.h"
#include <errno.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static long futex(u32 *word, int op, u32 value, const struct timespec *limit)
{
    return syscall(SYS_futex, word, op, value, limit, 0, 0);
}

/* Sleep while the word has the value, until CLOCK_MONOTONIC says until_ns. */
long sp_futex_until(u32 *word, u32 value, i64 until_ns)
{
    struct timespec limit = { until_ns / 1000000000, until_ns % 1000000000 };
    return syscall(SYS_futex, word, FUTEX_WAIT_BITSET, value, &limit, 0, FUTEX_BITSET_MATCH_ANY);
}

static void jitter(local_t *l)
{
    if (!l->jitter_ppm) return;
    u64 z = l->jitter_state;
    z ^= z << 13;
    z ^= z >> 7;
    z ^= z << 17;
    l->jitter_state = z;
    if ((i64)(z % 1000000) >= l->jitter_ppm) return;
    struct timespec ts = { 0, (long)(1 + (z >> 32) % (u64)(l->jitter_us * 1000)) };
    nanosleep(&ts, 0);
}

void sp_fail(core_t *c, i64 code, i64 rank)
{
    if (c->fatal) return;
    c->fatal_rank = rank;
    __atomic_store_n(&c->fatal, code, __ATOMIC_RELEASE);
}

void sp_mark(ctx_t *x, i64 p)
{
    core_t *c = x->c;
    if (p < 0 || p >= c->cfg.n || RANK(c, p)->state == EXITED || RANK(c, p)->state == DEAD) return;
    RANK(c, p)->state = DEAD;
    set_bound(c, p, INF);
    if (!c->cfg.keep_going) sp_fail(c, FATAL_LOST, p);
}

int sp_acquire(local_t *l)
{
    core_t *c = l->c;
    struct timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += c->cfg.wall_ms / 1000 + 1;
    int rc = pthread_mutex_timedlock(&c->lock, &limit);
    if (rc == ETIMEDOUT) {
        sp_fail(c, FATAL_WALL, l->rank);
        return 0;
    }
    l->ctx.num_woken = 0;
    l->ctx.batch = -1;
    l->ctx.wake_all = rc == EOWNERDEAD; /* the dead one may have decided waits and not woken anybody */
    i64 dead = rc == EOWNERDEAD ? c->owner : -1;
    if (rc == EOWNERDEAD) {
        pthread_mutex_consistent(&c->lock);
        if (c->dirty && !sp_undo_roll_back(c)) sp_fail(c, FATAL_DIRTY, dead);
    }
    __atomic_store_n(&c->owner, l->rank, __ATOMIC_SEQ_CST);
    __atomic_store_n(&c->dirty, 1, __ATOMIC_SEQ_CST);
    c->entries++;
    sp_undo_begin(c);
    sp_mark(&l->ctx, dead);
    return 1;
}

void sp_release(local_t *l, int wake_all)
{
    core_t *c = l->c;
    if (c->wall_ahead != c->wall_round) sp_wall_meet(&l->ctx);
    wake_all |= c->fatal || l->ctx.wake_all;
    sp_undo_end(c);
    if (wake_all)
        for (i64 p = 0; p < c->cfg.n; p++) __atomic_add_fetch(&RANK(c, p)->word, 1, __ATOMIC_RELEASE);
    __atomic_store_n(&c->dirty, 0, __ATOMIC_SEQ_CST);
#ifndef BREAK_OWNER
    __atomic_store_n(&c->owner, -1, __ATOMIC_SEQ_CST); /* who dies with the lock and before it says so is not me */
#endif
    pthread_mutex_unlock(&c->lock);
    if (wake_all) {
        for (i64 p = 0; p < c->cfg.n; p++) futex(&RANK(c, p)->word, FUTEX_WAKE, 1, 0);
        return;
    }
    for (i64 i = 0; i < l->ctx.num_woken; i++)
        if (l->ctx.woken[i] != l->rank) futex(&RANK(c, l->ctx.woken[i])->word, FUTEX_WAKE, 1, 0);
}

static void hand_over(local_t *l)
{
    core_t *c = l->c;
    for (i64 k = 0; k < l->num_posts; k++) {
        const post_t *p = l->posts + k;
        i64 aux = p->aux;
        if (p->target < 0) {
            sp_retire(c, l->rank, aux);
            continue;
        }
        if (p->has_op) {
            if ((aux = sp_take_op(c)) < 0) {
                sp_fail(c, FATAL_OPERATIONS, l->rank);
                break;
            }
            *OP(c, aux) = p->op;
            sp_admit(&l->ctx, aux);
        }
        push(&l->ctx, p->target, p->t, p->key, 0, l->rank, aux);
    }
    l->num_posts = 0;
}

static void block(local_t *l, i64 wait, i64 timeout)
{
    core_t *c = l->c;
    rank_t *r = RANK(c, l->rank);
    if (wait != W_TEST) r->vain = 0;
    r->state = BLOCKED;
    r->wait = wait;
    r->wait_seq = l->seq;
    r->clock = r->since = l->now;
    r->armed = r->decided = r->done = 0;
    set_bound(c, l->rank, INF);
    push(&l->ctx, l->rank, l->now, LATE | key_of(l->rank, l->seq, 0, S_CHECK), 0, l->rank, 0);
    if (timeout >= 0)
#ifdef BREAK_TIMEOUT_FIRST
        push(&l->ctx, l->rank, l->now + timeout, key_of(0, l->seq, 0, S_TIMEOUT), 0, l->rank, 0);
#else
        push(&l->ctx, l->rank, l->now + timeout, LATE | key_of(l->rank, l->seq, 0, S_TIMEOUT), 0, l->rank, 0);
#endif
}

/* Asleep until decided. The time limit is the only host clock: it ends the run when no rank entered for so long. */
static int sleep_until_woken(local_t *l, u32 ticket)
{
    core_t *c = l->c;
    rank_t *r = RANK(c, l->rank);
    struct timespec limit = { c->cfg.wall_ms / 1000, c->cfg.wall_ms % 1000 * 1000000 };
    i64 entries = __atomic_load_n(&c->entries, __ATOMIC_RELAXED);
    while (__atomic_load_n(&r->state, __ATOMIC_ACQUIRE) == BLOCKED && !__atomic_load_n(&c->fatal, __ATOMIC_ACQUIRE)) {
        long rc = futex(&r->word, FUTEX_WAIT, ticket, &limit);
        if (rc && errno == ETIMEDOUT) {
            i64 seen = __atomic_load_n(&c->entries, __ATOMIC_RELAXED);
            if (seen == entries && sp_acquire(l)) {
                if (r->state == BLOCKED) sp_fail(c, FATAL_WALL, l->rank);
                sp_release(l, 0);
            }
            entries = seen;
        }
        ticket = __atomic_load_n(&r->word, __ATOMIC_ACQUIRE);
    }
    return __atomic_load_n(&r->state, __ATOMIC_ACQUIRE) == BLOCKED ? (int)c->fatal : 0;
}

/* A rank killed inside the lock may have decided my wait and be undone: what I saw counts once I held the lock. */
static int sleep_until_certain(local_t *l, u32 ticket)
{
    core_t *c = l->c;
    rank_t *r = RANK(c, l->rank);
    for (int blocked = 1; blocked;) {
        int code = c->cfg.dilation ? sp_wall_sleep(l, ticket) : sleep_until_woken(l, ticket);
        if (code || !c->undo) return code;
        if (!sp_acquire(l)) return FATAL_WALL;
        if (l->ctx.wake_all) sp_settle(&l->ctx);
        blocked = r->state == BLOCKED;
        ticket = r->word;
        sp_release(l, 0);
    }
    return 0;
}

/* wait: W_... to block, 0 to publish `bound` and return. Returns 0 or a FATAL_ code. */
int sp_enter(local_t *l, i64 wait, i64 timeout, i64 bound)
{
    core_t *c = l->c;
    rank_t *r = RANK(c, l->rank);
    jitter(l);
    if (c->cfg.dilation && (wait || bound >= INF)) sp_wall_begin(l);
    if (!sp_acquire(l)) return FATAL_WALL;
    if (c->fatal) {
        int code = (int)c->fatal;
        sp_release(l, 0);
        return code;
    }
    if (l->num_posts) r->vain = 0;
    if (c->cfg.dilation && bound < INF) bound += sp_wall_catch_up(l);
    hand_over(l);
    jitter(l);
    if (wait) block(l, wait, timeout);
    else {
        if (bound >= INF) r->state = EXITED;
        set_bound(c, l->rank, bound);
    }
    r->calls[0] = l->calls[0];
    r->calls[1] = l->calls[1];
    sp_settle(&l->ctx);
    u32 ticket = r->word;
    sp_release(l, 0);
    if (!wait) return 0;
    int code = sleep_until_certain(l, ticket);
    if (code) return code;
    l->now = l->observed = r->clock;
    l->waiting = sp_inbox(l, 0, 1);
    l->result = r->result;
    l->records = r->records;
    l->slot = r->slot;
    l->wakes++;
    if (c->cfg.dilation) sp_wall_end(l, wait);
    if (r->interrupted) {
        r->interrupted = 0;
        memset(l->open, 0, (size_t)c->cfg.channels);
        return INTERRUPTED;
    }
    return 0;
}

void sp_begin(local_t *l)
{
    if (l->measured_from) sp_charge_measured(l);
#ifndef BREAK_PRICE
    l->now += l->c->cfg.price;
#endif
    l->seq++;
}

void sp_note(local_t *l, i64 kind, i64 start, i64 a, i64 b, i64 d) { fold(l->calls, kind, start, l->now, a, b, d); }

local_t *sp_attach(core_t *c, i64 rank)
{
    local_t *l = calloc(1, sizeof *l);
    if (!l) return 0;
    l->c = c;
    l->rank = rank;
    l->ctx = (ctx_t){ c, -1, 0, calloc((size_t)c->cfg.n + 1, sizeof(i32)), -1, 0 };
    l->rows = calloc((size_t)c->cfg.n, 4 * sizeof(i32) + sizeof(i64));
    l->open = calloc((size_t)c->cfg.channels, 1);
    l->opened = calloc((size_t)c->cfg.channels, 1);
    if (c->cfg.dilation) sp_wall_attach(c);
    if (!l->ctx.woken || !l->rows || !l->open || !l->opened) abort();
    return l;
}

void sp_detach(local_t *l)
{
    free(l->posts);
    free(l->ctx.woken);
    free(l->rows);
    free(l->open);
    free(l->opened);
    free(l);
}

int sp_finish(local_t *l)
{
    if (l->finished) return 0;
    l->finished = 1;
    l->seq++;
    sp_note(l, C_FINISH, l->now, 0, 0, 0);
    return sp_enter(l, 0, -1, INF);
}

int sp_flush(local_t *l) { return l->num_posts ? sp_enter(l, 0, -1, l->now + l->c->cfg.price) : 0; }

int sp_mark_dead(local_t *l, i64 rank)
{
    if (!sp_acquire(l)) return FATAL_WALL;
    sp_mark(&l->ctx, rank);
    sp_settle(&l->ctx);
    sp_release(l, 1); /* all: the dead rank may have decided waits and not woken anybody */
    return 0;
}

void sp_subscribe(local_t *l) { RANK(l->c, l->rank)->subscribed = 1; }

int sp_abort(local_t *l, const char *reason)
{
    if (!sp_acquire(l)) return FATAL_WALL;
    if (!l->c->fatal) strncpy(l->c->reason, reason, sizeof l->c->reason - 1);
    sp_fail(l->c, FATAL_ABORT, l->rank);
    sp_release(l, 1);
    return 0;
}

void sp_set_jitter(local_t *l, i64 ppm, i64 us, u64 seed)
{
    l->jitter_ppm = ppm;
    l->jitter_us = max64(us, 1);
    l->jitter_state = seed * 0x9e3779b97f4a7c15ull + 1;
}

void sp_set_trace(local_t *l, int fd) { l->ctx.trace_fd = fd; }

int sp_drain(local_t *l)
{
    if (!sp_acquire(l)) return FATAL_WALL;
    if (l->ctx.trace_fd >= 0) sp_flush_trace(l->c, l->ctx.trace_fd);
    sp_release(l, 0);
    return 0;
}

void sp_flush_trace(core_t *c, int fd)
{
    i64 size = c->cfg.trace_records;
    while (c->trace_tail < c->trace_head) {
        i64 at = c->trace_tail % size, k = min64(c->trace_head - c->trace_tail, size - at);
        const char *from = (const char *)(AT(c, record_t, c->trace) + at);
        size_t left = (size_t)k * sizeof(record_t);
        while (left) {
            ssize_t done = write(fd, from, left);
            if (done < 0 && errno == EINTR) continue;
            if (done <= 0) {
                sp_fail(c, FATAL_TRACE, c->owner);
                return;
            }
            from += done;
            left -= (size_t)done;
        }
        c->trace_tail += k;
    }
}
