/* The pull pattern: a row of metadata records each, then gets of what the records announce.
 *
 * The n*n records are never events. A row is one reservation of its source's egress; what reaches a target's ingress
 * is computed when something needs it: cross-traffic at that ingress (sp_settle_rows, in key order, up to there), or
 * one BULK event per target at its last record's arrival, which settles the rest in one sorted scan.
 */
#include "heap.h"
#include "ports.h"

typedef struct { i64 at, key; i32 q, slot; } msg_t;
typedef struct { i64 ser[4], latency[4]; } cost_t;

static cost_t cost_of(const config_t *k, i64 meta)
{
    cost_t s;
    for (int l = 0; l < 4; l++) {
        s.ser[l] = occupy_ps(meta, k->write_bw[l]);
        s.latency[l] = k->put[l];
    }
    return s;
}

/* When q's record reaches p's ingress. */
static inline i64 arrival(const core_t *c, const slot_t *s, const cost_t *k, i64 p, i64 q)
{
    u32 v = AT(c, u32, c->paths)[p * c->cfg.n + q];
    return AT(c, i64, s->start)[q] + (v & 1023) * k->ser[CHIP] + (v >> 10 & 1023) * k->ser[NODE]
         + (v >> 20) * k->ser[POD] + k->latency[CLASS(c, p, q)];
}

/* Rank p's next exchange on a channel: its slot, or -1 if the slot is still in use. */
i64 sp_open_slot(core_t *c, i64 p, i64 channel)
{
    i64 round = AT(c, i64, c->rounds)[p * c->cfg.channels + channel]++, i = 2 * channel + (round & 1);
    return AT(c, i64, SLOT(c, i)->start)[p] < INF ? -1 : i;
}

static inline int before(const msg_t *a, const msg_t *b) { return a->at < b->at || (a->at == b->at && a->key < b->key); }

static void sort(msg_t *a, msg_t *tmp, i64 n) /* bottom-up merge over insertion-sorted runs; cheap if nearly sorted */
{
    for (i64 b = 0; b < n; b += 8)
        for (i64 i = b + 1; i < b + 8 && i < n; i++) {
            msg_t v = a[i];
            i64 j = i;
            for (; j > b && before(&v, &a[j - 1]); j--) a[j] = a[j - 1];
            a[j] = v;
        }
    for (i64 run = 8; run < n; run *= 2)
        for (i64 b = 0; b + run < n; b += 2 * run) {
            i64 m = b + run, e = min64(b + 2 * run, n), i = 0, j = m, k = b;
            if (!before(&a[m], &a[m - 1])) continue;
            for (i64 z = b; z < m; z++) tmp[z - b] = a[z];
            while (i < run && j < e) a[k++] = before(&a[j], &tmp[i]) ? a[j++] : tmp[i++];
            while (i < run) a[k++] = tmp[i++];
        }
}

/* Gather p's records of slot i that arrived before (t, key) and were not served yet. */
static i64 gather(core_t *c, i64 i, i64 p, i64 t, i64 key, msg_t *out)
{
    slot_t *s = SLOT(c, i);
    i64 n = c->cfg.n, found = 0, low = INF, *start = AT(c, i64, s->start), *keys = AT(c, i64, s->key);
    i64 *meta = AT(c, i64, s->meta), *done_count = AT(c, i64, s->done_count) + p, of = -1;
    uint8_t *done = AT(c, uint8_t, s->done) + p * n;
    int partial = *done_count > 0;
    cost_t k = { { 0 }, { 0 } };
    for (i64 j = 1, q = p; j < n; j++) {
        q = q ? q - 1 : n - 1; /* nearly the order of arrival when all start together */
        if (start[q] == INF || (partial && done[q])) continue;
        if (meta[q] != of) k = cost_of(&c->cfg, of = meta[q]);
        msg_t m = { arrival(c, s, &k, p, q), staged(keys[q], S_INGRESS), (i32)q, (i32)i };
        #ifdef BREAK_TIE
        if (m.at <= t) out[found++] = m;
#else
        if (m.at < t || (m.at == t && m.key < key)) out[found++] = m;
#endif
        else low = min64(low, m.at);
    }
    AT(c, i64, s->low)[p] = low;
    if (low < INF || s->posted < n) { /* others follow: remember which are served */
        if (!partial) memset(done, 0, (size_t)n);
        for (i64 z = 0; z < found; z++) done[out[z].q] = 1;
    }
    *done_count += found;
    return found;
}

void sp_settle_rows(ctx_t *x, i64 p, i64 t, i64 key)
{
    core_t *c = x->c;
    i64 n = c->cfg.n, found = 0, sources = 0;
    for (i64 i = 0; i < 2 * c->cfg.channels; i++)
        sources += SLOT(c, i)->active && AT(c, i64, SLOT(c, i)->low)[p] <= t;
    if (!sources) return;
#ifdef BREAK_NEXT_ROUND
    if ((key & 63) == S_BULK) { /* forget what else reached this ingress */
        for (i64 i = 0; i < 2 * c->cfg.channels; i++)
            if (SLOT(c, i)->posted < n && SLOT(c, i)->active && AT(c, i64, SLOT(c, i)->low)[p] <= t) {
                AT(c, i64, SLOT(c, i)->low)[p] = t + 1;
                sources--;
            }
        if (!sources) return;
    }
#endif
    msg_t a[sources * n], tmp[sources * n];
    for (i64 i = 0; i < 2 * c->cfg.channels; i++)
        if (SLOT(c, i)->active && AT(c, i64, SLOT(c, i)->low)[p] <= t) found += gather(c, i, p, t, key, a + found);
    sort(a, tmp, found);
    rank_t *r = RANK(c, p);
    i64 of = -1;
    cost_t k = { { 0 }, { 0 } };
    for (i64 z = 0; z < found; z++) {
        slot_t *s = SLOT(c, a[z].slot);
        i64 meta = AT(c, i64, s->meta)[a[z].q];
        if (meta != of) k = cost_of(&c->cfg, of = meta);
        i64 ser = k.ser[CLASS(c, p, a[z].q)], start = serve(r, PORT_INGRESS, a[z].at, ser);
        record(x, p, PORT_INGRESS, KIND_META, a[z].q, a[z].at, a[z].key, start, start + ser, meta);
        AT(c, i64, s->meta_end)[p] = start + ser;
    }
}

/* Everybody has posted: one event per target at its last arrival. */
static void complete(ctx_t *x, i64 i)
{
    core_t *c = x->c;
    slot_t *s = SLOT(c, i);
    i64 n = c->cfg.n, *keys = AT(c, i64, s->key), *meta = AT(c, i64, s->meta), *self = AT(c, i64, s->self), of = -1;
    cost_t k = { { 0 }, { 0 } };
    for (i64 p = 0; p < n; p++) {
        i64 last = self[p], key = staged(keys[p], S_INGRESS);
        for (i64 q = 0; q < n; q++) {
            if (q == p) continue;
            if (meta[q] != of) k = cost_of(&c->cfg, of = meta[q]);
            i64 at = arrival(c, s, &k, p, q), kq = staged(keys[q], S_INGRESS);
            if (at > last || (at == last && kq > key)) {
                last = at;
                key = kq;
            }
        }
        push(x, p, last, staged(key, S_BULK), 0, p, i);
    }
}

void sp_row(ctx_t *x, i64 p, const node_t *e)
{
    core_t *c = x->c;
    slot_t *s = SLOT(c, e->aux);
    rank_t *r = RANK(c, p);
    i64 n = c->cfg.n, bytes = AT(c, i64, s->meta)[p], *low = AT(c, i64, s->low), total = 0;
    cost_t k = cost_of(&c->cfg, bytes);
    uint8_t *class = &CLASS(c, p, 0);
    i64 start = max64(e->t, r->free[PORT_EGRESS]);
    for (i64 j = 1, q = p; j < n; j++) {
        q = q + 1 < n ? q + 1 : 0;
        low[q] = min64(low[q], start + total + k.latency[class[q]]);
        total += k.ser[class[q]];
        r->bytes[class[q]] += bytes;
    }
    if (n > 1) {
        serve(r, PORT_EGRESS, e->t, total);
        record(x, p, PORT_EGRESS, KIND_META, -1, e->t, e->key, start, start + total, bytes * (n - 1));
    }
    i64 own = serve(r, PORT_LOCAL, e->t, k.ser[SELF]);
    record(x, p, PORT_LOCAL, KIND_META, p, e->t, e->key, own, own + k.ser[SELF], bytes);
    r->bytes[SELF] += bytes;
    AT(c, i64, s->self)[p] = own + k.ser[SELF] + k.latency[SELF];
    AT(c, i64, s->start)[p] = start;
    AT(c, i64, s->key)[p] = e->key;
    s->active = 1;
    if (!s->posted) s->rowers = 0;
    s->rowers += AT(c, i64, s->has_rows)[p];
    if (++s->posted == n) complete(x, e->aux);
}

static void close_slot(core_t *c, slot_t *s)
{
    i64 n = c->cfg.n;
    s->posted = s->taken = s->active = 0;
    for (i64 p = 0; p < n; p++) {
        AT(c, i64, s->start)[p] = AT(c, i64, s->low)[p] = INF;
        AT(c, i64, s->done_count)[p] = AT(c, i64, s->meta_end)[p] = 0;
    }
}

void sp_bulk(ctx_t *x, i64 p, const node_t *e)
{
    core_t *c = x->c;
    slot_t *s = SLOT(c, e->aux);
    rank_t *r = RANK(c, p);
    sp_settle_rows(x, p, e->t, e->key);
    i64 records = max64(AT(c, i64, s->meta_end)[p], AT(c, i64, s->self)[p]);
    AT(c, i64, s->records)[p] = records;
    if (++s->taken == c->cfg.n) close_slot(c, s);
    if (r->state == BLOCKED && r->wait == W_EXCHANGE && r->armed && r->slot == e->aux)
        sp_start_pull(x, p, max64(records, r->clock));
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
    AT(c, i64, s->records)[p] = INF;
    memset(AT(c, i32, s->counts) + p * c->cfg.n, 0, (size_t)c->cfg.n * 4);
    memset(AT(c, i32, s->offsets) + p * c->cfg.n, 0, (size_t)c->cfg.n * 4);
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
    i64 n = c->cfg.n, *row_bytes = AT(c, i64, s->row_bytes), *has_rows = AT(c, i64, s->has_rows);
    i32 *counts = AT(c, i32, s->counts);
    i64 found = 0, q = p;
    r->records = AT(c, i64, s->records)[p];
    r->last = base + r->pull_start;
    for (i64 j = 1; s->rowers && j <= n; j++) {
        q = q + 1 < n ? q + 1 : 0;
        if (!has_rows[q] || counts[q * n + p] <= 0) continue;
        i64 t = r->last + found * r->record + c->cfg.request[CLASS(c, p, q)];
        push(x, q, max64(t, base + 1), key_of(p, r->exchange_seq, ++found, S_PULL), counts[q * n + p] * row_bytes[q], p, 0);
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
