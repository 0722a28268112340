/* Latent attention of one layer as one call: norm, projections, cache rows, attention, output, residual.
 *
 * What is computed is `serving/model/attention.py`, in its order of sums: scores of all keys, their maximum, exp, then
 * blocks of KEY_BLOCK keys added up in order; weights of masked keys are zero and change no sum. */
#pragma GCC optimize("O3")
#pragma GCC target("avx2,fma")
#include "product.h"
#include <stdlib.h>

enum { KEY_BLOCK = 64 };
#define MODE ((i64)(0x00000002 | 0x00280000 | 0x00000100)) /* as torch calls vmsExp: accurate, no errors raised */

/* Filled by fused.py, in this order. q_in is hidden where there is no q_a. */
typedef struct {
    i64 hidden, heads, nope, rope, rank, value, q_in, interleave;
    const float *norm, *q_a, *q_norm, *q, *kv_a, *kv_norm, *kv_b, *o;
    exp_t exp;
    double eps, inner_eps, scale;
} attention_t;

/* A step; segments int64 [n, 4]: first row, rows, position of the first, where its pages begin in `tables`. */
typedef struct {
    i64 rows, num_segments, page_size;
    const i64 *slots, *segments, *tables;
    const float *cos, *sin;
} step_t;

/* Rotate heads of `rope` values across the lanes, in place; cos, sin [rows, rope]. */
static void rotate(const attention_t *t, float *x, i64 rows, i64 lanes, const float *cos, const float *sin)
{
    float old[t->rope * lanes];
    const i64 half = t->rope / 2;
    memcpy(old, x, sizeof old);
    for (i64 k = 0; k < t->rope; k++) {
        const i64 other = t->interleave ? k ^ 1 : k < half ? k + half : k - half;
        for (i64 i = 0; i < rows; i++)
            x[k * lanes + i] = old[k * lanes + i] * cos[i * t->rope + k] + old[other * lanes + i] * sin[i * t->rope + k];
    }
}

/* Queries [rows, heads, rope + rank] and cache rows of up to LANES rows x. */
static void project(const attention_t *t, const step_t *s, const float *x, i64 first, i64 rows, float *pages, float *out)
{
    const i64 lanes = lanes_for(rows), head = t->nope + t->rope, key = t->rope + t->rank;
    float in[t->hidden * lanes], latent[key * lanes], low[t->q_in * lanes], query[t->heads * head * lanes];
    float absorbed[t->rank * lanes];
    const float *cos = s->cos + first * t->rope, *sin = s->sin + first * t->rope, *from = in;
    across(x + first * t->hidden, rows, t->hidden, lanes, in);
    normed(in, t->hidden, lanes, t->norm, (float)t->eps, in);
    product_of(t->kv_a, key, t->hidden, in, lanes, latent);
    if (t->q_a) {
        product_of(t->q_a, t->q_in, t->hidden, in, lanes, low);
        normed(low, t->q_in, lanes, t->q_norm, (float)t->inner_eps, low);
        from = low;
    }
    product_of(t->q, t->heads * head, t->q_in, from, lanes, query);
    for (i64 h = 0; h < t->heads; h++) {
        float *mine = query + h * head * lanes, *to = out + (first * t->heads + h) * key;
        matrix_t absorb = { t->kv_b + h * (t->nope + t->value) * t->rank, 1, t->rank };
        rotate(t, mine + t->nope * lanes, rows, lanes, cos, sin);
        product(absorb, t->rank, t->nope, mine, lanes, absorbed);
        along(mine + t->nope * lanes, rows, t->rope, lanes, to, t->heads * key);
        along(absorbed, rows, t->rank, lanes, to + t->rope, t->heads * key);
    }
    for (i64 k = first * t->heads * key; k < (first + rows) * t->heads * key; k++) out[k] *= (float)t->scale;
    rotate(t, latent + t->rank * lanes, rows, lanes, cos, sin);
    normed(latent, t->rank, lanes, t->kv_norm, (float)t->inner_eps, latent);
    for (i64 i = 0; i < rows; i++) {
        float *row = pages + s->slots[first + i] * (key + 1);
        along(latent + t->rank * lanes + i, 1, t->rope, lanes, row, 0);
        along(latent + i, 1, t->rank, lanes, row + t->rope, 0);
    }
}

/* Keys from `key` on that lie behind one another: up to the end of the page, and before `end`. */
static i64 run_of(const step_t *s, i64 key, i64 end) { return min_of(end, (key / s->page_size + 1) * s->page_size) - key; }

static const float *row_of(const step_t *s, const i64 *table, const float *pages, i64 key, i64 width)
{
    return pages + (table[key / s->page_size] * s->page_size + key % s->page_size) * width;
}

/* scores [end, lanes] of queries [rope + rank, lanes]; each lane sees the keys before its own end. Then exp(score - max). */
static void weigh(const attention_t *t, const step_t *s, const i64 *table, const float *pages, i64 end, const i64 *ends,
                  const float *queries, i64 lanes, float *scores)
{
    const i64 key = t->rope + t->rank;
    float most[LANES];
    for (i64 at = 0, run; at < end; at += run) {
        run = run_of(s, at, end);
        matrix_t keys = { row_of(s, table, pages, at, key + 1), key + 1, 1 };
        product(keys, run, key, queries, lanes, scores + at * lanes);
    }
    for (i64 i = 0; i < lanes; i++) {
        most[i] = -INFINITY;
        for (i64 at = ends[i]; at < end; at++) scores[at * lanes + i] = -INFINITY;
    }
    for (i64 at = 0; at < end; at++)
        for (i64 i = 0; i < lanes; i++) most[i] = scores[at * lanes + i] > most[i] ? scores[at * lanes + i] : most[i];
    for (i64 at = 0; at < end; at++)
        for (i64 i = 0; i < lanes; i++) scores[at * lanes + i] -= most[i];
    t->exp((int)(end * lanes), scores, scores, MODE);
}

/* totals [rank + 1, lanes]: sums of [value | 1] by these weights, block by block. */
static void add_up(const attention_t *t, const step_t *s, const i64 *table, const float *pages, i64 end,
                   const float *weights, i64 lanes, float *totals)
{
    const i64 width = t->rope + t->rank + 1, values = t->rank + 1;
    for (i64 block = 0; block < end; block += KEY_BLOCK) {
        const i64 stop = min_of(end, block + KEY_BLOCK);
        float part[values * lanes], *sums = block ? part : totals;
        for (i64 at = block, run; at < stop; at += run) {
            run = run_of(s, at, stop);
            matrix_t turned = { row_of(s, table, pages, at, width) + t->rope, 1, width };
            chains(turned, values, run, weights + at * lanes, lanes, sums, at > block);
        }
        for (i64 i = 0; block && i < values * lanes; i++) totals[i] += part[i];
    }
}

/* Attention of `count` successive rows of a sequence, the first at `position`; attended [count, heads, rank]. */
static void attend(const attention_t *t, const step_t *s, const i64 *table, const float *pages, i64 position, i64 count,
                   const float *queries, float *scores, float *attended)
{
    const i64 key = t->rope + t->rank, used = count * t->heads, lanes = lanes_for(used);
    float turned[key * lanes], totals[(t->rank + 1) * lanes];
    i64 ends[LANES];
    for (i64 i = 0; i < lanes; i++) ends[i] = position + 1 + (i < used ? i / t->heads : 0);
    across(queries, used, key, lanes, turned);
    weigh(t, s, table, pages, position + count, ends, turned, lanes, scores);
    add_up(t, s, table, pages, position + count, scores, lanes, totals);
    for (i64 i = 0; i < used; i++)
        for (i64 k = 0; k < t->rank; k++) attended[i * t->rank + k] = totals[k * lanes + i] / totals[t->rank * lanes + i];
}

/* out = x + o(attended, expanded to values), of up to LANES rows. */
static void output(const attention_t *t, const float *x, const float *attended, i64 rows, float *out)
{
    const i64 lanes = lanes_for(rows), all = t->heads * t->rank;
    float in[all * lanes], values[t->heads * t->value * lanes], sums[t->hidden * lanes];
    across(attended, rows, all, lanes, in);
    for (i64 h = 0; h < t->heads; h++) {
        const float *expand = t->kv_b + (h * (t->nope + t->value) + t->nope) * t->rank;
        product_of(expand, t->value, t->rank, in + h * t->rank * lanes, lanes, values + h * t->value * lanes);
    }
    product_of(t->o, t->hidden, t->heads * t->value, values, lanes, sums);
    along(sums, rows, t->hidden, lanes, out, t->hidden);
    for (i64 i = 0; i < rows * t->hidden; i++) out[i] += x[i];
}

/* Longest sequence of a step, in keys. */
static i64 longest(const step_t *s)
{
    i64 most = 0;
    for (i64 g = 0; g < s->num_segments; g++) {
        const i64 end = s->segments[4 * g + 1] + s->segments[4 * g + 2];
        if (end > most) most = end;
    }
    return most;
}

/* out[rows, hidden] = x + attention(norm(x)); writes the rows' cache rows into this layer's pages. 0, or 1: no memory. */
int fused_attention(const attention_t *t, const step_t *s, const float *x, float *pages, float *out)
{
    const i64 key = t->rope + t->rank, wide = t->heads * (key + t->rank), joint = LANES / t->heads;
    float *queries = malloc(sizeof(float) * (size_t)(s->rows * wide + longest(s) * LANES));
    if (!queries) return 1;
    float *attended = queries + s->rows * t->heads * key, *scores = queries + s->rows * wide;
    for (i64 i = 0; i < s->rows; i += LANES) project(t, s, x, i, min_of(LANES, s->rows - i), pages, queries);
    for (const i64 *g = s->segments; g < s->segments + 4 * s->num_segments; g += 4)
        for (i64 i = 0; i < g[1]; i += joint) {
            const i64 row = g[0] + i, count = min_of(joint, g[1] - i);
            attend(t, s, s->tables + g[3], pages, g[2] + i, count, queries + row * t->heads * key, scores,
                   attended + row * t->heads * t->rank);
        }
    for (i64 i = 0; i < s->rows; i += LANES)
        output(t, x + i * t->hidden, attended + i * t->heads * t->rank, min_of(LANES, s->rows - i), out + i * t->hidden);
    free(queries);
    return 0;
}
