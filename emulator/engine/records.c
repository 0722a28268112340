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

/* When q's record reaches p's ingress, if q's row is one of equal records to all ranks. */
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

/* When q's record reaches p's ingress, if q's row says of each when it leaves. me: p's place. */
static inline i64 arrival_lagged(const core_t *c, const slot_t *s, i64 p, i64 me, i64 q)
{
    return AT(c, i64, s->start)[q] + AT(c, sent_t, s->sent)[q * c->cfg.n + me].lag + c->cfg.put[CLASS(c, p, q)];
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
    sort(a, tmp, found);
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

/* The latest of p's records among sources at places q0 <= z < q1, one by one; at and key grow. */
static void latest(const core_t *c, const slot_t *s, const group_t *g, i64 p, i64 me, i64 q0, i64 q1, i64 *last, i64 *key)
{
    const i64 *keys = AT(c, i64, s->key), *meta = AT(c, i64, s->meta);
    const uint8_t *lagged = AT(c, uint8_t, s->lagged);
    i64 of = -1;
    cost_t k = { { 0 }, { 0 } };
    for (i64 z = q0; z < q1; z++) {
        i64 q = RANK_AT(g, z);
        if (q == p) continue;
        if (!lagged[q] && meta[q] != of) k = cost_of(&c->cfg, of = meta[q]);
        i64 at = lagged[q] ? arrival_lagged(c, s, p, me, q) : arrival(c, s, &k, p, q);
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

/* Everybody has posted, not all alike: one event per target at its last arrival. */
static void complete_uneven(ctx_t *x, i64 i, const group_t *g)
{
    core_t *c = x->c;
    slot_t *s = SLOT(c, i);
    for (i64 j = 0; j < g->size; j++) {
        i64 p = RANK_AT(g, j), last = AT(c, i64, s->self)[p], key = AT(c, i64, s->key)[p];
        latest(c, s, g, p, j, 0, g->size, &last, &key);
        push(x, p, last, staged(key, S_BULK), 0, p, i);
    }
}

/* The same for an even exchange of all ranks. */
static void complete_even(ctx_t *x, i64 i, const group_t *g, i64 meta)
{
    core_t *c = x->c;
    slot_t *s = SLOT(c, i);
    i64 n = c->cfg.n, node = c->cfg.dies_per_node, *keys = AT(c, i64, s->key), *shift = AT(c, i64, s->shift);
    cost_t k = cost_of(&c->cfg, meta);
    i64 below[n + 1], after[n + 1]; /* source with the largest (shift, key) among q < i, among q >= i */
    sort_sources(c, s, &k);
    below[0] = after[n] = -1;
#define LARGER(q, best) ((best) < 0 || shift[q] > shift[best] || (shift[q] == shift[best] && keys[q] > keys[best]))
    for (i64 q = 0; q < n; q++) below[q + 1] = LARGER(q, below[q]) ? q : below[q];
    for (i64 q = n - 1; q >= 0; q--) after[q] = LARGER(q, after[q + 1]) ? q : after[q + 1];
    for (i64 p = 0; p < n; p++) {
        i64 last = AT(c, i64, s->self)[p], key = keys[p];
        i64 first = p / node * node, end = min64(first + node, n), two[] = { below[first], after[end] };
        latest(c, s, g, p, p, first, end, &last, &key);
        for (int j = 0; j < 2; j++) {
            if (two[j] < 0) continue;
            i64 at = pod_arrival(c, s, &k, p, two[j]);
            if (at > last || (at == last && keys[two[j]] > key)) {
                last = at;
                key = keys[two[j]];
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

/* p's row is the first or next of its group's exchange in the slot; 0 if something else is under way there. */
static round_t *enter_round(core_t *c, i64 i, i64 p, const group_t *g)
{
    slot_t *s = SLOT(c, i);
    round_t *o = round_of(c, i, g);
    i64 check = MEMBER(c, i / 2, p)->check;
    i32 *leader = AT(c, i32, s->leader), *place = AT(c, i32, s->place);
    if (o->posted && o->check != check) return 0;
    if (g->leader && AT(c, i64, c->list_checks)[i / 2 * c->cfg.n + g->leader - 1] != check) return 0;
    for (i64 j = 0; AT(c, i32, c->grouped)[i / 2] && j < g->size; j++) {
        i64 q = RANK_AT(g, j);
        if (leader[q] != g->leader && AT(c, i64, s->start)[q] < INF) return 0;
        leader[q] = (i32)g->leader;
        place[q] = (i32)j;
    }
    if (!o->active) { /* exchanges with records under way */
        c->active++;
        if (!s->live++) c->live_slots[i / 64] |= (u64)1 << i % 64;
        *o = (round_t){ .active = 1, .check = check, .even = AT(c, i64, s->meta)[p] };
    }
    return o;
}

/* p's records leave, all alike; lowers `low` of their targets. Returns how long they take. */
static i64 depart_even(core_t *c, slot_t *s, i64 p, i64 start, i64 bytes)
{
    i64 n = c->cfg.n, *low = AT(c, i64, s->low), total = 0;
    cost_t k = cost_of(&c->cfg, bytes);
    for (i64 j = 1, q = p; j < n;) { /* runs of one class: mates above, the pod, mates below */
        q = q + 1 < n ? q + 1 : 0;
        i64 l = CLASS(c, p, q), run = run_length(c, p, q), at = start + total + k.latency[l];
        for (i64 i = 0; i < run; i++, at += k.ser[l]) low[q + i] = min64(low[q + i], at);
        total += run * k.ser[l];
        j += run;
        q += run - 1;
    }
    for (int l = CHIP; l <= POD; l++) RANK(c, p)->bytes[l] += RANK(c, p)->mates[l] * bytes;
    return total;
}

/* The same where each has its own size, in sent, or has got its place in a group. *bytes: of all. */
static i64 depart_lagged(core_t *c, slot_t *s, i64 p, const group_t *g, i64 start, i64 *bytes)
{
    i64 *low = AT(c, i64, s->low), total = 0, z = g->me;
    sent_t *sent = AT(c, sent_t, s->sent) + p * c->cfg.n;
    for (i64 j = 1; j < g->size; j++) {
        z = z + 1 < g->size ? z + 1 : 0;
        i64 q = RANK_AT(g, z), l = CLASS(c, p, q), at = start + total + c->cfg.put[l];
        low[q] = min64(low[q], at);
        sent[z].lag = total;
        total += occupy_ps(sent[z].bytes, c->cfg.write_bw[l]);
        RANK(c, p)->bytes[l] += sent[z].bytes;
        *bytes += sent[z].bytes;
    }
    return sent[g->me].lag = total;
}

void sp_row(ctx_t *x, i64 p, const node_t *e)
{
    core_t *c = x->c;
    slot_t *s = SLOT(c, e->aux);
    rank_t *r = RANK(c, p);
    group_t g = own_group(c, e->aux / 2, p);
    round_t *o = enter_round(c, e->aux, p, &g);
    if (!o) {
        sp_fail(c, FATAL_GROUP, p);
        return;
    }
    i64 n = c->cfg.n, mine = AT(c, i64, s->meta)[p], all = mine * (g.size - 1), total;
    i64 start = max64(e->t, r->free[PORT_EGRESS]);
    uint8_t *lagged = AT(c, uint8_t, s->lagged) + p;
    sent_t *sent = AT(c, sent_t, s->sent) + p * n;
    for (i64 j = 0; g.ranks && !*lagged && j < g.size; j++) sent[j].bytes = mine;
    if (*lagged |= g.ranks != 0) {
        mine = sent[g.me].bytes;
        total = depart_lagged(c, s, p, &g, start, (all = 0, &all));
        o->even = -1;
        o->lagged++;
    } else total = depart_even(c, s, p, start, mine);
    if (g.size > 1) {
        serve(r, PORT_EGRESS, e->t, total);
        record(x, p, PORT_EGRESS, KIND_META, -1, e->t, e->key, start, start + total, all);
    }
    i64 ser = occupy_ps(mine, c->cfg.write_bw[SELF]), own = serve(r, PORT_LOCAL, e->t, ser);
    record(x, p, PORT_LOCAL, KIND_META, p, e->t, e->key, own, own + ser, mine);
    r->bytes[SELF] += mine;
    AT(c, i64, s->self)[p] = own + ser + c->cfg.put[SELF];
    AT(c, i64, s->start)[p] = start;
    AT(c, i64, s->key)[p] = e->key;
    if (o->even != mine) o->even = -1;
    o->rowers += AT(c, i64, s->has_rows)[p];
    if (++o->posted < g.size) return;
    if (o->even >= 0) complete_even(x, e->aux, &g, o->even);
    else complete_uneven(x, e->aux, &g);
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
}
