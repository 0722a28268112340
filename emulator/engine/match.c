/* Receives and messages: a list of posted receives and a list of unexpected messages for each rank, both in order of
 * arrival there, so the first that fits is the earliest. They change only in the rank's own events. */
#include "heap.h"

static queue_t *queue(queue_t *of, i64 context)
{
    return of + (((u64)context * 0x9e3779b97f4a7c15ull) >> 32) % QUEUES;
}

static void append(core_t *c, queue_t *q, i64 i)
{
    OP(c, i)->next = 0;
    *(q->tail ? &OP(c, q->tail - 1)->next : &q->head) = (i32)i + 1;
    q->tail = (i32)i + 1;
}

static void take_out(core_t *c, queue_t *q, i64 i, i64 before) /* before: link of the one in front of it */
{
    *(before ? &OP(c, before - 1)->next : &q->head) = OP(c, i)->next;
    if (q->tail == i + 1) q->tail = (i32)before;
}

static int fits(const op_t *receive, const op_t *send)
{
    const args_t *a = &receive->a;
    return a->context == send->a.context && (a->source < 0 || a->source == send->poster)
        && (a->tag & a->mask) == (send->a.tag & a->mask);
}

/* First of q that goes with o, taken out; -1 if there is none. */
static i64 take_first(core_t *c, queue_t *q, const op_t *o)
{
    i64 found = 0, found_before = 0;
    for (i64 at = q->head, before = 0; at; before = at, at = OP(c, at - 1)->next) {
        const op_t *other = OP(c, at - 1);
        if (!(o->a.kind == K_RECV ? fits(o, other) : fits(other, o))) continue;
        found = at;
        found_before = before;
#ifndef BREAK_MATCH_ANY_ORDER
        break;
#endif
    }
    if (found) take_out(c, q, found - 1, found_before);
    return found - 1;
}

/* The receiver fetches a long message: a get that the engine posts for the receive. send: its operation at the sender. */
static void pull(ctx_t *x, i64 p, i64 t, const op_t *receive, const op_t *message, i64 send)
{
    core_t *c = x->c;
    i64 i = sp_take_op(c);
    if (i < 0) {
        sp_fail(c, FATAL_OPERATIONS, p);
        return;
    }
    op_t *g = OP(c, i);
    *g = (op_t){ .a = receive->a, .seq = receive->seq, .old = message->a.user_a, .poster = (i32)p,
                 .origin = (i32)send + 1 };
    g->a.kind = K_GET;
    g->a.peer = message->poster;
    g->a.plane = message->a.plane;
    g->a.nbytes = message->a.pull_bytes;
    g->a.tag = message->a.tag;
    g->a.ref = message->a.log_kind ? (ref_t){ .file = -1 } : message->a.ref;
    g->a.order = g->a.log_kind = 0;
    g->a.region_word = g->a.state_word = -1;
    i64 request = c->cfg.plane[g->a.plane].request[CLASS(c, p, g->a.peer)];
    push(x, g->a.peer, t + request, key_of(p, g->seq, 1, S_EGRESS), 0, p, i);
}

/* A receive has got a message: the record, and the log entry if it carries one. Returns ST_LENGTH if the message is too long, and it is lost. */
static i64 pair(ctx_t *x, i64 p, const node_t *e, const op_t *receive, const op_t *message)
{
    i64 status = !message->a.log_kind && message->a.nbytes > receive->a.capacity ? ST_LENGTH : ST_OK;
    inbox_t m = sp_record_of(receive, IN_MATCH, message->poster, message->a.user_a, status);
    int staged = status == ST_OK && !message->a.log_kind;
    m.nbytes = message->a.nbytes;
    m.tag = message->a.tag;
    m.file = staged ? message->a.ref.file : -1;
    m.file_offset = staged ? message->a.ref.file_offset : 0;
    m.real_bytes = staged ? message->a.ref.nbytes : 0;
    sp_tell(x, p, e, m);
    if (message->a.log_kind) sp_log(x, p, message, e->t, e->key, LOG_PUT, message->a.log_a, message->a.log_b);
    return status;
}

/* A message that nobody waits for yet. */
static void keep(ctx_t *x, i64 p, const node_t *e)
{
    core_t *c = x->c;
    i64 i = sp_take_op(c);
    if (i < 0) {
        sp_fail(c, FATAL_OPERATIONS, p);
        return;
    }
    const op_t *o = OP(c, e->aux);
    *OP(c, i) = (op_t){ .a = o->a, .seq = o->seq, .poster = o->poster, .origin = e->aux + 1 };
    append(c, queue(RANK(c, p)->unexpected, o->a.context), i);
    sp_tell(x, p, e, sp_record_of(o, IN_UNEXPECTED, o->poster, o->a.user_a, ST_OK));
}

/* A message is delivered at p. MATCH_REFUSED: it was seen to. MATCH_LATER: its acknowledgement comes with the pull. */
int sp_match(ctx_t *x, i64 p, const node_t *e)
{
    core_t *c = x->c;
    op_t *o = OP(c, e->aux);
    i64 i = take_first(c, queue(RANK(c, p)->posted, o->a.context), o), records = WORD(c, p, INBOX_WORD(c));
    int long_one = o->a.pull_bytes > 0;
    if (i < 0 && o->a.rnr_retries >= 0) {
#ifdef BREAK_RNR_DELIVERS
        return MATCH_ACK;
#endif
        sp_refuse(x, p, e, ST_RNR);
        return MATCH_REFUSED;
    }
    if (i < 0) {
        keep(x, p, e);
        return long_one ? MATCH_LATER : MATCH_ACK;
    }
    i64 status = pair(x, p, e, OP(c, i), o);
    if (status == ST_OK && long_one) pull(x, p, e->t, OP(c, i), o, e->aux);
    sp_free_op(c, i);
    if (status == ST_OK) return long_one ? MATCH_LATER : MATCH_ACK;
    if (o->a.rnr_retries < 0) {
        sp_log_drop(x, p, o, e->t, e->key);
        return MATCH_ACK;
    }
    sp_refuse(x, p, e, ST_LENGTH);
    sp_evaluate_end(x, p, e->t, records);
    return MATCH_REFUSED;
}

static void acknowledge(ctx_t *x, i64 p, i64 t, i64 send, i64 more)
{
    core_t *c = x->c;
    const op_t *o = OP(c, send);
    i64 ack = c->cfg.plane[o->a.plane].ack[CLASS(c, p, o->poster)];
    push(x, o->poster, t + ack + more, key_at(o, S_ACK), 0, p, send);
}

/* A long message is in. */
void sp_pulled(ctx_t *x, i64 p, const node_t *e)
{
    core_t *c = x->c;
    op_t *g = OP(c, e->aux);
    i64 send = g->origin - 1;
    sp_tell(x, p, e, sp_record_of(g, IN_DONE, g->a.peer, g->old, ST_OK));
    acknowledge(x, p, e->t, send, OP(c, send)->a.done_ps);
    sp_free_op(c, e->aux);
    sp_evaluate(x, p, e->t, INBOX_WORD(c));
}

/* ---- events of the receiver itself */

static void receive(ctx_t *x, i64 p, const node_t *e)
{
    core_t *c = x->c;
    op_t *o = OP(c, e->aux);
    i64 i = take_first(c, queue(RANK(c, p)->unexpected, o->a.context), o);
    if (i < 0) {
        append(c, queue(RANK(c, p)->posted, o->a.context), e->aux);
        return;
    }
    op_t *m = OP(c, i);
    i64 status = pair(x, p, e, o, m), send = m->origin - 1;
    if (status != ST_OK) sp_log_drop(x, p, m, e->t, e->key);
    if (m->a.pull_bytes > 0) {
        if (status == ST_OK) pull(x, p, e->t, o, m, send);
        else acknowledge(x, p, e->t, send, m->a.done_ps);
    }
    sp_free_op(c, i);
    sp_free_op(c, e->aux);
}

static void close_receives(ctx_t *x, i64 p, const node_t *e, const args_t *a)
{
    core_t *c = x->c;
    queue_t *q = queue(RANK(c, p)->posted, a->context);
    for (i64 at = q->head, before = 0, next; at; at = next) {
        const op_t *o = OP(c, at - 1);
        next = o->next;
        if (o->a.context != a->context || (a->compare > 0 && o->seq != a->compare)) {
            before = at;
            continue;
        }
        take_out(c, q, at - 1, before);
        inbox_t m = sp_record_of(o, IN_DONE, -1, 0, ST_FLUSH);
        m.nbytes = 0;
        if (a->done != DONE_NEVER) sp_tell(x, p, e, m);
        sp_free_op(c, at - 1);
    }
}

static void drop_unexpected(ctx_t *x, i64 p, const node_t *e, const args_t *a)
{
    core_t *c = x->c;
    queue_t *q = queue(RANK(c, p)->unexpected, a->context);
    for (i64 at = q->head, before = 0, next; at; at = next) {
        const op_t *o = OP(c, at - 1);
        next = o->next;
        if (o->a.context != a->context) {
            before = at;
            continue;
        }
        take_out(c, q, at - 1, before);
        sp_log_drop(x, p, o, e->t, e->key);
        if (o->a.pull_bytes > 0) {
            i64 ack = c->cfg.plane[o->a.plane].ack[CLASS(c, p, o->poster)];
            push(x, o->poster, e->t + ack, key_at(o, S_FAIL), ST_FLUSH, p, o->origin - 1);
        }
        sp_free_op(c, at - 1);
    }
}

static void close(ctx_t *x, i64 p, const node_t *e)
{
    core_t *c = x->c;
    const args_t *a = &OP(c, e->aux)->a;
    if (a->stream > 0) {
        stream_t *s = sp_stream(c, p, a->stream, -1);
        if (!s) sp_fail(c, FATAL_OPERATIONS, p);
        else sp_kill_stream(x, e, s, -1, a->done == DONE_NEVER);
    }
    if (a->context) {
        close_receives(x, p, e, a);
        if (!a->compare) drop_unexpected(x, p, e, a);
    }
    sp_free_op(c, e->aux);
}

static int local_word(ctx_t *x, i64 p, const node_t *e) /* 1 if a word was written */
{
    core_t *c = x->c;
    op_t *o = OP(c, e->aux);
    i64 *w = &WORD(c, p, o->a.word);
    int op = o->a.op;
    if (o->a.done == DONE_ALWAYS) sp_tell(x, p, e, sp_record_of(o, IN_DONE, p, op ? *w : 0, ST_OK));
    if (op) *w = op == SET ? o->a.value : (i64)((u64)*w + (u64)o->a.value);
    sp_free_op(c, e->aux);
    return op != NO_OP;
}

void sp_local(ctx_t *x, i64 p, const node_t *e)
{
    core_t *c = x->c;
    const op_t *o = OP(c, e->aux);
    i64 records = WORD(c, p, INBOX_WORD(c)), word = o->a.word;
    i32 kind = o->a.kind;
    if (kind == K_RECV) receive(x, p, e);
    else if (kind == K_CLOSE) close(x, p, e);
    else if (local_word(x, p, e)) sp_evaluate(x, p, e->t, word);
    sp_evaluate_end(x, p, e->t, records);
}
