/* Schedules: a rank's next steps (compute, puts, wait for a word), which the engine carries out while the rank sleeps.
 *
 * A schedule is its loop of calls, to the picosecond and to the bit of every digest: same times, keys and calls. What
 * comes before its first wait and after its last one the process does itself. In between, the event that ends a wait
 * issues the puts up to the next one, as the rank would have; only three events of the loop are saved, because nobody
 * could tell: the resumption (no program looks at anything), the CHECK of a wait whose word nobody touched before it
 * began, and the ACK of a put (`quiet` knows when the last one comes).
 */
#include "entry.h"
#include "heap.h"
#include "ports.h"
#include <string.h>

#define LIMIT_PS ((i64)1 << 60)
#define LIMIT_BYTES ((i64)1 << 50)

typedef struct { step_t *steps; send_t *sends; } program_t;

/* Where rank p's steps are; its sends follow them. */
static program_t program_of(core_t *c, i64 p)
{
    step_t *steps = AT(c, step_t, c->programs + p * c->cfg.schedule_bytes);
    return (program_t){ steps, (send_t *)(steps + RANK(c, p)->steps) };
}

static args_t put_of(const send_t *s)
{
    return (args_t){ .kind = K_PUT, .peer = s->peer, .nbytes = s->nbytes, .start = s->start, .plane = s->plane,
                     .op = s->op, .word = s->word, .value = s->value, .unit = -1, .region_word = -1, .state_word = -1,
                     .rnr_retries = -1, .rnr_ps = 1, .lost_ps = 1, .capacity = (i64)1 << 62, .source = -1, .mask = -1 };
}

/* ---- in the engine */

static void post_send(ctx_t *x, i64 p, i64 t, i64 seq, const send_t *s)
{
    core_t *c = x->c;
    i64 i = sp_take_op(c);
    if (i < 0) {
        sp_fail(c, FATAL_OPERATIONS, p);
        return;
    }
    *OP(c, i) = (op_t){ .a = put_of(s), .seq = seq, .posted = t, .poster = (i32)p, .rnr_left = -1, .quick = 1 };
    sp_admit(x, i);
    push(x, p, t + s->start, key_of(p, seq, 0, S_EGRESS), 0, p, i);
}

static void check_at(ctx_t *x, i64 p, i64 t)
{
    rank_t *r = RANK(x->c, p);
    r->armed = 0;
    push(x, p, t, LATE | key_of(p, r->wait_seq, 0, S_CHECK), 0, p, 0);
}

/* The wait of `s` begins at `now`. A CHECK is needed only if the word holds
 * already, or changes before the wait begins (sp_too_early). */
static void begin_wait(ctx_t *x, i64 p, i64 now, i64 seq, const step_t *s)
{
    core_t *c = x->c;
    rank_t *r = RANK(c, p);
    condition_t *k = AT(c, condition_t, c->conditions) + p * c->cfg.conditions;
    *k = (condition_t){ s->word, s->cmp, s->value };
    r->wait_seq = seq;
    r->clock = r->since = now;
    r->decided = 0;
    r->armed = 2;
    if (sp_holds(WORD(c, p, s->word), s->cmp, s->value)) check_at(x, p, now);
    if (r->deadline <= now) push(x, p, now, LATE | key_of(p, seq, 0, S_TIMEOUT), 0, p, 0);
}

/* Whether rank r sleeps through a schedule that has another step. */
int sp_goes_on(const rank_t *r) { return r->wait == W_SCHEDULE && r->step_at < r->steps; }

/* A wait of p's schedule ended at t, and it goes on: everything up to the next wait. */
void sp_advance(ctx_t *x, i64 p, i64 t)
{
    core_t *c = x->c;
    rank_t *r = RANK(c, p);
    program_t g = program_of(c, p);
    i64 price = c->cfg.price, now = t, seq = r->wait_seq;
    fold(r->calls, W_WAIT, r->since - price, t, 1, 0, 0);
    r->waited += t - r->since;
    for (;;) {
        const step_t *s = g.steps + r->step_at++;
        if (s->compute > 0) {
            now += price + s->compute;
            seq++;
            fold(r->calls, C_COMPUTE, now - price - s->compute, now, 0, s->compute, 0);
        }
        for (i64 k = s->first; k < s->first + s->count; k++) {
            const send_t *put = g.sends + k;
            now += price + r->step_ps;
            seq++;
            post_send(x, p, now, seq, put);
            fold(r->calls, C_PUT, now, now, put->peer, put->nbytes, put->op ? put->word : -1);
        }
        if (s->word < 0) continue;
        begin_wait(x, p, now + price, seq + 1, s);
        return;
    }
}

/* `changed` is the word of p that changed at t. 1 if that decides nothing: p's wait has not begun, or is of another
 * word. */
int sp_too_early(ctx_t *x, i64 p, i64 t, i64 changed)
{
    rank_t *r = RANK(x->c, p);
    if (changed != AT(x->c, condition_t, x->c->conditions)[p * x->c->cfg.conditions].word) return 1;
#ifdef BREAK_SCHEDULE_EARLY
    return 0;
#endif
    if (t > r->clock) return 0;
    check_at(x, p, r->clock);
    return 1;
}

/* A quick put took effect; its poster would know at t. */
void sp_acknowledge(ctx_t *x, i64 i, i64 t)
{
    core_t *c = x->c;
    i64 p = OP(c, i)->poster;
    rank_t *r = RANK(c, p);
    r->unacked--;
#ifdef BREAK_SCHEDULE_ACK
    t = 0;
#endif
    r->acked = max64(r->acked, t);
    sp_free_op(c, i);
    if (r->state == BLOCKED && r->wait == W_QUIET && r->armed && !r->decided && !r->unacked && !r->reads)
        sp_decide(x, p, r->acked, 0);
}

/* ---- in the process */

static int in(i64 value, i64 low, i64 high) { return value >= low && value <= high; }

static int sound_step(const config_t *k, const step_t *s, i64 sends)
{
    return in(s->compute, 0, LIMIT_PS) && s->first >= 0 && s->count >= 0 && (i64)s->first + s->count <= sends
        && in(s->word, -1, k->words) && in(s->cmp, 0, 5);
}

static int sound_send(const config_t *k, const send_t *s)
{
    return in(s->nbytes, 0, LIMIT_BYTES) && in(s->start, 0, LIMIT_PS) && in(s->peer, 0, k->n - 1)
        && in(s->word, 0, k->words - 1) && in(s->op, NO_OP, ADD) && in(s->plane, 0, k->planes - 1);
}

/* Compute and puts of a step, as calls. */
static void do_step(local_t *l, const step_t *s, const send_t *sends, i64 step_ps)
{
    if (s->compute > 0) sp_compute(l, s->compute, 0, 0);
    for (const send_t *put = sends + s->first; put < sends + s->first + s->count; put++) {
        args_t a = put_of(put);
        sp_begin(l);
        l->now += step_ps;
        sp_post_op(l, &a)->op.quick = 1;
        sp_note(l, C_PUT, l->now, put->peer, put->nbytes, put->op ? put->word : -1);
    }
}

/* Copy steps from number `at` on into my program, as many as there is room for and up to a wait; returns how many. */
static i64 load(local_t *l, const step_t *steps, i64 count, const send_t *sends, i64 at)
{
    i64 room = l->c->cfg.schedule_bytes, end = at, total = 0, puts = 0;
    for (i64 i = at; i < count; i++) {
        puts += steps[i].count;
        if ((i - at + 1) * (i64)sizeof *steps + puts * (i64)sizeof *sends > room) break;
        if (steps[i].word >= 0) end = i + 1;
    }
    RANK(l->c, l->rank)->steps = end - at;
    program_t g = program_of(l->c, l->rank);
    for (i64 i = at; i < end; i++) {
        step_t *s = g.steps + (i - at);
        *s = steps[i];
        memcpy(g.sends + total, sends + s->first, (size_t)s->count * sizeof *sends);
        s->first = (i32)total;
        total += s->count;
    }
    return end - at;
}

/* Step `at` waits, and the steps loaded after it are carried out. Returns 0 or a FATAL_ code. */
static int sleep_through(local_t *l, const step_t *s, i64 at, i64 step_ps, i64 deadline)
{
    core_t *c = l->c;
    rank_t *r = RANK(c, l->rank);
    sp_begin(l);
    AT(c, condition_t, c->conditions)[l->rank * c->cfg.conditions] = (condition_t){ s->word, s->cmp, s->value };
    r->num_conditions = 1;
    r->any = r->step_at = 0;
    r->first_step = at;
    r->step_ps = step_ps;
    r->deadline = deadline;
    r->program_seq = l->seq;
    i64 timeout = deadline < INF ? max64(0, deadline - l->now) : -1;
    int code = sp_enter(l, W_SCHEDULE, timeout, 0);
    l->seq = r->wait_seq;
    if (code) return code;
    memcpy(l->calls, r->calls, sizeof l->calls);
    sp_note(l, W_WAIT, r->since - c->cfg.price, 1, 0, l->result);
    return 0;
}

/* First bad step, or send after them, + 1; 0 if there is none. */
static i64 unsound(const config_t *k, const step_t *steps, i64 count, const send_t *sends, i64 puts)
{
    for (i64 i = 0; i < count; i++)
        if (!sound_step(k, steps + i, puts)) return i + 1;
    for (i64 i = 0; i < puts; i++)
        if (!sound_send(k, sends + i)) return count + i + 1;
    return 0;
}

/* Charged bytes of the puts, added to wire[plane]; returns their sum. */
i64 sp_charged(const send_t *sends, i64 count, i64 *wire)
{
    i64 sum = 0;
    for (i64 i = 0; i < count; i++) {
        wire[sends[i].plane] += sends[i].nbytes;
        sum += sends[i].nbytes;
    }
    return sum;
}

/* Carry out `count` steps; l->index is how many were. Returns 0, a FATAL_ code, or minus what `unsound` says. */
i64 sp_schedule(local_t *l, const step_t *steps, i64 count, const send_t *sends, i64 puts, i64 step_ps, i64 timeout)
{
    i64 bad = unsound(&l->c->cfg, steps, count, sends, puts), deadline = timeout < 0 ? INF : l->now + timeout;
    if (bad) return -bad;
    for (i64 at = 0; at < count; at++) {
        const step_t *s = steps + at;
        l->index = at;
        do_step(l, s, sends, step_ps);
        if (s->word < 0) continue;
        i64 more = load(l, steps, count, sends, at + 1);
        int code = sleep_through(l, s, at, step_ps, deadline);
        l->index = at + RANK(l->c, l->rank)->step_at;
        if (code) return code;
        if (l->result < 0) return 0;
        at += more;
    }
    l->index = count;
    return 0;
}
