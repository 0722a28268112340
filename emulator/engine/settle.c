/* Settlement: process pending events as far as they are final. The caller holds the lock.
 *
 * An event at rank p, time t, is final when t < bound[p], t < (least bound of all running ranks) + look[p] and
 * t < (earliest pending event anywhere) + look[p], or it is the earliest event itself; look[p] is the least latency
 * into p from another rank. So a whole window of one rank's events is processed while its heap is in the cache.
 */
#include "ports.h"
#include "heap.h"

static op_t *op_of(core_t *c, const node_t *e) { return OP(c, e->aux); }

static const plane_t *plane_of(const core_t *c, const op_t *o) { return &c->cfg.plane[o->a.plane]; }

/* The bytes leave: at the poster, or at the source of a get, whose memory is looked at now. */
static void egress(ctx_t *x, i64 p, const node_t *e)
{
    core_t *c = x->c;
    op_t *o = op_of(c, e);
    const plane_t *k = plane_of(c, o);
    int get = o->a.kind == K_GET;
    if (get && !o->origin) {
        if (!sp_arrive(x, p, e)) return;
        sp_leave_flight(x, p, e->aux, e->t);
        if (o->a.log_kind) sp_log(x, p, o, e->t, e->key, o->a.log_kind, o->a.log_a, o->a.log_b);
    } else if (!get && o->finished) {
        sp_gone(x, e->aux, e->t);
        return;
    }
    i64 to = get ? o->poster : o->a.peer, l = CLASS(c, p, to), bytes = o->a.nbytes;
    i64 ser = occupy_ps(bytes, get ? k->read_bw[l] : k->write_bw[l]), latency = get ? k->response[l] : k->put[l];
    i64 port = 3 * o->a.plane + (l == SELF ? PORT_LOCAL : PORT_EGRESS), start = serve(RANK(c, p), port, e->t, ser);
    record(x, p, port, kind_of(o), to, e->t, e->key, start, start + ser, bytes);
    RANK(c, o->poster)->bytes[l] += bytes;
    if (o->a.done == DONE_SENT && !get) {
        o->acked_early = 1;
        push(x, p, start + ser + o->a.done_ps, staged(e->key, S_ACK), 0, p, e->aux);
    }
    i64 more = o->a.tail + (get ? o->a.done_ps : 0);
    if (l == SELF) push(x, p, start + ser + latency + more, staged(e->key, S_DELIVER), 0, p, e->aux);
    else push(x, to, start + latency, staged(e->key, S_INGRESS), 0, p, e->aux);
}

static void ingress(ctx_t *x, i64 p, const node_t *e)
{
    core_t *c = x->c;
    op_t *o = op_of(c, e);
    const plane_t *k = plane_of(c, o);
    int get = o->a.kind == K_GET, l = CLASS(c, p, e->peer);
    i64 ser = occupy_ps(o->a.nbytes, get ? k->read_bw[l] : k->write_bw[l]), port = 3 * o->a.plane + PORT_INGRESS;
#ifndef BREAK_CROSS_TRAFFIC
    if (!o->a.plane) sp_settle_rows(x, p, e->t, e->key);
#endif
    i64 start = serve(RANK(c, p), port, e->t, ser);
    record(x, p, port, kind_of(o), e->peer, e->t, e->key, start, start + ser, o->a.nbytes);
    i64 at = start + ser + o->a.tail + (get ? o->a.done_ps : 0);
    push(x, p, at, staged(e->key, S_DELIVER), 0, e->peer, e->aux);
}

/* A put or a message takes effect at p. */
static void take_effect(ctx_t *x, i64 p, const node_t *e)
{
    core_t *c = x->c;
    op_t *o = op_of(c, e);
    i64 records = WORD(c, p, INBOX_WORD(c));
    if (!sp_arrive(x, p, e)) return;
    int match = o->a.kind == K_SEND ? sp_match(x, p, e) : MATCH_ACK;
    if (match == MATCH_REFUSED) return;
    sp_leave_flight(x, p, e->aux, e->t);
    if (o->a.log_kind && o->a.kind == K_PUT) sp_log(x, p, o, e->t, e->key, LOG_PUT, o->a.log_a, o->a.log_b);
    i64 word = o->a.op ? o->a.word : -1;
    if (word >= 0) WORD(c, p, word) = o->a.op == SET ? o->a.value : (i64)((u64)WORD(c, p, word) + (u64)o->a.value);
    if ((o->a.note & NOTE_DELIVERED) && o->a.kind == K_PUT) sp_tell(x, p, e, sp_record_of(o, IN_NOTE, o->poster, o->a.value, ST_OK));
    if (o->a.done == DONE_SENT) sp_part_ended(c, e->aux);
    else if (match == MATCH_ACK) {
        i64 ack = plane_of(c, o)->ack[CLASS(c, p, o->poster)] + o->a.done_ps;
        if (o->quick) sp_acknowledge(x, e->aux, e->t + ack);
        else push(x, o->poster, e->t + ack, staged(e->key, S_ACK), 0, p, e->aux);
    }
    if (word >= 0) sp_evaluate(x, p, e->t, word);
    if (WORD(c, p, INBOX_WORD(c)) != records) sp_evaluate(x, p, e->t, INBOX_WORD(c));
}

static void deliver(ctx_t *x, i64 p, const node_t *e)
{
    op_t *o = op_of(x->c, e);
    if (o->a.kind != K_GET || o->gone) take_effect(x, p, e);
    else if (o->origin) sp_pulled(x, p, e);
    else sp_landed(x, e, ST_OK, 0);
}

static i64 new_value(const args_t *a, i64 old)
{
    switch (a->op) {
    case ATOMIC_ADD: return (i64)((u64)old + (u64)a->value);
    case SWAP: return a->value;
    case CAS: return old == a->compare ? a->value : old;
    case ATOMIC_AND: return old & a->value;
    case ATOMIC_OR: return old | a->value;
    default: return old ^ a->value;
    }
}

static void atomic(ctx_t *x, i64 p, const node_t *e)
{
    core_t *c = x->c;
    op_t *o = op_of(c, e);
    if (!sp_arrive(x, p, e)) return;
    i64 *w = &WORD(c, p, o->a.word), old = *w, from = o->poster, word = o->a.word, records = WORD(c, p, INBOX_WORD(c));
    sp_leave_flight(x, p, e->aux, e->t);
    *w = new_value(&o->a, old);
    if (o->a.note & NOTE_DELIVERED) sp_tell(x, p, e, sp_record_of(o, IN_NOTE, from, o->a.value, ST_OK));
    i64 at = e->t + plane_of(c, o)->response[CLASS(c, p, from)] + o->a.done_ps;
    push(x, from, at, staged(e->key, S_RESPONSE), old, p, e->aux);
    if (*w != old) sp_evaluate(x, p, e->t, word);
    if (WORD(c, p, INBOX_WORD(c)) != records) sp_evaluate(x, p, e->t, INBOX_WORD(c));
}

static void acknowledged(ctx_t *x, const node_t *e)
{
    op_t *o = op_of(x->c, e);
    i64 p = o->poster, records = WORD(x->c, p, INBOX_WORD(x->c));
    if (o->a.done != DONE_SENT) {
        sp_landed(x, e, o->dropped ? ST_FLUSH : ST_OK, 0);
        return;
    }
    if (!o->finished) {
        sp_finish_op(x, e, e->aux, ST_OK, 0);
        sp_evaluate_end(x, p, e->t, records);
    }
    sp_part_ended(x->c, e->aux);
}

static void response(ctx_t *x, i64 p, const node_t *e)
{
    rank_t *r = RANK(x->c, p);
    if (op_of(x->c, e)->blocking) {
        r->done = 1;
        r->result = e->val;
    }
    sp_landed(x, e, ST_OK, e->val);
}

static void retry(ctx_t *x, i64 p, const node_t *e)
{
    op_t *o = op_of(x->c, e);
    node_t again = *e;
    again.key = staged(e->key, S_EGRESS);
    if (o->a.kind == K_PUT || o->a.kind == K_SEND) egress(x, p, &again);
    else if (o->finished) sp_gone(x, e->aux, e->t);
    else sp_launch(x, e->aux, e->t, p);
}

static int is_news(core_t *c, const node_t *e) /* to sends that are retried for ever */
{
    i64 stage = e->key & 63;
    int without = stage == S_ROW || stage == S_BULK || stage == S_PULL || stage == S_PULL_IN;
    return !(e->key & LATE) && (without || !op_of(c, e)->epoch);
}

static void process(ctx_t *x, i64 p, const node_t *e)
{
    rank_t *r = RANK(x->c, p);
    x->c->events++;
    if (x->c->idle && is_news(x->c, e)) sp_news(x->c);
    switch (e->key & 63) {
    case S_START: sp_start(x, p, e); break;
    case S_ROW: sp_row(x, p, e); break;
    case S_EGRESS: egress(x, p, e); break;
    case S_INGRESS: ingress(x, p, e); break;
    case S_DELIVER: deliver(x, p, e); break;
    case S_ACK: acknowledged(x, e); break;
    case S_ATOMIC: atomic(x, p, e); break;
    case S_RESPONSE: response(x, p, e); break;
    case S_LOCAL: sp_local(x, p, e); break;
    case S_RETRY: retry(x, p, e); break;
    case S_FAIL: sp_failed(x, e); break;
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

/* Nobody runs, and only ends of polls and retries in vain are pending. */
static int in_vain(const core_t *c) { return c->live == c->idle && c->stale == c->idle; }

/* Then: has every polling rank polled in vain long enough? */
static int livelock(core_t *c)
{
    for (i64 p = 0; p < c->cfg.n; p++) {
        rank_t *r = RANK(c, p);
        if (r->state == BLOCKED && r->wait == W_POLL && r->vain < c->cfg.livelock) return 0;
    }
    return 1;
}

static void settle_leftovers(ctx_t *x) /* of exchanges that never complete */
{
    for (i64 p = 0; p < x->c->cfg.n; p++) sp_settle_rows(x, p, INF - 1, 0);
}

/* An error, unless everybody has finished. */
static void give_up(ctx_t *x)
{
    core_t *c = x->c;
    i64 blocked = -1;
    settle_leftovers(x);
    for (i64 p = 0; p < c->cfg.n; p++) {
        if (RANK(c, p)->state != BLOCKED) continue;
        if (RANK(c, p)->wait == W_POLL) {
            sp_fail(c, FATAL_LIVELOCK, p);
            return;
        }
        if (blocked < 0) blocked = p;
    }
    if (blocked >= 0) sp_fail(c, FATAL_DEADLOCK, blocked);
}

/* Exchanges under way are over: their records have left and been served, and their channels are as new. */
static void drop_exchanges(ctx_t *x)
{
    core_t *c = x->c;
    i64 n = c->cfg.n, words = (2 * c->cfg.channels + 63) / 64;
    settle_leftovers(x);
    for (i64 w = 0; w < words; w++) {
        for (u64 bits = c->live_slots[w]; bits; bits &= bits - 1) {
            slot_t *s = SLOT(c, 64 * w + __builtin_ctzll(bits));
            for (i64 p = 0; p < n; p++) {
                AT(c, i64, s->start)[p] = AT(c, i64, s->low)[p] = INF;
                AT(c, i64, s->done_count)[p] = AT(c, i64, s->meta_end)[p] = AT(c, i32, s->leader)[p] = 0;
                AT(c, round_t, s->rounds)[p] = (round_t){ 0 };
            }
            s->live = 0;
        }
        c->live_slots[w] = 0;
    }
    c->active = 0;
    memset(AT(c, i64, c->rounds), 0, (size_t)(n * c->cfg.channels) * sizeof(i64));
}

/* Everything is blocked for good, and ranks have died of whom the others do not know: those that wait for news of it are
 * told, all at once, at the latest of their clocks. 0 if nobody died, or somebody who is blocked does not wait for it. */
static int change_membership(ctx_t *x)
{
    core_t *c = x->c;
    i64 t = 0, new_dead = 0, told = 0;
    for (i64 p = 0; p < c->cfg.n; p++) {
        rank_t *r = RANK(c, p);
        if (r->state == DEAD) new_dead += !r->lost;
        if (r->state != BLOCKED) continue;
        if (!r->subscribed) return 0;
        t = max64(t, r->clock);
        told++;
    }
    if (!new_dead || !told) return 0;
    drop_exchanges(x);
    sp_wall_realign(c, t);
    c->changes++;
    for (i64 p = 0; p < c->cfg.n; p++) {
        rank_t *r = RANK(c, p);
        if (r->state == DEAD && !r->lost) r->lost = c->changes;
        if (r->state != BLOCKED) continue;
        r->interrupted = 1;
        sp_resume(x, p, t, 0);
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
        if (*low == INF && in_vain(c) && livelock(c)) {
            give_up(x);
            break;
        }
        x->batch = p;
        for (;;) {
            node_t e = pop(c, r);
            process(x, p, &e);
            if (!r->count || c->fatal) break;
            i64 t = AT(c, node_t, r->heap)->t;
            if (t >= r->bound || t >= min64(first, *low) + r->look) break;
            if (*low == INF && in_vain(c)) break;
        }
        x->batch = -1;
        set_head(c, p);
        sp_undo_commit(c);
    }
    if (c->fatal || *low < INF || head[*winner] < INF || change_membership(x)) return;
    settle_leftovers(x);
    for (i64 p = 0; p < c->cfg.n; p++)
        if (RANK(c, p)->state == BLOCKED) {
            sp_fail(c, FATAL_DEADLOCK, p);
            return;
        }
}
