/* The second half of an exchange: gets of the rows that the records announced, and going on along a chain. */
#include "heap.h"
#include "ports.h"

/* Rank p's next exchange on a channel: its slot, or -1 if the slot is still in use. */
i64 sp_open_slot(core_t *c, i64 p, i64 channel)
{
    i64 round = AT(c, i64, c->rounds)[p * c->cfg.channels + channel]++, i = 2 * channel + (round & 1);
    return AT(c, i64, SLOT(c, i)->start)[p] < INF ? -1 : i;
}

/* p's exchange ended at t, with or without rows: go on along the chain, or resume. */
static void end_exchange(ctx_t *x, i64 p, i64 t, int rows)
{
    core_t *c = x->c;
    rank_t *r = RANK(c, p);
    if (r->state != BLOCKED) return;
    if (rows || r->chain_at == r->chain_count) {
        sp_decide(x, p, t, r->chain_at);
        return;
    }
    const chain_t *k = AT(c, chain_t, c->chains) + p * c->cfg.chain_steps + r->chain_at++;
    i64 i = sp_open_slot(c, p, k->channel);
    if (i < 0) {
        sp_fail(c, FATAL_REUSE, p);
        return;
    }
    slot_t *s = SLOT(c, i);
    AT(c, i64, s->meta)[p] = k->meta;
    AT(c, i64, s->has_rows)[p] = AT(c, i64, s->row_bytes)[p] = AT(c, i64, s->tag)[p] = 0;
    AT(c, uint8_t, s->lagged)[p] = 0;
    AT(c, i64, s->records)[p] = INF;
    r->slot = i;
    r->pull_start = k->pull_start;
    r->record = k->record;
    r->exchange_seq++;
    r->clock = t + c->cfg.price + k->compute;
    push(x, p, r->clock, key_of(p, r->exchange_seq, 0, S_ROW), 0, p, i);
}

/* All records are in at p and p waits: send a request to every source that has rows for it. */
void sp_start_pull(ctx_t *x, i64 p, i64 base)
{
    core_t *c = x->c;
    rank_t *r = RANK(c, p);
    slot_t *s = SLOT(c, r->slot);
    group_t g = own_group(c, r->slot / 2, p);
    i64 n = c->cfg.n, *row_bytes = AT(c, i64, s->row_bytes), *has_rows = AT(c, i64, s->has_rows);
    i32 *counts = AT(c, i32, s->counts), *received = AT(c, i32, s->received) + p * n;
    i64 found = 0, z = g.me, rowers = round_of(c, r->slot, &g)->rowers;
    memset(received, 0, (size_t)g.size * 4);
    r->records = AT(c, i64, s->records)[p];
    r->last = base + r->pull_start;
    for (i64 j = 1; rowers && j <= g.size; j++) {
        z = z + 1 < g.size ? z + 1 : 0;
        i64 q = RANK_AT(&g, z);
        if (!has_rows[q] || counts[q * n + g.me] <= 0) continue;
        i32 count = received[z] = counts[q * n + g.me];
        i64 t = r->last + found * r->record + c->cfg.request[CLASS(c, p, q)];
        push(x, q, max64(t, base + 1), key_of(p, r->exchange_seq, ++found, S_PULL), count * row_bytes[q], p, 0);
    }
    r->remaining = found;
    if (!found) end_exchange(x, p, r->last, 0);
}

void sp_pull(ctx_t *x, i64 p, const node_t *e)
{
    core_t *c = x->c;
    i64 l = CLASS(c, p, e->peer), ser = occupy_ps(e->val, c->cfg.read_bw[l]), port = l ? PORT_EGRESS : PORT_LOCAL;
    i64 start = serve(RANK(c, p), port, e->t, ser);
    record(x, p, port, KIND_PULL, e->peer, e->t, e->key, start, start + ser, e->val);
    RANK(c, e->peer)->bytes[l] += e->val;
    i64 at = start + c->cfg.response[l] + (l ? 0 : ser);
    push(x, e->peer, at, staged(e->key, S_PULL_IN), e->val, p, 0);
}

void sp_pull_in(ctx_t *x, i64 p, const node_t *e)
{
    core_t *c = x->c;
    rank_t *r = RANK(c, p);
    i64 l = CLASS(c, p, e->peer), end = e->t;
    if (l) {
        i64 ser = occupy_ps(e->val, c->cfg.read_bw[l]);
        sp_settle_rows(x, p, e->t, e->key);
        i64 start = serve(r, PORT_INGRESS, e->t, ser);
        end = start + ser;
        record(x, p, PORT_INGRESS, KIND_PULL, e->peer, e->t, e->key, start, end, e->val);
    }
    r->last = max64(r->last, end);
    if (!--r->remaining) end_exchange(x, p, r->last, 1);
}
