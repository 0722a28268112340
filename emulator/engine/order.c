/* Posts at their poster: hand-over, and waiting at the start. (Their end is in finish.c.)
 *
 * Nothing here and there reads what the peer's events change (`failed`, `in_flight`), and arrive.c reads nothing that these change
 * (`dead`, `finished`); so each side's answers depend on its own final history only.
 */
#include "heap.h"
#include "ports.h"

/* ---- pools */

i64 sp_take_op(core_t *c)
{
    i64 i = c->op_free - 1;
    if (i >= 0) c->op_free = OP(c, i)->next;
    else if (c->ops_used < c->num_ops) i = c->ops_used++;
    return i;
}

void sp_free_op(core_t *c, i64 i)
{
    op_t *o = OP(c, i);
    if (o->stream) {
        stream_t *s = STREAM(c, o->stream - 1);
        s->count--;
        sp_free_stream(c, s);
    }
    o->next = (i32)c->op_free;
    c->op_free = i + 1;
}

/* No event of the operation is pending any more; if its record is out too, it goes. A DONE_SENT operation that left has
 * two parts: its answer at the poster, its effect at the peer. */
void sp_part_ended(core_t *c, i64 i)
{
    op_t *o = OP(c, i);
    if (o->acked_early) {
        o->acked_early = 0;
        return;
    }
    o->landed = 1;
    if (o->recorded) sp_free_op(c, i);
}

/* ---- hand-over */

/* An operation was handed over: note it wherever somebody may ask for it. */
void sp_admit(ctx_t *x, i64 i)
{
    core_t *c = x->c;
    op_t *o = OP(c, i);
    rank_t *r = RANK(c, o->poster);
    if (o->a.kind > K_SEND) return;
    if (o->a.stream > 0) sp_enter_stream(x, i);
    r->unacked += o->a.kind == K_PUT;
    if (o->a.kind == K_GET || o->a.kind == K_WORD) {
        o->in_reads = 1;
        o->read_prev = r->reads_tail;
        *(r->reads_tail ? &OP(c, r->reads_tail - 1)->read_next : &r->reads) = (i32)i + 1;
        r->reads_tail = (i32)i + 1;
    }
    if (o->a.kind == K_GET && !o->stream && !o->a.order && !is_rmw(&o->a)) return;
    o->in_flight = 1;
    o->flight_prev = r->flight_tail;
    if (r->flight_tail) OP(c, r->flight_tail - 1)->flight_next = (i32)i + 1;
    r->flight_tail = (i32)i + 1;
}

/* ---- the start */

/* The network part begins at t. from: rank whose event this is (or that posts). */
void sp_launch(ctx_t *x, i64 i, i64 t, i64 from)
{
    core_t *c = x->c;
    const op_t *o = OP(c, i);
    i64 peer = o->a.peer, request = c->cfg.plane[o->a.plane].request[CLASS(c, o->poster, peer)];
    if (o->a.kind == K_GET) push(x, peer, t + request, key_at(o, S_EGRESS), 0, from, i);
    else if (o->a.kind == K_WORD) push(x, peer, t + request + o->a.tail, key_at(o, S_ATOMIC), 0, from, i);
    else push(x, o->poster, t, key_at(o, S_EGRESS), 0, from, i);
}

/* Are fewer than rd_below of the poster's earlier gets and atomics (of the stream, if any) unanswered? */
static int may_read(const core_t *c, const op_t *o)
{
    i64 left = o->a.rd_below;
    if (!left) return 1;
    for (i64 at = RANK(c, o->poster)->reads; at; at = OP(c, at - 1)->read_next) {
        const op_t *e = OP(c, at - 1);
        if (e->seq >= o->seq) break;
        if ((!o->stream || e->stream == o->stream) && !--left) return 0;
    }
    return 1;
}

static i32 *held_list(core_t *c, const op_t *o)
{
    return o->stream ? &STREAM(c, o->stream - 1)->held : &RANK(c, o->poster)->held;
}

static int must_hold(core_t *c, const op_t *o)
{
    i32 first = o->stream ? *held_list(c, o) : 0;
    return (first && OP(c, first - 1)->seq < o->seq) || !may_read(c, o);
}

static void hold(core_t *c, i64 i)
{
    op_t *o = OP(c, i);
    i32 *at = held_list(c, o);
    while (*at && OP(c, *at - 1)->seq < o->seq) at = &OP(c, *at - 1)->held_next;
    o->held_next = *at;
    o->held = 1;
    *at = (i32)i + 1;
}

void sp_unhold(core_t *c, i64 i)
{
    op_t *o = OP(c, i);
    i32 *at = held_list(c, o);
    while (*at != i + 1) at = &OP(c, *at - 1)->held_next;
    *at = o->held_next;
    o->held = 0;
}

static void start_held(ctx_t *x, i64 p, i64 t, i32 *head, int in_order)
{
    core_t *c = x->c;
    for (i32 *at = head; *at;) {
        i32 i = *at;
        op_t *o = OP(c, i - 1);
        if (may_read(c, o)) {
            *at = o->held_next;
            o->held = 0;
            push(x, p, t, key_at(o, S_START), 0, p, i - 1);
        } else if (in_order) return;
        else at = &o->held_next;
    }
}

/* The get or atomic o was answered at t: start again what waited for it. */
void sp_answered(ctx_t *x, const op_t *o, i64 t)
{
    rank_t *r = RANK(x->c, o->poster);
    if (o->stream) start_held(x, o->poster, t, held_list(x->c, o), 1);
    if (r->held) start_held(x, o->poster, t, &r->held, 0);
}

void sp_start(ctx_t *x, i64 p, const node_t *e)
{
    core_t *c = x->c;
    op_t *o = OP(c, e->aux);
    if (!o->finished && o->stream && STREAM(c, o->stream - 1)->dead) {
        i64 before = WORD(c, p, INBOX_WORD(c));
        sp_finish_op(x, e, e->aux, ST_FLUSH, 0);
        sp_evaluate_end(x, p, e->t, before);
    }
    if (o->finished) {
        sp_gone(x, e->aux, e->t);
        return;
    }
    if (must_hold(c, o)) {
        hold(c, e->aux);
        return;
    }
    i64 start = e->t;
    if (o->a.unit >= 0) {
        i64 port = PORT_UNIT + o->a.unit, end;
        start = serve(RANK(c, p), port, e->t, o->a.unit_ps);
        end = start + o->a.unit_ps;
        record(x, p, port, kind_of(o), o->a.peer, e->t, e->key, start, end, o->a.nbytes);
    }
    sp_launch(x, e->aux, start, p);
}

/* The operation ended before its network part: the peer hears of it, as others may wait there for it. */
void sp_gone(ctx_t *x, i64 i, i64 t)
{
    core_t *c = x->c;
    op_t *o = OP(c, i);
    o->gone = 1;
    i64 put = c->cfg.plane[o->a.plane].put[CLASS(c, o->poster, o->a.peer)];
    push(x, o->a.peer, t + put, key_at(o, S_DELIVER), 0, o->poster, i);
}
