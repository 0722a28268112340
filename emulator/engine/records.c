/* The first half of an exchange: a row of metadata records from each rank to every rank.
 *
 * The n*n records are never events. A row is one reservation of its source's egress; what reaches a target's ingress
 * is computed when something needs it: cross-traffic at that ingress (sp_settle_rows, in key order, up to there), or
 * one BULK event per target at its last record's arrival, which settles the rest in one sorted scan.
 */
#include "heap.h"
#include "records.h"

void sp_sort_records(msg_t *a, msg_t *tmp, i64 n) /* bottom-up merge over insertion-sorted runs; cheap if nearly sorted */
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
    group_t g = group_at(c, i, p);
    i64 n = c->cfg.n, found = 0, low = INF, *start = AT(c, i64, s->start), *keys = AT(c, i64, s->key);
    i64 *meta = AT(c, i64, s->meta), *done_count = AT(c, i64, s->done_count) + p, of = -1;
    uint8_t *done = AT(c, uint8_t, s->done) + p * n, *lagged = AT(c, uint8_t, s->lagged);
    int partial = *done_count > 0;
    cost_t k = { { 0 }, { 0 } };
    for (i64 j = 1, z = g.me; j < g.size; j++) {
        z = z ? z - 1 : g.size - 1; /* nearly the order of arrival when all start together */
        i64 q = RANK_AT(&g, z);
        if (start[q] == INF || (partial && done[z])) continue;
        if (!lagged[q] && meta[q] != of) k = cost_of(&c->cfg, of = meta[q]);
        i64 at = lagged[q] ? arrival_lagged(c, s, p, g.me, q) : arrival(c, s, &k, p, q);
        msg_t m = { at, staged(keys[q], S_INGRESS), (i32)q, (i32)i };
        #ifdef BREAK_TIE
        if (m.at <= t) out[found++] = m;
#else
        if (m.at < t || (m.at == t && m.key < key)) out[found++] = m;
#endif
        else low = min64(low, m.at);
    }
    AT(c, i64, s->low)[p] = low;
    if (low < INF || round_of(c, i, &g)->posted < g.size) { /* others follow: remember which are served */
        if (!partial) memset(done, 0, (size_t)g.size);
        const i32 *place = AT(c, i32, s->place);
        for (i64 y = 0; y < found; y++) done[g.ranks ? place[out[y].q] : out[y].q] = 1;
    }
    *done_count += found;
    return found;
}

static void serve_record(ctx_t *x, i64 p, rank_t *r, const msg_t *m, i64 ser, i64 meta)
{
    i64 start = serve(r, PORT_INGRESS, m->at, ser);
    record(x, p, PORT_INGRESS, KIND_META, m->q, m->at, m->key, start, start + ser, meta);
}

/* Slots with a record that reaches p's ingress up to t; returns how many. */
static i64 slots_reaching(core_t *c, i64 p, i64 t, i32 *out)
{
    i64 found = 0, words = (2 * c->cfg.channels + 63) / 64;
    for (i64 w = 0; w < words; w++)
        for (u64 bits = c->live_slots[w]; bits; bits &= bits - 1) {
            i64 i = 64 * w + __builtin_ctzll(bits);
            if (AT(c, i64, SLOT(c, i)->low)[p] <= t) out[found++] = (i32)i;
        }
    return found;
}

void sp_settle_rows(ctx_t *x, i64 p, i64 t, i64 key)
{
    core_t *c = x->c;
    i64 n = c->cfg.n, found = 0;
    if (!c->active) return;
    i32 slots[2 * c->cfg.channels];
    i64 sources = slots_reaching(c, p, t, slots);
#ifdef BREAK_NEXT_ROUND
    if ((key & 63) == S_BULK) { /* forget what else reached this ingress */
        i64 kept = 0;
        for (i64 k = 0; k < sources; k++) {
            group_t g = group_at(c, slots[k], p);
            if (round_of(c, slots[k], &g)->posted < g.size) AT(c, i64, SLOT(c, slots[k])->low)[p] = t + 1;
            else slots[kept++] = slots[k];
        }
        sources = kept;
    }
#endif
    if (!sources) return;
    msg_t a[sources * n], tmp[sources * n];
    for (i64 k = 0; k < sources; k++) found += gather(c, slots[k], p, t, key, a + found);
    sp_sort_records(a, tmp, found);
    rank_t *r = RANK(c, p);
    i64 of = -1, last = -1;
    group_t g = { 0 };
    cost_t k = { { 0 }, { 0 } };
    for (i64 z = 0; z < found; z++) {
        slot_t *s = SLOT(c, a[z].slot);
        i64 q = a[z].q, meta = AT(c, i64, s->meta)[q];
        if (a[z].slot != last) g = group_at(c, last = a[z].slot, p);
        if (AT(c, uint8_t, s->lagged)[q]) {
            const sent_t *row = AT(c, sent_t, s->sent) + q * n, *mine = row + g.me;
            serve_record(x, p, r, &a[z], row[g.me + 1 < g.size ? g.me + 1 : 0].lag - mine->lag, mine->bytes);
        } else {
            if (meta != of) k = cost_of(&c->cfg, of = meta);
            serve_record(x, p, r, &a[z], k.ser[CLASS(c, p, q)], meta);
        }
        AT(c, i64, s->meta_end)[p] = r->free[PORT_INGRESS];
    }
}

static void close_round(core_t *c, i64 i, const group_t *g)
{
    slot_t *s = SLOT(c, i);
    round_t *o = round_of(c, i, g);
    o->posted = o->taken = o->active = 0;
    c->active--;
    if (!--s->live) c->live_slots[i / 64] &= ~((u64)1 << i % 64);
    for (i64 j = 0; j < g->size; j++) {
        i64 p = RANK_AT(g, j);
        AT(c, i64, s->start)[p] = AT(c, i64, s->low)[p] = INF;
        AT(c, i64, s->done_count)[p] = AT(c, i64, s->meta_end)[p] = AT(c, i32, s->leader)[p] = 0;
    }
}

/* Sort numbers: runs of four by comparing each with each, then merges without branches on what is compared. */
static u64 *sort_numbers(u64 *a, u64 *b, i64 n)
{
    for (i64 i = 0; i < n; i += 4) {
        i64 end = min64(i + 4, n);
        for (i64 j = i; j < end; j++) {
            i64 at = i;
            for (i64 k = i; k < end; k++) at += a[k] < a[j] || (a[k] == a[j] && k < j);
            b[at] = a[j];
        }
    }
    for (i64 run = 4; run < n; run *= 2) {
        u64 *from = b;
        b = a;
        a = from;
        for (i64 at = 0; at < n; at += 2 * run) {
            i64 i = at, m = min64(at + run, n), j = m, end = min64(m + run, n), k = at;
            while (i < m && j < end) {
                u64 x = a[i], y = a[j];
                int second = y < x;
                b[k++] = second ? y : x;
                j += second;
                i += !second;
            }
            while (i < m) b[k++] = a[i++];
            while (j < end) b[k++] = a[j++];
        }
    }
    return b;
}

/* All of p's records of an exchange in which every row says when each leaves; none served before, and no other exchange
 * at this ingress. Keys go by source, so (arrival, source) in one number is their order. */
static int serve_lagged(ctx_t *x, i64 p, i64 i, i64 t, const group_t *g)
{
    core_t *c = x->c;
    slot_t *s = SLOT(c, i);
    i64 n = c->cfg.n, num = 0, *start = AT(c, i64, s->start), *keys = AT(c, i64, s->key), base = AT(c, i64, s->low)[p];
    i32 slots[2 * c->cfg.channels];
    const sent_t *column = AT(c, sent_t, s->sent) + g->me;
    if (round_of(c, i, g)->lagged < g->size || AT(c, i64, s->done_count)[p] || t - base >= (i64)1 << 51) return 0;
    if (slots_reaching(c, p, t, slots) > (base <= t)) return 0;
    u64 a[n], b[n], *sorted;
    for (i64 z = 0; z < g->size; z++) {
        i64 q = RANK_AT(g, z);
        if (q == p) continue;
        a[num++] = (u64)(start[q] + column[q * n].lag + c->cfg.put[CLASS(c, p, q)] - base) << 12 | (u64)q;
    }
    sorted = sort_numbers(a, b, num);
    rank_t *r = RANK(c, p);
    i64 next = g->me + 1 < g->size ? 1 : 1 - g->size;
    for (i64 z = 0; z < num; z++) {
        i64 q = (i64)(sorted[z] & 4095);
        const sent_t *sent = column + q * n;
        msg_t m = { base + (i64)(sorted[z] >> 12), staged(keys[q], S_INGRESS), (i32)q, (i32)i };
        serve_record(x, p, r, &m, sent[next].lag - sent->lag, sent->bytes);
    }
    AT(c, i64, s->meta_end)[p] = r->free[PORT_INGRESS];
    AT(c, i64, s->done_count)[p] = num;
    AT(c, i64, s->low)[p] = INF;
    return 1;
}

/* All of p's records at once, none served before and no other exchange at this ingress: merge three sorted lists. */
static int serve_even(ctx_t *x, i64 p, i64 i, i64 t, i64 meta)
{
    core_t *c = x->c;
    slot_t *s = SLOT(c, i);
    i64 n = c->cfg.n, node = c->cfg.dies_per_node;
    i32 slots[2 * c->cfg.channels];
    if (meta < 0 || AT(c, i64, s->done_count)[p]) return 0;
    if (slots_reaching(c, p, t, slots) > (AT(c, i64, s->low)[p] <= t)) return 0;
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
    group_t g = group_at(c, e->aux, p);
    round_t *o = round_of(c, e->aux, &g);
    if (g.size == 1 || (!serve_even(x, p, e->aux, e->t, o->even) && !serve_lagged(x, p, e->aux, e->t, &g)))
        sp_settle_rows(x, p, e->t, e->key);
    i64 records = max64(AT(c, i64, s->meta_end)[p], AT(c, i64, s->self)[p]);
    AT(c, i64, s->records)[p] = records;
    if (++o->taken == g.size) close_round(c, e->aux, &g);
    if (r->state == BLOCKED && r->wait == W_EXCHANGE && r->armed && r->slot == e->aux)
        sp_start_pull(x, p, max64(records, r->clock));
    if (r->wait == W_WAIT) sp_evaluate(x, p, e->t, -1);
}
