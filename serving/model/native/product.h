/* Products, norms and functions of a value, for rows that lie across the lanes: x[k * lanes + row].
 *
 * Every value is computed as torch's own kernels compute it where this was measured (fused.py proves it before use):
 * a product is one chain of fused multiply-adds over k, in blocks of `block_of`, blocks added in order; a sum of
 * squares has 8 partial sums, added in order; exp and the exponential inside a sigmoid are torch's own functions.
 * A row never meets another, so a result cannot depend on its company.
 */
#ifndef SUPERPOD_PRODUCT_H
#define SUPERPOD_PRODUCT_H
#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

typedef int64_t i64;
typedef __m256 (*exp8_t)(__m256);
typedef void (*exp_t)(int, const float *, float *, i64);

enum { LANES = 16, JOINT = 6 }; /* most rows at a time; outputs computed together, so that chains overlap */

static inline i64 min_of(i64 a, i64 b) { return a < b ? a : b; }

/* Lanes that `rows` rows take. */
static inline i64 lanes_for(i64 rows) { return rows <= 4 ? 4 : rows <= 8 ? 8 : LANES; }

/* How many k make one chain. */
static inline i64 block_of(i64 k) { return k <= 192 ? k : k <= 384 ? (k + 1) / 2 : 192; }

/* A matrix: value (j, k) at at[j * row + k * column]. */
typedef struct { const float *at; i64 row, column; } matrix_t;

/* y[j] = chain over k of m[j, k] * x[k], for n outputs j of V vectors of lanes each; on top of y if `go_on`. */
#define CHAINS(NAME, VEC, V, LOAD, STORE, SET, FMA, ZERO)                                                              \
    static inline void NAME(matrix_t m, i64 n, i64 depth, const float *x, i64 lanes, float *y, int go_on)              \
    {                                                                                                                  \
        const i64 width = lanes / (V);                                                                                 \
        for (i64 j = 0; j < n; j += JOINT) {                                                                           \
            const i64 here = min_of(JOINT, n - j);                                                                     \
            VEC sum[JOINT][V];                                                                                         \
            const float *row[JOINT];                                                                                   \
            for (i64 a = 0; a < JOINT; a++) {                                                                          \
                const i64 at = a < here ? j + a : j;                                                                   \
                row[a] = m.at + at * m.row;                                                                            \
                for (i64 v = 0; v < (V); v++) sum[a][v] = go_on ? LOAD(y + at * lanes + v * width) : ZERO();           \
            }                                                                                                          \
            for (i64 k = 0; k < depth; k++) {                                                                          \
                VEC in[V];                                                                                             \
                for (i64 v = 0; v < (V); v++) in[v] = LOAD(x + k * lanes + v * width);                                 \
                for (i64 a = 0; a < JOINT; a++) {                                                                      \
                    const VEC weight = SET(row[a][k * m.column]);                                                      \
                    for (i64 v = 0; v < (V); v++) sum[a][v] = FMA(weight, in[v], sum[a][v]);                           \
                }                                                                                                      \
            }                                                                                                          \
            for (i64 a = 0; a < here; a++)                                                                             \
                for (i64 v = 0; v < (V); v++) STORE(y + (j + a) * lanes + v * width, sum[a][v]);                       \
        }                                                                                                              \
    }
CHAINS(chains4, __m128, 1, _mm_loadu_ps, _mm_storeu_ps, _mm_set1_ps, _mm_fmadd_ps, _mm_setzero_ps)
CHAINS(chains8, __m256, 1, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_set1_ps, _mm256_fmadd_ps, _mm256_setzero_ps)
CHAINS(chains16, __m256, 2, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_set1_ps, _mm256_fmadd_ps, _mm256_setzero_ps)

static void chains(matrix_t m, i64 n, i64 depth, const float *x, i64 lanes, float *y, int go_on)
{
    if (lanes == 4) chains4(m, n, depth, x, lanes, y, go_on);
    else if (lanes == 8) chains8(m, n, depth, x, lanes, y, go_on);
    else chains16(m, n, depth, x, lanes, y, go_on);
}

/* y[n, lanes] = m[n, depth] x[depth, lanes]. */
static void product(matrix_t m, i64 n, i64 depth, const float *x, i64 lanes, float *y)
{
    const i64 block = block_of(depth);
    chains(m, n, min_of(block, depth), x, lanes, y, 0);
    for (i64 k = block; k < depth; k += block) {
        float part[n * lanes];
        matrix_t rest = { m.at + k * m.column, m.row, m.column };
        chains(rest, n, min_of(block, depth - k), x + k * lanes, lanes, part, 0);
        for (i64 i = 0; i < n * lanes; i++) y[i] += part[i];
    }
}

/* The same of a matrix [n, depth] that lies row by row. */
static inline void product_of(const float *weights, i64 n, i64 depth, const float *x, i64 lanes, float *y)
{
    product((matrix_t){ weights, depth, 1 }, n, depth, x, lanes, y);
}

/* Rows [rows, width] across the lanes, those that are none zero; and back, `stride` apart. */
static void across(const float *from, i64 rows, i64 width, i64 lanes, float *to)
{
    for (i64 k = 0; k < width; k++)
        for (i64 i = 0; i < lanes; i++) to[k * lanes + i] = i < rows ? from[i * width + k] : 0.0f;
}

static void along(const float *from, i64 rows, i64 width, i64 lanes, float *to, i64 stride)
{
    for (i64 i = 0; i < rows; i++)
        for (i64 k = 0; k < width; k++) to[i * stride + k] = from[k * lanes + i];
}

/* y = x * weight / sqrt(mean of squares + eps); width a multiple of 8; in place if y is x. */
static void normed(const float *x, i64 width, i64 lanes, const float *weight, float eps, float *y)
{
    float sums[8 * LANES] = { 0 }, inverse[LANES];
    const float share = (float)(1.0 / (double)width);
    for (i64 k = 0; k < width; k++)
        for (i64 i = 0; i < lanes; i++) sums[k % 8 * lanes + i] += x[k * lanes + i] * x[k * lanes + i];
    for (i64 i = 0; i < lanes; i++) {
        float sum = sums[i];
        for (i64 p = 1; p < 8; p++) sum += sums[p * lanes + i];
        const float length = sqrtf(sum);
        inverse[i] = 1.0f / sqrtf(fmaf(share * length, length, eps));
    }
    for (i64 k = 0; k < width; k++)
        for (i64 i = 0; i < lanes; i++) y[k * lanes + i] = x[k * lanes + i] * inverse[i] * weight[k];
}

/* 1 / (1 + exp(-x)), or x times that as a quotient, in place; count a multiple of 4. */
static void sigmoid(float *x, i64 count, exp8_t exp8, int times_x)
{
    const __m256 one = _mm256_set1_ps(1.0f);
    for (i64 i = 0; i < count; i += 8) {
        float part[8] = { 0 };
        const i64 here = min_of(8, count - i);
        memcpy(part, x + i, sizeof(float) * (size_t)here);
        const __m256 value = _mm256_loadu_ps(part);
        const __m256 below = _mm256_add_ps(one, exp8(_mm256_sub_ps(_mm256_setzero_ps(), value)));
        _mm256_storeu_ps(part, _mm256_div_ps(times_x ? value : one, below));
        memcpy(x + i, part, sizeof(float) * (size_t)here);
    }
}
#endif
