/* Rows of an exchange leave: one reservation of the source's egress each. When everybody has posted, one event per
 * target at its last arrival. */
#include "heap.h"
#include "records.h"

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
    sp_sort_records(a, tmp, n);
    for (i64 i = 0; i < n; i++) order[i] = a[i].q;
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
#ifdef BREAK_FROM_ME
    z = g->me ? g->size - 1 : 0; /* the first leaves first, whoever sends */
#endif
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

