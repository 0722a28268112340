/* The wall clock: the engine decides as ever, and a decided wait returns at its instant.
 *
 * Time t belongs to the host's instant wall_start + dilation * t. Sleeps have absolute deadlines, so lateness is never
 * handed on. A rank that has not acted by its instant + grace_ns is not waited for any longer: its bound is raised to
 * what the wall says, the others go on, and its clock is moved forward when it next enters.
 */
#include "entry.h"
#include "heap.h"
#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SHORTEST_NS 1000    /* delays below this are not counted: nothing was to be slept */
#define AGAIN_NS 100000     /* least time between two looks whether the wall has made something final */
#define SLICE_NS 100000     /* the shortest slice Linux grants (kernel/sched/syscalls.c, 0.1 to 100 ms) */
#define LONGEST_NS ((i64)1 << 61) /* 73 years: as far as any instant lies ahead */

static i64 wall_now(void) { return clock_ns(CLOCK_MONOTONIC); }

/* Host ns that ps take. */
static i64 span(const core_t *c, i64 ps)
{
    __int128 ns = (__int128)ps * c->cfg.dilation / 1000000000;
    return ns > LONGEST_NS ? LONGEST_NS : (i64)ns;
}

static i64 due(const core_t *c, i64 t) { return c->wall_start + span(c, min64(t, INF / 4)); }

/* What the wall says now, less the grace; negative before the start. */
static i64 horizon(const core_t *c)
{
    i64 ns = wall_now() - c->wall_start - c->cfg.grace_ns;
    return ns <= 0 ? -1 : (i64)((__int128)ns * 1000000000 / c->cfg.dilation);
}

/* struct sched_attr of sched_setattr(2) as it was first: later fields do not matter here. */
typedef struct {
    u32 size, policy;
    unsigned long long flags;
    int nice;
    u32 priority;
    unsigned long long runtime, deadline, period;
} sched_t;

/* Wake when the timer says, before who only computes: no timer slack, and the shortest slice of the processor (Linux
 * 6.12 and later; needs no privilege) instead of the batch scheduling that suits the virtual clock. */
void sp_wall_attach(const core_t *c)
{
    (void)c;
    prctl(PR_SET_TIMERSLACK, 1UL, 0, 0, 0);
    sched_t wanted = { sizeof wanted, SCHED_OTHER, 0, getpriority(PRIO_PROCESS, 0), 0, SLICE_NS, 0, 0 };
    syscall(SYS_sched_setattr, 0, &wanted, 0);
}

static void sleep_until(local_t *l, i64 until)
{
    core_t *c = l->c;
    u32 *word = &RANK(c, l->rank)->word;
    while (!__atomic_load_n(&c->fatal, __ATOMIC_ACQUIRE) && wall_now() < until - c->cfg.spin_ns) {
        u32 ticket = __atomic_load_n(word, __ATOMIC_ACQUIRE);
        if (__atomic_load_n(&c->fatal, __ATOMIC_ACQUIRE)) break;
        sp_futex_until(word, ticket, until - c->cfg.spin_ns);
    }
    while (c->cfg.spin_ns && !c->fatal && wall_now() < until) {}
}

/* A blocking call begins at its instant: what was computed before it takes its time first. */
void sp_wall_begin(local_t *l)
{
    l->wall_from = 0;
    if (!l->c->wall_start) return;
    sleep_until(l, due(l->c, l->now));
    l->wall_from = wall_now();
    l->wall_t = l->now;
}

/* Return from a call whose time the caller wants to feel. */
int sp_pace(local_t *l)
{
    if (l->c->cfg.dilation && l->c->wall_start) sleep_until(l, due(l->c, l->now));
    return (int)l->c->fatal;
}

/* The others went on without me: I and what I have not handed over act from then on. Returns by how much. */
i64 sp_wall_catch_up(local_t *l)
{
    core_t *c = l->c;
    i64 low = l->now, shift;
    for (i64 k = 0; k < l->num_posts; k++) {
        const post_t *p = l->posts + k;
        if (p->target >= 0) low = min64(low, p->has_op ? p->op.posted : p->t);
    }
    if ((shift = RANK(c, l->rank)->assumed - low) <= 0) return 0;
    for (i64 k = 0; k < l->num_posts; k++) {
        l->posts[k].t += shift;
        l->posts[k].op.posted += shift;
    }
    l->now += shift;
    l->wall_t += shift;
    WALL(c, l->rank)->moved++;
    WALL(c, l->rank)->moved_ps += shift;
    return shift;
}

/* Under the lock: nobody runs behind the wall by more than the grace. */
static void assume(core_t *c)
{
    i64 low = horizon(c);
    for (i64 p = 0; p < c->cfg.n; p++) {
        rank_t *r = RANK(c, p);
        if (r->state != RUN || r->bound >= low) continue;
        r->assumed = low;
        set_bound(c, p, low);
    }
}

/* When the earliest pending event becomes final without the ranks that run, or 0 if there is none. */
static i64 next_look(const core_t *c)
{
    i64 head = AT(c, i64, c->head_t)[AT(c, i32, c->winners)[1]];
    return head < INF && c->wall_start ? max64(due(c, head + 1) + c->cfg.grace_ns + 1000, wall_now() + AGAIN_NS) : 0;
}

/* Until when somebody is only waiting for its instant: so long nobody is stuck, however long it takes. */
static i64 slept_until(const core_t *c)
{
    i64 last = 0;
    for (i64 p = 0; c->wall_start && p < c->cfg.n; p++) {
        const rank_t *r = RANK(c, p);
        if (r->state == RUN) last = max64(last, due(c, r->bound));
    }
    return last;
}

static i64 deadline(const core_t *c) { return max64(wall_now(), slept_until(c)) + c->cfg.wall_ms * 1000000; }

/* Asleep until decided; as in entry.c, and looks again when the wall has made something final. */
int sp_wall_sleep(local_t *l, u32 ticket)
{
    core_t *c = l->c;
    rank_t *r = RANK(c, l->rank);
    i64 entries = __atomic_load_n(&c->entries, __ATOMIC_RELAXED);
    i64 look = next_look(c); /* without the lock: a wrong answer costs one look */
    while (__atomic_load_n(&r->state, __ATOMIC_ACQUIRE) == BLOCKED && !__atomic_load_n(&c->fatal, __ATOMIC_ACQUIRE)) {
        long rc = sp_futex_until(&r->word, ticket, look ? look : deadline(c));
        if (rc && errno == ETIMEDOUT && sp_acquire(l)) {
            if (next_look(c) || (look && c->wall_start)) {
                assume(c);
                sp_settle(&l->ctx);
            } else if (r->state == BLOCKED && c->entries == entries + 1 && slept_until(c) < wall_now())
                sp_fail(c, FATAL_WALL, l->rank);
            look = next_look(c);
            entries = c->entries;
            sp_release(l, 0);
        } else look = next_look(c); /* woken for nothing: the clock may have been started or stopped */
        ticket = __atomic_load_n(&r->word, __ATOMIC_ACQUIRE);
    }
    return __atomic_load_n(&r->state, __ATOMIC_ACQUIRE) == BLOCKED ? (int)c->fatal : 0;
}

/* Return at the instant, and note what was wanted and what it became. */
void sp_wall_end(local_t *l, i64 kind)
{
    core_t *c = l->c;
    if (!c->wall_start) return;
    i64 at = due(c, l->now), requested = span(c, l->now - l->wall_t);
    sleep_until(l, at);
    if (!l->wall_from || requested < SHORTEST_NS) return; /* begun while the clock stood */
    i64 now = wall_now(), achieved = now - l->wall_from, late = now - at;
    i64 error = achieved > requested ? achieved - requested : requested - achieved;
    wall_t *w = WALL(c, l->rank);
    if (c->cfg.delays)
        AT(c, delay_t, c->delays)[l->rank * c->cfg.delays + w->count % c->cfg.delays] =
            (delay_t){ requested, achieved, late, kind };
    w->count++;
    w->requested += requested;
    w->achieved += achieved;
    w->error += error;
    w->late += 20 * error > requested;
    w->worst = max64(w->worst, late);
}

/* Meeting number k is the k-th call of each living rank (sp_start_clock). Who comes early sleeps until the last has come.
 * Only, who is still blocked may wait for what those at the meeting do next. So when nobody runs any more they are let
 * go: they carry on unslept, by conservative time as ever, and the clock starts when the others have come. */
static int at_meeting(const core_t *c, const rank_t *r) { return r->state == RUN && r->meeting && r->met > c->wall_round; }

/* If all that live have come to the next meeting, time goes on from here, at the latest clock they came with; on hold it
 * goes on unslept, until the next. */
static int agreed(core_t *c)
{
    i64 last = 0, hold = 1;
    for (i64 p = 0; p < c->cfg.n; p++) {
        const rank_t *r = RANK(c, p);
        if (r->state != RUN && r->state != BLOCKED) continue;
        if (r->met <= c->wall_round) return 0;
        if (r->met > c->wall_round + 1) continue; /* let go, and at the next one already */
        last = max64(last, r->met_at);
        hold = r->hold;
    }
    c->wall_start = hold ? 0 : wall_now() - span(c, last);
    __atomic_store_n(&c->wall_round, c->wall_round + 1, __ATOMIC_RELEASE);
    return 1;
}

/* Under the lock, settled: whoever lets go of it looks whether a meeting is complete, or has to be left. Deaths count. */
void sp_wall_meet(ctx_t *x)
{
    core_t *c = x->c;
    while (c->wall_ahead > c->wall_round && agreed(c)) x->wake_all = 1;
    if (c->wall_ahead == c->wall_round) return;
    for (i64 p = 0; p < c->cfg.n; p++)
        if (RANK(c, p)->state == RUN && !at_meeting(c, RANK(c, p))) return;
    for (i64 p = 0; p < c->cfg.n; p++) {
        if (!at_meeting(c, RANK(c, p))) continue;
        __atomic_store_n(&RANK(c, p)->meeting, 0, __ATOMIC_RELEASE);
        c->wall_start = 0;
        x->wake_all = 1;
    }
}

/* Membership has changed at time t: who was interrupted before a meeting that others were let go from will not come. */
void sp_wall_realign(core_t *c, i64 t)
{
    if (c->wall_ahead == c->wall_round) return;
    for (i64 p = 0; p < c->cfg.n; p++) {
        rank_t *r = RANK(c, p);
        if (r->met == c->wall_ahead && r->state == BLOCKED) c->wall_start = r->hold ? 0 : wall_now() - span(c, t);
    }
    for (i64 p = 0; p < c->cfg.n; p++) RANK(c, p)->met = c->wall_ahead;
    c->wall_round = c->wall_ahead;
}

int sp_start_clock(local_t *l, int hold)
{
    core_t *c = l->c;
    rank_t *r = RANK(c, l->rank);
    if (!c->cfg.dilation) return 0;
    if (!sp_acquire(l)) return FATAL_WALL;
    i64 number = ++r->met, limit = deadline(c);
    r->met_at = l->now;
    r->meeting = 1;
    r->hold = hold;
    c->wall_ahead = max64(c->wall_ahead, number);
    sp_release(l, 0);
    for (;;) {
        u32 ticket = __atomic_load_n(&r->word, __ATOMIC_ACQUIRE);
        if (__atomic_load_n(&c->wall_round, __ATOMIC_ACQUIRE) >= number) break;
        if (!__atomic_load_n(&r->meeting, __ATOMIC_ACQUIRE) || __atomic_load_n(&c->fatal, __ATOMIC_ACQUIRE)) break;
        sp_futex_until(&r->word, ticket, limit);
        if (wall_now() < limit || !sp_acquire(l)) continue;
        if (at_meeting(c, r) && slept_until(c) < wall_now()) sp_fail(c, FATAL_WALL, l->rank);
        limit = deadline(c);
        sp_release(l, 0);
    }
    return (int)c->fatal;
}

/* Measured compute begins: what my thread works until its next call is charged, times the factor. */
int sp_measure(local_t *l)
{
    sp_begin(l);
    sp_note(l, C_COMPUTE, l->now, 0, 0, 0);
    l->measured_from = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    return 0;
}

void sp_charge_measured(local_t *l)
{
    i64 ns = clock_ns(CLOCK_THREAD_CPUTIME_ID) - l->measured_from;
    l->measured_from = 0;
    l->now += (i64)((__int128)ns * l->c->cfg.measured / 1000); /* in millionths: ns * 1000 * factor */
}

/* A rank's sums (wall_t, then wall_start) and its last delays; returns how many delays. */
i64 sp_wall(const core_t *c, i64 p, i64 *sums, delay_t *delays)
{
    memcpy(sums, WALL(c, p), sizeof(wall_t));
    sums[8] = c->wall_start;
    i64 count = min64(sums[0], c->cfg.delays);
    if (delays) memcpy(delays, AT(c, delay_t, c->delays) + p * c->cfg.delays, (size_t)count * sizeof *delays);
    return count;
}
