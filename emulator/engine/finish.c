/* Streams, and the end of an operation at its poster: what waited for its answer starts, its DONE record appears. */
#include "heap.h"

/* ---- streams: the poster's queues, found by number */

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

void sp_free_stream(core_t *c, stream_t *s) /* if nothing of it has to be remembered */
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
    sp_free_stream(c, STREAM(c, at - 1));
}

void sp_enter_stream(ctx_t *x, i64 i)
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

static void record_of_stream(ctx_t *x, const node_t *e, stream_t *s, i64 i)
{
    core_t *c = x->c;
    op_t *o = OP(c, i);
    *(o->stream_prev ? &OP(c, o->stream_prev - 1)->stream_next : &s->ops) = o->stream_next;
    *(o->stream_next ? &OP(c, o->stream_next - 1)->stream_prev : &s->ops_tail) = o->stream_prev;
    record_done(x, e, i);
}

/* DONE records of a stream appear in the order of its posts; but a long message, whose end depends on when its receive
 * is posted, has its record at once and holds nobody back. */
static void record_stream(ctx_t *x, const node_t *e, stream_t *s)
{
    core_t *c = x->c;
    for (i64 at = s->ops, next; at; at = next) {
        const op_t *o = OP(c, at - 1);
        next = o->stream_next;
        if (o->finished) record_of_stream(x, e, s, at - 1);
        else if (o->a.pull_bytes <= 0) return;
    }
}

void sp_finish_op(ctx_t *x, const node_t *e, i64 i, i64 status, i64 value)
{
    core_t *c = x->c;
    op_t *o = OP(c, i);
    o->finished = 1;
    o->status = (i32)status;
    o->old = value;
    RANK(c, o->poster)->unacked -= o->a.kind == K_PUT;
    if (o->in_reads) {
        leave_reads(c, o);
        sp_answered(x, o, e->t);
    }
    if (!o->stream) {
        record_done(x, e, i);
        return;
    }
    stream_t *s = STREAM(c, o->stream - 1);
    s->count++; /* keep it while its records go */
    if (o->a.pull_bytes > 0) record_of_stream(x, e, s, i);
    else record_stream(x, e, s);
    s->count--;
    sp_free_stream(c, s);
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

/* From link `at` on: the first operation that ends when the stream dies; finished ones stay as they are. */
static i64 to_flush(const core_t *c, i64 at, i64 t, i64 after)
{
    for (; at; at = OP(c, at - 1)->stream_next) {
        const op_t *o = OP(c, at - 1);
        if (o->posted >= t) return 0;
        if (!o->finished && o->seq > after) return at;
    }
    return 0;
}

/* No operation of the stream starts any more; those posted before now, after sequence number `after`, end with FLUSH. */
void sp_kill_stream(ctx_t *x, const node_t *e, stream_t *s, i64 after, int silent)
{
    core_t *c = x->c;
    s->dead = 1;
    for (i64 at = silent ? s->ops : 0; at && OP(c, at - 1)->posted < e->t; at = OP(c, at - 1)->stream_next)
        OP(c, at - 1)->silent |= OP(c, at - 1)->seq > after;
#ifdef BREAK_FLUSH_LOST
    return;
#endif
    s->count++;
    for (i64 at = to_flush(c, s->ops, e->t, after), next; at; at = next) {
        next = to_flush(c, OP(c, at - 1)->stream_next, e->t, after);
        int held = OP(c, at - 1)->held;
        if (held) sp_unhold(c, at - 1);
        if (held) sp_gone(x, at - 1, e->t);
        sp_finish_op(x, e, at - 1, ST_FLUSH, 0);
    }
    s->count--;
    sp_free_stream(c, s);
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
    i64 seq = o->seq;
    if (s) s->count++;
    sp_finish_op(x, e, e->aux, e->val, 0);
    if (s && !s->dead) sp_kill_stream(x, e, s, seq, 0);
    if (s) s->count--;
    if (s) sp_free_stream(c, s);
    sp_evaluate_end(x, p, e->t, before);
}
