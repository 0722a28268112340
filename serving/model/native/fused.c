/* Pieces of a layer as one call each: norm, gated MLP, router, output head. See product.h for the arithmetic and
 * serving/model/fused.py for the shapes; attention is in attention.c. */
#pragma GCC optimize("O3")
#pragma GCC target("avx2,fma")
#include "product.h"

/* Filled by fused.py, in this order. */
typedef struct { i64 hidden, width; const float *gate, *up, *down; exp8_t exp8; } mlp_t;
typedef struct { i64 hidden, outputs; const float *norm, *weights; double eps; } head_t;
typedef struct {
    i64 hidden, experts, groups, open_groups, top_k, normalise;
    const float *gate, *bias;
    double factor;
    exp8_t exp8;
} router_t;

/* Can this machine run what is here? */
i64 fused_usable(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

void fused_norm(const head_t *t, const float *x, i64 rows, float *out)
{
    float buffer[t->hidden * LANES];
    for (i64 i = 0; i < rows; i += LANES) {
        const i64 here = min_of(LANES, rows - i), lanes = lanes_for(here);
        across(x + i * t->hidden, here, t->hidden, lanes, buffer);
        normed(buffer, t->hidden, lanes, t->norm, (float)t->eps, buffer);
        along(buffer, here, t->hidden, lanes, out + i * t->hidden, t->hidden);
    }
}

/* out[rows, outputs] = norm(x) weights'. */
void fused_head(const head_t *t, const float *x, i64 rows, float *out)
{
    float buffer[t->hidden * LANES], products[t->outputs * LANES];
    for (i64 i = 0; i < rows; i += LANES) {
        const i64 here = min_of(LANES, rows - i), lanes = lanes_for(here);
        across(x + i * t->hidden, here, t->hidden, lanes, buffer);
        normed(buffer, t->hidden, lanes, t->norm, (float)t->eps, buffer);
        product_of(t->weights, t->outputs, t->hidden, buffer, lanes, products);
        along(products, here, t->outputs, lanes, out + i * t->outputs, t->outputs);
    }
}

/* out = down(silu(gate(x)) * up(x)). */
void fused_mlp(const mlp_t *t, const float *x, i64 rows, float *out)
{
    float in[t->hidden * LANES], gate[t->width * LANES], up[t->width * LANES];
    for (i64 i = 0; i < rows; i += LANES) {
        const i64 here = min_of(LANES, rows - i), lanes = lanes_for(here);
        across(x + i * t->hidden, here, t->hidden, lanes, in);
        product_of(t->gate, t->width, t->hidden, in, lanes, gate);
        product_of(t->up, t->width, t->hidden, in, lanes, up);
        sigmoid(gate, t->width * lanes, t->exp8, 1);
        for (i64 k = 0; k < t->width * lanes; k++) gate[k] *= up[k];
        product_of(t->down, t->hidden, t->width, gate, lanes, in);
        along(in, here, t->hidden, lanes, out + i * t->hidden, t->hidden);
    }
}

/* The largest of `count` values, of equals the first; -1 if all are taken. */
static i64 largest(const float *values, const uint8_t *taken, i64 count)
{
    i64 best = -1;
    for (i64 i = 0; i < count; i++)
        if (!taken[i] && (best < 0 || values[i] > values[best])) best = i;
    return best;
}

/* Leave the groups open that have the largest sums of their two best. */
static void close_groups(const router_t *t, float *choice)
{
    const i64 size = t->experts / t->groups;
    float sums[t->groups];
    uint8_t open[t->groups];
    memset(open, 0, (size_t)t->groups);
    for (i64 g = 0; g < t->groups; g++) {
        float first = -INFINITY, second = -INFINITY;
        for (i64 e = g * size; e < (g + 1) * size; e++) {
            if (choice[e] > first) { second = first; first = choice[e]; }
            else if (choice[e] > second) second = choice[e];
        }
        sums[g] = first + second;
    }
    for (i64 k = 0; k < t->open_groups; k++) open[largest(sums, open, t->groups)] = 1;
    for (i64 g = 0; g < t->groups; g++)
        for (i64 e = g * size; !open[g] && e < (g + 1) * size; e++) choice[e] = -INFINITY;
}

/* The experts of one row, ascending, and their weights. */
static void choose(const router_t *t, const float *scores, i64 *experts, float *weights)
{
    float choice[t->experts], sum = 0.0f;
    uint8_t taken[t->experts];
    memset(taken, 0, (size_t)t->experts);
    for (i64 e = 0; e < t->experts; e++) choice[e] = scores[e] + t->bias[e];
    if (t->groups != t->open_groups) close_groups(t, choice);
    for (i64 k = 0; k < t->top_k; k++) taken[largest(choice, taken, t->experts)] = 1;
    i64 k = 0;
    for (i64 e = 0; e < t->experts; e++)
        if (taken[e]) { experts[k] = e; weights[k++] = scores[e]; }
    for (k = 0; k < t->top_k; k++) sum += weights[k];
    sum += 1e-20f;
    for (k = 0; k < t->top_k; k++) {
        if (t->normalise) weights[k] /= sum;
        weights[k] *= (float)t->factor;
    }
}

/* experts int64 [rows, top_k], weights float32 [rows, top_k] of normed rows. */
void fused_route(const router_t *t, const float *h, i64 rows, i64 *experts, float *weights)
{
    float in[t->hidden * LANES], scores[t->experts * LANES], row[t->experts];
    for (i64 i = 0; i < rows; i += LANES) {
        const i64 here = min_of(LANES, rows - i), lanes = lanes_for(here);
        across(h + i * t->hidden, here, t->hidden, lanes, in);
        product_of(t->gate, t->experts, t->hidden, in, lanes, scores);
        sigmoid(scores, t->experts * lanes, t->exp8, 0);
        for (i64 j = 0; j < here; j++) {
            for (i64 e = 0; e < t->experts; e++) row[e] = scores[e * lanes + j];
            choose(t, row, experts + (i + j) * t->top_k, weights + (i + j) * t->top_k);
        }
    }
}
