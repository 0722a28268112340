/* Settlement: process pending events as far as they are final. The caller holds the lock.
 *
 * An event at rank p, time t, is final when t < bound[p], t < (least bound of all running ranks) + look[p] and
 * t < (earliest pending event anywhere) + look[p], or it is the earliest event itself; look[p] is the least latency
 * into p from another rank. So a whole window of one rank's events is processed while its heap is in the cache.
 */
#include "ports.h"
#include "heap.h"

static op_t *op_of(core_t *c, const node_t *e) { return OP(c, e->aux); }

static void release(core_t *c, i64 i)
{
    OP(c, i)->next = (i32)c->op_free;
    c->op_free = i + 1;
}

static void append_log(ctx_t *x, i64 p, const op_t *o, i64 t, i64 key, i32 kind)
{
    core_t *c = x->c;
    rank_t *r = RANK(c, p);
    i64 size = c->cfg.log_entries;
    if (r->log_head - __atomic_load_n(&r->log_tail, __ATOMIC_ACQUIRE) >= size) {
        sp_fail(c, FATAL_LOG, p);
        return;
    }
    AT(c, log_t, c->logs)[p * size + r->log_head % size] = (log_t){
        t, kind, o->poster, o->ref.file, o->ref.file_offset, o->ref.offset, o->ref.nbytes, o->ref.op_id, key, 0, 0 };
    __atomic_store_n(&r->log_head, r->log_head + 1, __ATOMIC_RELEASE);
}

static void egress(ctx_t *x, i64 p, const node_t *e)
{
    core_t *c = x->c;
    const config_t *k = &c->cfg;
    op_t *o = op_of(c, e);
    int get = o->kind == OP_GET, l = CLASS(c, p, o->poster == p ? o->peer : o->poster);
    i64 to = get ? o->poster : o->peer;
    i64 ser = occupy_ps(o->bytes, get ? k->read_bw[l] : k->write_bw[l]);
    i64 latency = get ? k->response[l] : k->put[l], port = l == SELF ? PORT_LOCAL : PORT_EGRESS;
    if (get && o->has_ref) append_log(x, p, o, e->t, e->key, LOG_SNAPSHOT);
    i64 start = serve(RANK(c, p), port, e->t, ser);
    record(x, p, port, get ? KIND_GET : KIND_PUT, to, e->t, e->key, start, start + ser, o->bytes);
    RANK(c, o->poster)->bytes[l] += o->bytes;
    if (l == SELF) push(x, p, start + ser + latency, staged(e->key, S_DELIVER), 0, p, e->aux);
    else push(x, to, start + latency, staged(e->key, S_INGRESS), 0, p, e->aux);
}

static void ingress(ctx_t *x, i64 p, const node_t *e)
{
    core_t *c = x->c;
    op_t *o = op_of(c, e);
    int get = o->kind == OP_GET, l = CLASS(c, p, e->peer);
    i64 ser = occupy_ps(o->bytes, get ? c->cfg.read_bw[l] : c->cfg.write_bw[l]);
#ifndef BREAK_CROSS_TRAFFIC
    sp_settle_rows(x, p, e->t, e->key);
#endif
    i64 start = serve(RANK(c, p), PORT_INGRESS, e->t, ser);
    record(x, p, PORT_INGRESS, get ? KIND_GET : KIND_PUT, e->peer, e->t, e->key, start, start + ser, o->bytes);
    push(x, p, start + ser, staged(e->key, S_DELIVER), 0, e->peer, e->aux);
}

static void close_get(core_t *c, i64 p, i64 i)
{
    rank_t *r = RANK(c, p);
    if (r->gets == i + 1) r->gets = OP(c, i)->next;
    else
        for (i64 at = r->gets; at; at = OP(c, at - 1)->next)
            if (OP(c, at - 1)->next == i + 1) {
                OP(c, at - 1)->next = OP(c, i)->next;
                break;
            }
    release(c, i);
}

static void deliver(ctx_t *x, i64 p, const node_t *e)
{
    core_t *c = x->c;
    op_t *o = op_of(c, e);
    if (o->kind == OP_GET) {
        close_get(c, p, e->aux);
        sp_evaluate(x, p, e->t, -1);
        return;
    }
    if (o->has_ref) append_log(x, p, o, e->t, e->key, LOG_PUT);
    push(x, o->poster, e->t + c->cfg.ack[CLASS(c, p, o->poster)], staged(e->key, S_ACK), 0, p, e->aux);
    if (!o->op) return;
    WORD(c, p, o->word) = o->op == 1 ? o->value : (i64)((u64)WORD(c, p, o->word) + (u64)o->value);
    sp_evaluate(x, p, e->t, o->word);
}

static void atomic(ctx_t *x, i64 p, const node_t *e)
{
    core_t *c = x->c;
    op_t *o = op_of(c, e);
    i64 *w = &WORD(c, p, o->word), old = *w, from = o->poster, word = o->word;
    if (o->op == 0) *w = (i64)((u64)old + (u64)o->value);
    else if (o->op == 1 || old == o->compare) *w = o->value;
    i64 changed = *w != old;
    release(c, e->aux);
    push(x, from, e->t + c->cfg.response[CLASS(c, p, from)], staged(e->key, S_RESPONSE), old, p, 0);
    if (changed) sp_evaluate(x, p, e->t, word);
}

static void process(ctx_t *x, i64 p, const node_t *e)
{
    rank_t *r = RANK(x->c, p);
    x->c->events++;
    switch (e->key & 63) {
    case S_ROW: sp_row(x, p, e); break;
    case S_EGRESS: egress(x, p, e); break;
    case S_INGRESS: ingress(x, p, e); break;
    case S_DELIVER: deliver(x, p, e); break;
    case S_ACK:
        r->unacked--;
        release(x->c, e->aux);
        sp_evaluate(x, p, e->t, -1);
        break;
    case S_ATOMIC: atomic(x, p, e); break;
    case S_RESPONSE:
        r->done = 1;
        r->result = e->val;
        sp_evaluate(x, p, e->t, -1);
        break;
    case S_PULL: sp_pull(x, p, e); break;
    case S_PULL_IN: sp_pull_in(x, p, e); break;
    case S_BULK: sp_bulk(x, p, e); break;
    case S_CHECK: sp_check(x, p, e); break;
    case S_TIMEOUT: sp_timeout(x, p, e); break;
    case S_POLL: sp_poll_end(x, p, e); break;
    case S_RESUME:
        if (r->state == BLOCKED) sp_resume(x, p, e->t, r->result);
        break;
    }
}

/* Nobody runs, and only the ends of polls are pending: has every polling rank polled in vain long enough? */
static int livelock(core_t *c)
{
    for (i64 p = 0; p < c->cfg.n; p++) {
        rank_t *r = RANK(c, p);
        if (r->state == BLOCKED && r->wait == W_POLL && r->vain < c->cfg.livelock) return 0;
    }
    return 1;
}

void sp_settle(ctx_t *x)
{
    core_t *c = x->c;
    i64 *low = AT(c, i64, c->bounds) + 1, *head = AT(c, i64, c->head_t);
    i32 *winner = AT(c, i32, c->winners) + 1;
    for (;;) {
        i64 p = *winner, first = head[p];
        rank_t *r = RANK(c, p);
        if (first >= INF || c->fatal) break;
#if defined BREAK_HOST_ORDER
#elif defined BREAK_OWN_BOUND
        if (first >= *low + r->look) break;
#else
        if (first >= r->bound || first >= *low + r->look) break;
#endif
        if (*low == INF && !c->live && livelock(c)) {
            sp_fail(c, FATAL_LIVELOCK, p);
            break;
        }
        x->batch = p;
        for (;;) {
            node_t e = pop(c, r);
            process(x, p, &e);
            if (!r->count || c->fatal) break;
            i64 t = AT(c, node_t, r->heap)->t;
            if (t >= r->bound || t >= min64(first, *low) + r->look) break;
            if (*low == INF && !c->live) break;
        }
        x->batch = -1;
        set_head(c, p);
    }
    if (c->fatal || *low < INF || head[*winner] < INF) return;
    for (i64 p = 0; p < c->cfg.n; p++) sp_settle_rows(x, p, INF - 1, 0); /* of exchanges that never complete */
    for (i64 p = 0; p < c->cfg.n; p++)
        if (RANK(c, p)->state == BLOCKED) {
            sp_fail(c, FATAL_DEADLOCK, p);
            return;
        }
}
