/* Posts at their poster: hand-over, streams, waiting at the start, the end of an operation and its DONE record.
 *
 * Nothing here reads what the peer's events change (`failed`, `in_flight`), and arrive.c reads nothing that these change
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

static i32 *stream_link(core_t *c, i64 p, i64 number)
{
    u64 h = ((u64)number * 0x9e3779b97f4a7c15ull + (u64)p * 0xc2b2ae3d27d4eb4full) >> 32;
    i32 *at = AT(c, i32, c->stream_table) + (i64)(h & (u64)c->stream_mask);
    for (; *at; at = &STREAM(c, *at - 1)->next)
        if (STREAM(c, *at - 1)->poster == p && STREAM(c, *at - 1)->number == number) break;
    return at;
}

/* The poster's stream of that number, made if there is none; 0 if there is no room. */
stream_t *sp_stream(core_t *c, i64 p, i64 number, i64 peer)
{
    i32 *at = stream_link(c, p, number);
    if (*at) return STREAM(c, *at - 1);
    i64 i = c->stream_free - 1;
    if (i >= 0) c->stream_free = STREAM(c, i)->next;
    else if (c->streams_used < c->num_ops) i = c->streams_used++;
    else return 0;
    *STREAM(c, i) = (stream_t){ .poster = (i32)p, .number = (i32)number, .peer = (i32)peer };
    *at = (i32)i + 1;
    return STREAM(c, i);
}

static void free_stream(core_t *c, stream_t *s) /* if nothing has to be remembered */
{
    if (s->count || ((s->dead || s->failed) && !s->retired)) return;
    i32 *at = stream_link(c, s->poster, s->number), i = *at;
    *at = s->next;
    s->next = (i32)c->stream_free;
    c->stream_free = i;
}

void sp_retire(core_t *c, i64 p, i64 number)
{
    i32 at = *stream_link(c, p, number);
    if (!at) return;
    STREAM(c, at - 1)->retired = 1;
    free_stream(c, STREAM(c, at - 1));
}

void sp_free_op(core_t *c, i64 i)
{
    op_t *o = OP(c, i);
    if (o->stream) {
        stream_t *s = STREAM(c, o->stream - 1);
        s->count--;
        free_stream(c, s);
    }
    o->next = (i32)c->op_free;
    c->op_free = i + 1;
}

/* ---- hand-over */

static void enter_stream(ctx_t *x, i64 i)
{
    core_t *c = x->c;
    op_t *o = OP(c, i);
    stream_t *s = sp_stream(c, o->poster, o->a.stream, o->a.peer);
    if (!s) {
        sp_fail(c, FATAL_OPERATIONS, o->poster);
        return;
    }
    if (s->peer < 0) s->peer = o->a.peer;
    if (s->peer != o->a.peer) sp_fail(c, FATAL_STREAM, o->poster);
    o->stream = (i32)(s - STREAM(c, 0)) + 1;
    s->count++;
    o->stream_prev = s->ops_tail;
    *(s->ops_tail ? &OP(c, s->ops_tail - 1)->stream_next : &s->ops) = (i32)i + 1;
    s->ops_tail = (i32)i + 1;
}

/* An operation was handed over: note it wherever somebody may ask for it. */
void sp_admit(ctx_t *x, i64 i)
{
    core_t *c = x->c;
    op_t *o = OP(c, i);
    rank_t *r = RANK(c, o->poster);
    if (o->a.kind > K_SEND) return;
    if (o->a.stream > 0) enter_stream(x, i);
    r->unacked += o->a.kind == K_PUT;
    if (o->a.kind == K_GET || o->a.kind == K_WORD) {
        o->in_reads = 1;
        o->read_prev = r->reads_tail;
        *(r->reads_tail ? &OP(c, r->reads_tail - 1)->read_next : &r->reads) = (i32)i + 1;
        r->reads_tail = (i32)i + 1;
    }
    if (o->a.kind == K_GET && !o->stream && !o->a.order && o->a.log_kind != LOG_RMW) return;
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

static void unhold(core_t *c, i64 i)
{
    op_t *o = OP(c, i);
    i32 *at = held_list(c, o);
    while (*at != i + 1) at = &OP(c, *at - 1)->held_next;
    *at = o->held_next;
    o->held = 0;
}

/* A get or atomic was answered at t: start again what waited for it. */
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

/* ---- the end */

static void leave_reads(core_t *c, op_t *o)
{
    rank_t *r = RANK(c, o->poster);
    *(o->read_prev ? &OP(c, o->read_prev - 1)->read_next : &r->reads) = o->read_next;
    *(o->read_next ? &OP(c, o->read_next - 1)->read_prev : &r->reads_tail) = o->read_prev;
    o->in_reads = 0;
}

static void record_done(ctx_t *x, const node_t *e, i64 i)
{
    op_t *o = OP(x->c, i);
    i32 done = o->a.done;
    if (!o->silent && (done == DONE_ALWAYS || done == DONE_SENT || (done == DONE_ON_ERROR && o->status != ST_OK)))
        sp_tell(x, o->poster, e, sp_record_of(o, IN_DONE, o->a.peer, o->old, o->status));
    o->recorded = 1;
    if (o->landed) sp_free_op(x->c, i);
}

/* DONE records of a stream appear in the order of its posts. */
static void record_stream(ctx_t *x, const node_t *e, stream_t *s)
{
    core_t *c = x->c;
    while (s->ops && OP(c, s->ops - 1)->finished) {
        i64 i = s->ops - 1;
        s->ops = OP(c, i)->stream_next;
        *(s->ops ? &OP(c, s->ops - 1)->stream_prev : &s->ops_tail) = 0;
        record_done(x, e, i); /* may free the stream, but then nothing is left in it */
    }
}

static void mark_finished(ctx_t *x, const node_t *e, i64 i, i64 status, i64 value)
{
    core_t *c = x->c;
    op_t *o = OP(c, i);
    rank_t *r = RANK(c, o->poster);
    o->finished = 1;
    o->status = (i32)status;
    o->old = value;
    r->unacked -= o->a.kind == K_PUT;
    if (!o->in_reads) return;
    leave_reads(c, o);
    if (o->stream) start_held(x, o->poster, e->t, held_list(c, o), 1);
    if (r->held) start_held(x, o->poster, e->t, &r->held, 0);
}

void sp_finish_op(ctx_t *x, const node_t *e, i64 i, i64 status, i64 value)
{
    mark_finished(x, e, i, status, value);
    op_t *o = OP(x->c, i);
    if (o->stream) record_stream(x, e, STREAM(x->c, o->stream - 1));
    else record_done(x, e, i);
}

/* The last event of an operation, at its poster. */
void sp_landed(ctx_t *x, const node_t *e, i64 status, i64 value)
{
    core_t *c = x->c;
    op_t *o = OP(c, e->aux);
    i64 p = o->poster, before = WORD(c, p, INBOX_WORD(c));
    o->landed = 1;
    if (o->finished) {
        if (o->recorded) sp_free_op(c, e->aux);
        return;
    }
    sp_finish_op(x, e, e->aux, status, value);
    sp_evaluate_end(x, p, e->t, before);
}

/* No operation of the stream starts any more; those posted before now, after sequence number `after`, end with FLUSH. */
void sp_kill_stream(ctx_t *x, const node_t *e, stream_t *s, i64 after, int silent)
{
    core_t *c = x->c;
    s->dead = 1;
    for (i64 at = s->ops; at; at = OP(c, at - 1)->stream_next) {
        op_t *o = OP(c, at - 1);
        if (o->posted >= e->t) break;
        o->silent |= (uint8_t)silent;
#ifdef BREAK_FLUSH_LOST
        continue;
#endif
        if (o->finished || o->seq <= after) continue;
        if (o->held) {
            unhold(c, at - 1);
            sp_gone(x, at - 1, e->t);
        }
        mark_finished(x, e, at - 1, ST_FLUSH, 0);
    }
    s->count++; /* keep it while its records go */
    record_stream(x, e, s);
    s->count--;
    free_stream(c, s);
}

/* The peer refused for good: the operation ends, and its stream with it. */
void sp_failed(ctx_t *x, const node_t *e)
{
    core_t *c = x->c;
    op_t *o = OP(c, e->aux);
    i64 p = o->poster, before = WORD(c, p, INBOX_WORD(c));
    o->landed = 1;
    if (o->finished) { /* it was flushed meanwhile, so its stream is dead */
        if (o->recorded) sp_free_op(c, e->aux);
        return;
    }
    stream_t *s = o->stream ? STREAM(c, o->stream - 1) : 0;
    mark_finished(x, e, e->aux, e->val, 0);
    if (!s) record_done(x, e, e->aux);
    else if (s->dead) record_stream(x, e, s);
    else sp_kill_stream(x, e, s, o->seq, 0);
    sp_evaluate_end(x, p, e->t, before);
}
