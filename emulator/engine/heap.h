/* Pending events: a binary heap per rank (its ports, deliveries and time-outs), a tournament over the heads, and a
 * tournament over the bounds. Nodes live in an arena; a heap that is full moves to a block twice its size. */
#ifndef SUPERPOD_HEAP_H
#define SUPERPOD_HEAP_H
#include "layout.h"
#include <string.h>

static inline void set_bound(core_t *c, i64 p, i64 t)
{
    i64 *m = AT(c, i64, c->bounds), i = c->half + p;
    RANK(c, p)->bound = m[i] = t;
    for (i >>= 1; i; i >>= 1) {
        i64 v = min64(m[2 * i], m[2 * i + 1]);
        if (m[i] == v) break;
        m[i] = v;
    }
}

static inline int earlier(i64 t, i64 key, i64 u, i64 other) { return t < u || (t == u && key < other); }

static inline void set_head(core_t *c, i64 p)
{
    rank_t *r = RANK(c, p);
    i64 *ht = AT(c, i64, c->head_t), *hk = AT(c, i64, c->head_key);
    i32 *w = AT(c, i32, c->winners);
    node_t *h = AT(c, node_t, r->heap);
    ht[p] = r->count ? h->t : INF;
    hk[p] = r->count ? h->key : INF;
    for (i64 i = (c->half + p) >> 1; i; i >>= 1) {
        i32 a = w[2 * i], b = w[2 * i + 1];
        w[i] = earlier(ht[b], hk[b], ht[a], hk[a]) ? b : a;
    }
}

static inline int block_class(i64 capacity)
{
    int k = 0;
    while (((i64)16 << k) < capacity) k++;
    return k;
}

static inline i64 block_take(core_t *c, int k) /* offset of 16 << k nodes, or 0 */
{
    i64 at = c->arena_free[k], size = ((i64)16 << k) * (i64)sizeof(node_t);
    if (at) {
        c->arena_free[k] = *AT(c, i64, at);
        return at;
    }
    if (c->arena_used + size > c->arena_size) return 0;
    at = c->arena + c->arena_used;
    c->arena_used += size;
    return at;
}

static inline int heap_grow(core_t *c, rank_t *r)
{
    int k = r->capacity ? block_class(r->capacity) : -1;
    i64 at = block_take(c, k + 1);
    if (!at) return 0;
    if (r->capacity) {
        memcpy(AT(c, node_t, at), AT(c, node_t, r->heap), (size_t)r->count * sizeof(node_t));
        *AT(c, i64, r->heap) = c->arena_free[k];
        c->arena_free[k] = r->heap;
    }
    r->heap = at;
    r->capacity = (i64)16 << (k + 1);
    return 1;
}

static inline void push(ctx_t *x, i64 p, i64 t, i64 key, i64 val, i64 peer, i64 aux)
{
    core_t *c = x->c;
    rank_t *r = RANK(c, p);
    if (r->count == r->capacity && !heap_grow(c, r)) {
        sp_fail(c, FATAL_NODES, p);
        return;
    }
    node_t *h = AT(c, node_t, r->heap);
    i64 k = r->count++;
    for (i64 up = (k - 1) / 2; k && earlier(t, key, h[up].t, h[up].key); k = up, up = (k - 1) / 2) h[k] = h[up];
    h[k] = (node_t){ t, key, val, (i32)peer, (i32)aux };
    c->live += (key & 63) != S_POLL;
    if (!k && x->batch != p) set_head(c, p);
}

static inline node_t pop(core_t *c, rank_t *r)
{
    node_t *h = AT(c, node_t, r->heap), top = h[0], v = h[--r->count];
    i64 n = r->count, k = 0;
    /* The hole sinks to a leaf (without branches: which child is earlier cannot be predicted), then v rises from there.
     * h[n] still holds v, so a last child without a sibling may be compared with it. */
    for (i64 j; (j = 2 * k + 1) < n; k = j) {
        const node_t *a = h + j, *b = h + j + 1;
        j += (b->t < a->t) | ((b->t == a->t) & (b->key < a->key));
        h[k] = h[j];
    }
    for (i64 up = (k - 1) / 2; k && earlier(v.t, v.key, h[up].t, h[up].key); k = up, up = (k - 1) / 2) h[k] = h[up];
    h[k] = v;
    c->live -= (top.key & 63) != S_POLL;
    return top;
}
#endif
