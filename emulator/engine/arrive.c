/* Posts at their peer: may the operation take effect now? A failed stream drops it, an earlier operation that has not
 * taken effect yet holds it, a guard refuses it. Only events at the peer change what is asked here. */
#include "heap.h"

void sp_log(ctx_t *x, i64 p, const op_t *o, i64 t, i64 key, i32 kind, i64 a, i64 b)
{
    core_t *c = x->c;
    rank_t *r = RANK(c, p);
    i64 size = c->cfg.log_entries;
    if (r->log_head - __atomic_load_n(&r->log_tail, __ATOMIC_ACQUIRE) >= size) {
        sp_fail(c, FATAL_LOG, p);
        return;
    }
    const ref_t *f = &o->a.ref;
    AT(c, log_t, c->logs)[p * size + r->log_head % size] =
        (log_t){ t, kind, o->poster, f->file, f->file_offset, f->offset, f->nbytes, f->op_id, key, a, b };
    __atomic_store_n(&r->log_head, r->log_head + 1, __ATOMIC_RELEASE);
}

/* What was staged for the operation is not needed any more. */
void sp_log_drop(ctx_t *x, i64 p, const op_t *o, i64 t, i64 key)
{
    if (!o->a.log_kind && (o->a.kind != K_SEND || o->a.ref.nbytes <= 0)) return;
    op_t said = { .a = o->a, .poster = o->poster };
    if (!said.a.log_kind) said.a.ref.offset = -1;
    sp_log(x, p, &said, t, key, LOG_DROP, o->a.kind, o->a.log_kind);
}

/* ---- order */

/* The operation took effect at p at t, or was dropped there: what waited for it is looked at again. */
void sp_leave_flight(ctx_t *x, i64 p, i64 i, i64 t)
{
    core_t *c = x->c;
    op_t *o = OP(c, i);
    if (!o->in_flight) return;
    if (o->epoch) {
        o->epoch = 0;
        c->idle--;
        sp_news(c);
    }
    if (o->flight_prev) OP(c, o->flight_prev - 1)->flight_next = o->flight_next;
    *(o->flight_next ? &OP(c, o->flight_next - 1)->flight_prev : &RANK(c, o->poster)->flight_tail) = o->flight_prev;
    o->in_flight = 0;
    for (i64 at = o->waiters; at;) {
        op_t *w = OP(c, at - 1);
        i64 next = w->wait_next;
        push(x, p, t, key_at(w, w->wait_stage), 0, w->poster, at - 1);
        at = next;
    }
    o->waiters = 0;
}

/* Must o wait for its poster's earlier operation e? */
static int counts(const op_t *o, const op_t *e)
{
    i32 order = o->a.order;
#ifndef BREAK_SIGNAL_FREE
    if ((order & ORD_STREAM) && o->stream && e->stream == o->stream) return 1;
#endif
    if (e->a.peer != o->a.peer || (e->a.kind == K_GET && !is_rmw(&e->a))) return 0;
#ifndef BREAK_NO_STRONG
    if ((order & ORD_STRONG) && (e->a.order & ORD_TRACK)) return 1;
#endif
#ifndef BREAK_NO_FENCE
    if ((order & ORD_FENCE) && e->seq < o->a.fence) return 1;
#endif
    return 0;
}

static int must_wait(core_t *c, i64 i, i32 stage)
{
    op_t *o = OP(c, i);
    for (i64 at = o->flight_prev; at; at = OP(c, at - 1)->flight_prev) {
        op_t *e = OP(c, at - 1);
        if (!counts(o, e)) continue;
        o->wait_stage = stage;
        o->wait_next = e->waiters;
        e->waiters = (i32)i + 1;
        return 1;
    }
    return 0;
}

/* ---- guards */

static int state_guard(const core_t *c, i64 p, const args_t *a)
{
    if (a->state_word >= c->cfg.words) return ST_LOST;
    u64 bit = 1ull << (WORD(c, p, a->state_word) & 63);
    if (!((u64)a->state_mask & bit)) return ST_LOST;
    return (u64)a->deny_mask & bit ? ST_REGION : ST_OK;
}

static int region_guard(const core_t *c, i64 p, const args_t *a)
{
    if (a->region_word > c->cfg.words - 4) return ST_REGION;
    const i64 *w = &WORD(c, p, a->region_word); /* tag, base, length, access */
    __int128 end = (__int128)a->region_offset + a->region_bytes;
    int open = w[0] == a->region_tag && a->region_offset >= w[1] && end <= (__int128)w[1] + w[2]
            && (w[3] & a->region_need) == a->region_need;
    return open ? ST_OK : ST_REGION;
}

static int guards(const core_t *c, i64 p, const args_t *a)
{
#ifdef BREAK_GUARD_OPEN
    return ST_OK;
#endif
    int status = a->state_word >= 0 ? state_guard(c, p, a) : ST_OK;
    return status || a->region_word < 0 ? status : region_guard(c, p, a);
}

/* ---- refusals */

static i64 ack_of(const core_t *c, i64 p, const op_t *o)
{
    return c->cfg.plane[o->a.plane].ack[CLASS(c, p, o->poster)];
}

static void drop(ctx_t *x, i64 p, const node_t *e)
{
    op_t *o = OP(x->c, e->aux);
    sp_leave_flight(x, p, e->aux, e->t);
    sp_log_drop(x, p, o, e->t, e->key);
    if (o->gone || o->a.done == DONE_SENT) {
        sp_part_ended(x->c, e->aux);
        return;
    }
    o->dropped = 1;
    push(x, o->poster, e->t + ack_of(x->c, p, o), key_at(o, S_ACK), 0, p, e->aux);
}

/* A send that is retried for ever never leaves the heap empty. When nothing else is pending and all such sends were
 * refused since anything else happened, they never come through: sp_settle stops there. */
void sp_news(core_t *c)
{
    c->epoch++;
    c->stale = 0;
}

static void refused_again(core_t *c, op_t *o)
{
    c->idle += !o->epoch;
    c->stale += o->epoch != c->epoch + 1;
    o->epoch = c->epoch + 1;
}

/* After how long the poster tries again; -1 for never. */
static i64 retry_after(core_t *c, i64 p, op_t *o, i64 status, i64 ack)
{
    const args_t *a = &o->a;
    if (status == ST_LOST && o->lost_left > 0) {
        o->lost_left--;
        return max64(a->lost_ps, ack);
    }
    if (status != ST_RNR || o->rnr_left <= 0) return -1;
    if (a->rnr_retries == FOR_EVER) refused_again(c, o);
    else o->rnr_left--;
    i64 own = a->state_word >= 0 ? WORD(c, p, a->state_word) >> 6 : 0;
    return ack + a->rnr_ps + max64(own, 0);
}

void sp_refuse(ctx_t *x, i64 p, const node_t *e, i64 status)
{
    core_t *c = x->c;
    op_t *o = OP(c, e->aux);
    if (o->a.done == DONE_SENT) {
        drop(x, p, e);
        return;
    }
    i64 ack = ack_of(c, p, o), again = retry_after(c, p, o, status, ack);
    if (again >= 0) {
        push(x, o->poster, e->t + again, key_at(o, S_RETRY), 0, p, e->aux);
        return;
    }
    if (o->stream) STREAM(c, o->stream - 1)->failed = 1;
    sp_log_drop(x, p, o, e->t, e->key);
    sp_leave_flight(x, p, e->aux, e->t);
    i64 back = status == ST_LOST ? max64(o->a.lost_ps, ack) : ack, records = WORD(c, p, INBOX_WORD(c));
    push(x, o->poster, e->t + back, key_at(o, S_FAIL), status, p, e->aux);
    if (status != ST_LOST && status != ST_RNR && (o->a.note & NOTE_REFUSED))
        sp_tell(x, p, e, sp_record_of(o, IN_NOTE, o->poster, o->a.value, status));
    if (WORD(c, p, INBOX_WORD(c)) != records) sp_evaluate(x, p, e->t, INBOX_WORD(c));
}

/* The operation reaches p: 1 if it may take effect; otherwise it was seen to. */
int sp_arrive(ctx_t *x, i64 p, const node_t *e)
{
    core_t *c = x->c;
    op_t *o = OP(c, e->aux);
    if (o->gone || (o->stream && STREAM(c, o->stream - 1)->failed)) {
        drop(x, p, e);
        return 0;
    }
    if (o->a.order && must_wait(c, e->aux, (i32)(e->key & 63))) return 0;
    if (o->a.state_word < 0 && o->a.region_word < 0) return 1;
    int status = guards(c, p, &o->a);
    if (status) sp_refuse(x, p, e, status);
    return !status;
}
