/* Blocking and resuming. A wait begins with a CHECK that sees everything up to its instant; from then on each event at
 * its rank may decide it; it resumes at the end of the deciding instant, so every resumption is an observation. */
#include "heap.h"

int sp_holds(i64 a, i64 cmp, i64 b)
{
    switch (cmp) {
    case 0: return a == b;
    case 1: return a != b;
    case 2: return a > b;
    case 3: return a >= b;
    case 4: return a < b;
    default: return a <= b;
    }
}

/* When p's part of the exchange on slot k->value is at p, INF if it is not known yet. */
static i64 here_at(core_t *c, i64 p, const condition_t *k) { return AT(c, i64, SLOT(c, k->value)->records)[p]; }

static int met(core_t *c, i64 p, const condition_t *k)
{
    return k->cmp == HERE ? here_at(c, p, k) < INF : sp_holds(WORD(c, p, k->word), k->cmp, k->value);
}

/* The instant at which a wait that was found to hold at t does: the last record of an exchange may still be served. */
static i64 instant(core_t *c, i64 p, i64 t, i64 result)
{
    rank_t *r = RANK(c, p);
    const condition_t *k = AT(c, condition_t, c->conditions) + p * c->cfg.conditions;
    if (r->wait != W_WAIT) return t;
    for (i64 i = 0; i < r->num_conditions; i++)
        if (k[i].cmp == HERE && (!r->any || i == result)) t = max64(t, here_at(c, p, k + i));
    return t;
}

static i64 conditions_met(core_t *c, i64 p) /* index, or -1 */
{
    rank_t *r = RANK(c, p);
    const condition_t *k = AT(c, condition_t, c->conditions) + p * c->cfg.conditions;
    for (i64 i = 0; i < r->num_conditions; i++) {
        int yes = met(c, p, k + i);
        if (yes && r->any) return i;
        if (!yes && !r->any) return -1;
    }
    return r->any ? -1 : 0;
}

static int get_open(core_t *c, i64 p, i64 seq)
{
    for (i64 at = RANK(c, p)->reads; at; at = OP(c, at - 1)->read_next)
        if (OP(c, at - 1)->seq == seq) return 1;
    return 0;
}

void sp_resume(ctx_t *x, i64 p, i64 t, i64 result)
{
    core_t *c = x->c;
    rank_t *r = RANK(c, p);
    r->waited += t - r->since;
    r->clock = t;
    r->result = result;
    r->wakes++;
#ifdef BREAK_RESUME_BOUND
    set_bound(c, p, INF);
#else
    set_bound(c, p, t + c->cfg.price);
#endif
    __atomic_store_n(&r->state, RUN, __ATOMIC_RELEASE);
    __atomic_add_fetch(&r->word, 1, __ATOMIC_RELEASE);
    x->woken[x->num_woken++] = (i32)p;
}

void sp_decide(ctx_t *x, i64 p, i64 t, i64 result)
{
    rank_t *r = RANK(x->c, p);
    r->decided = 1;
    r->result = result;
    push(x, p, max64(t, r->clock), LATE | key_of(p, r->wait_seq, 0, S_RESUME), 0, p, 0);
}

/* Is p's wait decided by what it sees now? Sets *result. */
static int satisfied(core_t *c, i64 p, i64 *result)
{
    rank_t *r = RANK(c, p);
    *result = 0;
    switch (r->wait) {
    case W_SCHEDULE:
    case W_WAIT: return (*result = conditions_met(c, p)) >= 0;
    case W_QUIET: return !r->unacked && !r->reads;
    case W_GET: return !get_open(c, p, r->a);
    case W_ATOMIC: *result = r->result; return (int)r->done;
    case W_READ: *result = WORD(c, p, r->a); return 1;
    case W_OBSERVE: return 1;
    case W_TEST:
    case W_POLL: *result = sp_holds(WORD(c, p, r->a), r->b, r->c); return (int)*result;
    default: return 0;
    }
}

static void poll_hit(ctx_t *x, i64 p, i64 t) /* the first tick that may see a difference */
{
    rank_t *r = RANK(x->c, p);
    i64 tick = x->c->cfg.poll, k = max64(1, (t - r->clock + tick - 1) / tick);
    r->skipped += k;
    r->vain = 0;
    sp_decide(x, p, r->clock + k * tick, 0);
}

/* Something happened at p at t; `changed` is the word that changed, or -1. */
void sp_evaluate(ctx_t *x, i64 p, i64 t, i64 changed)
{
    rank_t *r = RANK(x->c, p);
    i64 result;
    if (r->state != BLOCKED || !r->armed || r->decided) return;
    if (r->armed > 1 && sp_too_early(x, p, t, changed)) return;
    if (r->wait == W_POLL) {
        if (changed >= 0 && (changed != r->a || satisfied(x->c, p, &result))) poll_hit(x, p, t);
    } else if (satisfied(x->c, p, &result)) {
        if (sp_goes_on(r)) sp_advance(x, p, t);
        else sp_decide(x, p, r->wait == W_QUIET ? max64(t, r->acked) : instant(x->c, p, t, result), result);
    }
}

void sp_check(ctx_t *x, i64 p, const node_t *e)
{
    core_t *c = x->c;
    rank_t *r = RANK(c, p);
    i64 result;
    if (r->state != BLOCKED || r->decided) return;
    r->armed = 1;
    if (r->wait == W_EXCHANGE) {
        i64 *records = AT(c, i64, SLOT(c, r->slot)->records) + p;
        if (*records < INF) sp_start_pull(x, p, max64(*records, e->t));
    } else if (satisfied(c, p, &result)) {
        if (sp_goes_on(r)) sp_advance(x, p, e->t);
        else if (r->wait == W_QUIET && r->acked > e->t) sp_decide(x, p, r->acked, 0);
        else if (instant(c, p, e->t, result) > e->t) sp_decide(x, p, instant(c, p, e->t, result), result);
        else sp_resume(x, p, e->t, result);
    } else if (r->wait == W_TEST) {
        r->wait = W_POLL;
        r->clock = e->t;
        push(x, p, e->t + c->cfg.poll * c->cfg.poll_max, LATE | key_of(p, r->wait_seq, 0, S_POLL), 0, p, 0);
    }
}

static int stale(const rank_t *r, const node_t *e) /* that wait ended before */
{
    return r->state != BLOCKED || r->decided || r->wait_seq != ((e->key & ~LATE) >> 18 & 0xffffffff);
}

void sp_timeout(ctx_t *x, i64 p, const node_t *e)
{
    rank_t *r = RANK(x->c, p);
    i64 seq = (e->key & ~LATE) >> 18 & 0xffffffff;
    int whole = r->state == BLOCKED && r->wait == W_SCHEDULE && !r->decided && r->clock < e->t && r->program_seq == seq;
    if (whole || !stale(r, e)) sp_resume(x, p, e->t, -1);
}

void sp_poll_end(ctx_t *x, i64 p, const node_t *e)
{
    rank_t *r = RANK(x->c, p);
    if (stale(r, e) || r->wait != W_POLL) return;
    r->skipped += x->c->cfg.poll_max;
    r->vain++;
    sp_resume(x, p, e->t, 0);
}
