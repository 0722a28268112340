/* The first half of an exchange: a row of metadata records from each rank to every rank.
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

static void serve_record(ctx_t *x, i64 p, rank_t *r, const msg_t *m, i64 ser, i64 meta)
{
    i64 start = serve(r, PORT_INGRESS, m->at, ser);
    record(x, p, PORT_INGRESS, KIND_META, m->q, m->at, m->key, start, start + ser, meta);
}

void sp_settle_rows(ctx_t *x, i64 p, i64 t, i64 key)
{
    core_t *c = x->c;
    i64 n = c->cfg.n, found = 0, sources = 0;
    if (!c->active) return;
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
        serve_record(x, p, r, &a[z], k.ser[CLASS(c, p, a[z].q)], meta);
        AT(c, i64, s->meta_end)[p] = r->free[PORT_INGRESS];
    }
}

/* The latest of p's records among sources q0 <= q < q1, one by one; at and key grow. */
static void latest(const core_t *c, const slot_t *s, i64 p, i64 q0, i64 q1, i64 *last, i64 *key)
{
    const i64 *keys = AT(c, i64, s->key), *meta = AT(c, i64, s->meta);
    i64 of = -1;
    cost_t k = { { 0 }, { 0 } };
    for (i64 q = q0; q < q1; q++) {
        if (q == p) continue;
        if (meta[q] != of) k = cost_of(&c->cfg, of = meta[q]);
        i64 at = arrival(c, s, &k, p, q);
        if (at > *last || (at == *last && keys[q] > *key)) {
            *last = at;
            *key = keys[q];
        }
    }
}

/* In an even exchange a pod-distant source's arrival at p is shift[q] + f(p), f larger by a whole row for q > p: one
 * sort of the sources serves every target. */
static void sort_sources(core_t *c, slot_t *s, const cost_t *k)
{
    i64 n = c->cfg.n, *shift = AT(c, i64, s->shift), *order = AT(c, i64, s->order);
    msg_t a[n], tmp[n];
    for (i64 q = 0; q < n; q++) {
        const i64 *above = RANK(c, q)->above;
        shift[q] = AT(c, i64, s->start)[q] + above[CHIP] * (k->ser[CHIP] - k->ser[POD])
                 + above[NODE] * (k->ser[NODE] - k->ser[POD]) - q * k->ser[POD];
        a[q] = (msg_t){ shift[q], AT(c, i64, s->key)[q], (i32)q, 0 };
    }
    sort(a, tmp, n);
    for (i64 i = 0; i < n; i++) order[i] = a[i].q;
}

static i64 pod_arrival(const core_t *c, const slot_t *s, const cost_t *k, i64 p, i64 q)
{
    return AT(c, i64, s->shift)[q] + (p - 1 + (q > p ? c->cfg.n : 0)) * k->ser[POD] + k->latency[POD];
}

/* Everybody has posted: one event per target at its last arrival. */
static void complete(ctx_t *x, i64 i)
{
    core_t *c = x->c;
    slot_t *s = SLOT(c, i);
    i64 n = c->cfg.n, node = c->cfg.dies_per_node, *keys = AT(c, i64, s->key), *shift = AT(c, i64, s->shift);
    cost_t k = cost_of(&c->cfg, max64(s->even, 0));
    i64 below[n + 1], after[n + 1]; /* source with the largest (shift, key) among q < i, among q >= i */
    if (s->even >= 0) {
        sort_sources(c, s, &k);
        below[0] = after[n] = -1;
#define LARGER(q, best) ((best) < 0 || shift[q] > shift[best] || (shift[q] == shift[best] && keys[q] > keys[best]))
        for (i64 q = 0; q < n; q++) below[q + 1] = LARGER(q, below[q]) ? q : below[q];
        for (i64 q = n - 1; q >= 0; q--) after[q] = LARGER(q, after[q + 1]) ? q : after[q + 1];
    }
    for (i64 p = 0; p < n; p++) {
        i64 last = AT(c, i64, s->self)[p], key = keys[p];
        if (s->even < 0) latest(c, s, p, 0, n, &last, &key);
        else {
            i64 first = p / node * node, end = min64(first + node, n), two[] = { below[first], after[end] };
            latest(c, s, p, first, end, &last, &key);
            for (int j = 0; j < 2; j++) {
                if (two[j] < 0) continue;
                i64 at = pod_arrival(c, s, &k, p, two[j]);
                if (at > last || (at == last && keys[two[j]] > key)) {
                    last = at;
                    key = keys[two[j]];
                }
            }
        }
        push(x, p, last, staged(key, S_BULK), 0, p, i);
    }
}

/* How many ranks from q up, before p or the end, are of q's class to p. */
static i64 run_length(core_t *c, i64 p, i64 q)
{
    const config_t *k = &c->cfg;
    i64 chip = p / k->dies_per_chip * k->dies_per_chip, node = p / k->dies_per_node * k->dies_per_node;
    i64 ends[] = { p, k->n, chip, chip + k->dies_per_chip, node, node + k->dies_per_node }, end = k->n;
    for (int i = 0; i < 6; i++)
        if (ends[i] > q) end = min64(end, ends[i]);
    return end - q;
}

void sp_row(ctx_t *x, i64 p, const node_t *e)
{
    core_t *c = x->c;
    slot_t *s = SLOT(c, e->aux);
    rank_t *r = RANK(c, p);
    i64 n = c->cfg.n, bytes = AT(c, i64, s->meta)[p], *low = AT(c, i64, s->low), total = 0;
    cost_t k = cost_of(&c->cfg, bytes);
    i64 start = max64(e->t, r->free[PORT_EGRESS]);
    for (i64 j = 1, q = p; j < n;) { /* runs of one class: mates above, the pod, mates below */
        q = q + 1 < n ? q + 1 : 0;
        i64 l = CLASS(c, p, q), run = run_length(c, p, q), at = start + total + k.latency[l];
        for (i64 i = 0; i < run; i++, at += k.ser[l]) low[q + i] = min64(low[q + i], at);
        total += run * k.ser[l];
        j += run;
        q += run - 1;
    }
    for (int l = CHIP; l <= POD; l++) r->bytes[l] += r->mates[l] * bytes;
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
    c->active += !s->active; /* exchanges with records under way */
    s->active = 1;
    if (!s->posted) {
        s->rowers = 0;
        s->even = bytes;
    } else if (s->even != bytes) s->even = -1;
    s->rowers += AT(c, i64, s->has_rows)[p];
    if (++s->posted == n) complete(x, e->aux);
}

static void close_slot(core_t *c, slot_t *s)
{
    i64 n = c->cfg.n;
    s->posted = s->taken = s->active = 0;
    c->active--;
    for (i64 p = 0; p < n; p++) {
        AT(c, i64, s->start)[p] = AT(c, i64, s->low)[p] = INF;
        AT(c, i64, s->done_count)[p] = AT(c, i64, s->meta_end)[p] = 0;
    }
}

/* All of p's records at once, none served before and no other exchange at this ingress: merge three sorted lists. */
static int serve_even(ctx_t *x, i64 p, i64 i, i64 t)
{
    core_t *c = x->c;
    slot_t *s = SLOT(c, i);
    i64 n = c->cfg.n, node = c->cfg.dies_per_node, meta = s->even;
    if (meta < 0 || AT(c, i64, s->done_count)[p]) return 0;
    for (i64 j = 0; j < 2 * c->cfg.channels; j++)
        if (j != i && SLOT(c, j)->active && AT(c, i64, SLOT(c, j)->low)[p] <= t) return 0;
    i64 first = p / node * node, end = min64(first + node, n), *order = AT(c, i64, s->order);
    i64 num[3] = { 0 }, at[3] = { 0 };
    const i64 *keys = AT(c, i64, s->key);
    cost_t k = cost_of(&c->cfg, meta);
    msg_t a[3][n + 1];
    for (i64 z = 0; z < n; z++) { /* in order: pod below me, pod above me, my node */
        i64 q = order[z];
        if (q >= first && q < end) continue;
        int list = q > p;
        a[list][num[list]++] = (msg_t){ pod_arrival(c, s, &k, p, q), staged(keys[q], S_INGRESS), (i32)q, (i32)i };
    }
    for (i64 q = first; q < end; q++) {
        if (q == p) continue;
        msg_t m = { arrival(c, s, &k, p, q), staged(keys[q], S_INGRESS), (i32)q, (i32)i };
        i64 z = num[2]++;
        for (; z && before(&m, &a[2][z - 1]); z--) a[2][z] = a[2][z - 1];
        a[2][z] = m;
    }
    for (int list = 0; list < 3; list++) a[list][num[list]].at = INF;
    rank_t *r = RANK(c, p);
    for (i64 z = 1; z < n; z++) {
        int pick = before(&a[1][at[1]], &a[0][at[0]]);
        if (before(&a[2][at[2]], &a[pick][at[pick]])) pick = 2;
        const msg_t *m = &a[pick][at[pick]++];
        serve_record(x, p, r, m, k.ser[CLASS(c, p, m->q)], meta);
    }
    AT(c, i64, s->meta_end)[p] = r->free[PORT_INGRESS];
    AT(c, i64, s->done_count)[p] = n - 1;
    AT(c, i64, s->low)[p] = INF;
    return 1;
}

void sp_bulk(ctx_t *x, i64 p, const node_t *e)
{
    core_t *c = x->c;
    slot_t *s = SLOT(c, e->aux);
    rank_t *r = RANK(c, p);
    if (c->cfg.n == 1 || !serve_even(x, p, e->aux, e->t)) sp_settle_rows(x, p, e->t, e->key);
    i64 records = max64(AT(c, i64, s->meta_end)[p], AT(c, i64, s->self)[p]);
    AT(c, i64, s->records)[p] = records;
    if (++s->taken == c->cfg.n) close_slot(c, s);
    if (r->state == BLOCKED && r->wait == W_EXCHANGE && r->armed && r->slot == e->aux)
        sp_start_pull(x, p, max64(records, r->clock));
}
