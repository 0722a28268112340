/* Rows of dispatch and combine, for rows.c and pairs.c. */
#ifndef SUPERPOD_ROWS_H
#define SUPERPOD_ROWS_H
#include <stdint.h>

typedef struct { int32_t slot, charge; float scale; int32_t reserved; } header_t;
typedef struct { int64_t rank_stride, chunk_stride, stride, shift; } layout_t; /* bytes; a chunk has 1 << shift records */
typedef struct { int32_t rank, count, first, charge; } run_t; /* records of one rank's block, what they stand for */

int64_t rows_plan(const int64_t *slot_ids, int64_t pairs, int32_t slots, int32_t num_ranks, const int32_t *charge,
                  int32_t topk, int32_t most, int32_t *counts, int32_t *charged, int32_t *first, int32_t *fields,
                  int32_t *order, int32_t *scratch);
void rows_pack(uint8_t *block, const layout_t *l, const float *x, int64_t hidden, const int32_t *order, int64_t records,
               int32_t per_row, const int64_t *slot_ids, int32_t slots, const int32_t *charge, int32_t int8);
int64_t rows_unpack_runs(const uint8_t *base, const layout_t *l, const run_t *runs, int64_t num_runs, int32_t slots,
                         int64_t hidden, int32_t int8, float *out, int64_t *per_slot, int64_t *charged, int32_t *place);
void rows_combine_runs(const uint8_t *base, const layout_t *l, const run_t *runs, int64_t num_runs, const int32_t *order,
                       int64_t tokens, int32_t topk, int64_t hidden, const float *weights, float *out,
                       const uint8_t **address);
uint64_t rows_checksum(const uint8_t *data, int64_t nbytes);
#endif
