/* Rows of dispatch and combine: group by destination, place by expert slot, weigh and add.
 *
 * One idea: a row travels as a record {slot, charge, scale, payload}, written once into the sender's block and
 * read once, straight from there, by its receiver. `emulator/rows.py` holds the readable NumPy twin of every function;
 * both give the same bits (compiled without contraction into fused multiply-adds).
 *
 * A place is (rank, record). Records lie in chunks of a power of two, chunk c of all ranks side by side, so that the few
 * records usually there are dense in memory whatever the capacity.
 */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3") /* vectorise the row loops whatever the build says */
#endif
#include "rows.h"
#include <math.h>
#include <string.h>

static inline int64_t place_of(const layout_t *l, int64_t rank, int64_t record)
{
    return rank * l->rank_stride + (record >> l->shift) * l->chunk_stride +
           (record & (((int64_t)1 << l->shift) - 1)) * l->stride;
}

/* Group `pairs` slots by value, stable. order[i] = pair at record i. counts, charged, first, fields: int32
 * [num_ranks], fields = first * (most + 1) + count. charge[p / topk] is how many priced rows a row stands for; NULL for 1.
 * Returns 0, or 1 + the first pair whose slot is outside [0, num_ranks * slots). scratch: int32[num_ranks * slots]. */
int64_t rows_plan(const int64_t *slot_ids, int64_t pairs, int32_t slots, int32_t num_ranks, const int32_t *charge,
                  int32_t topk, int32_t most, int32_t *counts, int32_t *charged, int32_t *first, int32_t *fields,
                  int32_t *order, int32_t *scratch)
{
    const int64_t total = (int64_t)slots * num_ranks;
    memset(scratch, 0, sizeof(int32_t) * (size_t)total);
    for (int64_t p = 0; p < pairs; p++) {
        if (slot_ids[p] < 0 || slot_ids[p] >= total) return p + 1;
        scratch[slot_ids[p]]++;
    }
    int32_t at = 0;
    for (int32_t r = 0; r < num_ranks; r++) {
        first[r] = at;
        for (int32_t s = 0; s < slots; s++) {
            const int64_t slot = (int64_t)r * slots + s;
            const int32_t here = scratch[slot];
            scratch[slot] = at;
            at += here;
        }
        charged[r] = counts[r] = at - first[r];
        fields[r] = first[r] * (most + 1) + counts[r];
    }
    for (int64_t p = 0; p < pairs; p++) {
        order[scratch[slot_ids[p]]++] = (int32_t)p;
        if (charge) charged[slot_ids[p] / slots] += charge[p / topk] - 1;
    }
    return 0;
}

static void quantise(const float *row, int64_t hidden, float *scale, int8_t *out)
{
    float largest = 0.0f;
    for (int64_t h = 0; h < hidden; h++) { const float a = fabsf(row[h]); if (a > largest) largest = a; }
    *scale = largest / 127.0f;
    if (*scale == 0.0f) { memset(out, 0, (size_t)hidden); return; }
    for (int64_t h = 0; h < hidden; h++) out[h] = (int8_t)rintf(row[h] / *scale);
}

/* Write record i from row order[i] / per_row of x[., hidden]; slot_ids may be NULL (slot 0), charge too (1). */
void rows_pack(uint8_t *block, const layout_t *l, const float *x, int64_t hidden, const int32_t *order, int64_t records,
               int32_t per_row, const int64_t *slot_ids, int32_t slots, const int32_t *charge, int32_t int8)
{
    for (int64_t i = 0; i < records; i++) {
        uint8_t *record = block + place_of(l, 0, i);
        const int32_t from = order[i] / per_row;
        const float *row = x + (int64_t)from * hidden;
        header_t head = { slot_ids ? (int32_t)(slot_ids[order[i]] % slots) : 0, charge ? charge[from] : 1, 1.0f, 0 };
        if (int8) quantise(row, hidden, &head.scale, (int8_t *)(record + sizeof head));
        else memcpy(record + sizeof head, row, sizeof(float) * (size_t)hidden);
        memcpy(record, &head, sizeof head);
    }
}

/* rows_plan, then rows_pack of the planned order: one call for what every dispatch does. */
int64_t rows_send(const int64_t *slot_ids, int64_t pairs, int32_t slots, int32_t num_ranks, const int32_t *charge,
                  int32_t topk, int32_t most, int32_t *out, uint8_t *block, const layout_t *l, const float *x,
                  int64_t hidden, int32_t int8)
{
    int32_t *counts = out, *charged = counts + num_ranks, *first = charged + num_ranks, *fields = first + num_ranks;
    int32_t *order = fields + num_ranks, *scratch = order + pairs;
    const int64_t bad = rows_plan(slot_ids, pairs, slots, num_ranks, charge, topk, most, counts, charged, first, fields,
                                  order, scratch);
    if (!bad) rows_pack(block, l, x, hidden, order, pairs, topk, slot_ids, slots, charge, int8);
    return bad;
}

/* Places of rows that go back where they came from: first and fields, given counts. */
void rows_back(const int32_t *counts, int32_t num_ranks, int32_t most, int32_t *first, int32_t *fields)
{
    int32_t at = 0;
    for (int32_t r = 0; r < num_ranks; r++) {
        first[r] = at;
        fields[r] = at * (most + 1) + counts[r];
        at += counts[r];
    }
}

/* Take apart the fields all ranks sent me. tags: each rank's event; expected: counts that must be met, or NULL.
 * Returns all rows, -1 if a rank with rows is at another event, -2 if a count is not the expected one. */
int64_t rows_decode(const int32_t *fields, const int64_t *tags, int64_t event, int32_t num_ranks, int32_t most,
                    const int32_t *expected, int32_t *counts, int32_t *first)
{
    int64_t total = 0;
    for (int32_t r = 0; r < num_ranks; r++) {
        first[r] = fields[r] / (most + 1);
        counts[r] = fields[r] % (most + 1);
        total += counts[r];
        if (counts[r] && tags[r] != event) return -1;
        if (expected && counts[r] != expected[r]) return -2;
    }
    return total;
}

static void read_row(const uint8_t *record, int64_t hidden, int32_t int8, float *out)
{
    if (!int8) { memcpy(out, record + sizeof(header_t), sizeof(float) * (size_t)hidden); return; }
    header_t head;
    memcpy(&head, record, sizeof head);
    const int8_t *q = (const int8_t *)(record + sizeof head);
    for (int64_t h = 0; h < hidden; h++) out[h] = (float)q[h] * head.scale;
}

/* Read every record meant for me and place it by slot; inside a slot by (source rank, order of the source). runs: where
 * they lie, sources ascending. per_slot, charged: int64[slots], rows and what they stand for; place: int32[rows],
 * place[i] = output row of the i-th record. Returns the number of rows, or -1 if a record names a slot outside
 * [0, slots). */
int64_t rows_unpack_runs(const uint8_t *base, const layout_t *l, const run_t *runs, int64_t num_runs, int32_t slots,
                         int64_t hidden, int32_t int8, float *out, int64_t *per_slot, int64_t *charged, int32_t *place)
{
    memset(per_slot, 0, sizeof(int64_t) * (size_t)slots);
    memset(charged, 0, sizeof(int64_t) * (size_t)slots);
    int64_t rows = 0;
    for (const run_t *r = runs; r < runs + num_runs; r++)
        for (int32_t i = 0; i < r->count; i++) {
            header_t head;
            memcpy(&head, base + place_of(l, r->rank, r->first + i), sizeof head);
            if (head.slot < 0 || head.slot >= slots) return -1;
            place[rows++] = head.slot;
            per_slot[head.slot]++;
            charged[head.slot] += head.charge;
        }
    int64_t next = 0;
    for (int32_t s = 0; s < slots; s++) { const int64_t here = per_slot[s]; per_slot[s] = next; next += here; }
    int64_t record = 0;
    for (const run_t *r = runs; r < runs + num_runs; r++)
        for (int32_t i = 0; i < r->count; i++, record++) {
            const int64_t row = per_slot[place[record]]++;
            place[record] = (int32_t)row;
            read_row(base + place_of(l, r->rank, r->first + i), hidden, int8, out + row * hidden);
        }
    for (int32_t s = slots - 1; s > 0; s--) per_slot[s] -= per_slot[s - 1];
    return rows;
}

/* Runs of the ranks that have any. */
static int64_t runs_of(const int32_t *counts, const int32_t *first, int32_t num_ranks, run_t *runs)
{
    int64_t found = 0;
    for (int32_t r = 0; r < num_ranks; r++)
        if (counts[r]) runs[found++] = (run_t){ r, counts[r], first[r], 0 };
    return found;
}

/* rows_unpack_runs where counts and first are given for all ranks. */
int64_t rows_unpack(const uint8_t *base, const layout_t *l, int32_t num_ranks, const int32_t *counts,
                    const int32_t *first, int32_t slots, int64_t hidden, int32_t int8, float *out, int64_t *per_slot,
                    int64_t *charged, int32_t *place)
{
    run_t runs[num_ranks];
    const int64_t found = runs_of(counts, first, num_ranks, runs);
    return rows_unpack_runs(base, l, runs, found, slots, hidden, int8, out, per_slot, charged, place);
}

/* out[t] = sum over k, in order, of weights[t, k] * row of pair (t, k). The pair of the i-th record of all runs is
 * order[i]. address: scratch, const uint8_t *[tokens * topk]. */
void rows_combine_runs(const uint8_t *base, const layout_t *l, const run_t *runs, int64_t num_runs, const int32_t *order,
                       int64_t tokens, int32_t topk, int64_t hidden, const float *weights, float *out,
                       const uint8_t **address)
{
    int64_t record = 0;
    for (const run_t *r = runs; r < runs + num_runs; r++)
        for (int32_t i = 0; i < r->count; i++)
            address[order[record++]] = base + place_of(l, r->rank, r->first + i) + sizeof(header_t);
    for (int64_t t = 0; t < tokens; t++) {
        float *sum = out + t * hidden;
        for (int32_t k = 0; k < topk; k++) {
            const float w = weights[t * topk + k];
            const float *row = (const float *)address[t * topk + k];
            if (k == 0) for (int64_t h = 0; h < hidden; h++) sum[h] = w * row[h];
            else for (int64_t h = 0; h < hidden; h++) sum[h] += w * row[h];
        }
    }
}

/* rows_combine_runs where counts and first are given for all ranks. */
void rows_combine(const uint8_t *base, const layout_t *l, int32_t num_ranks, const int32_t *counts,
                  const int32_t *first, const int32_t *order, int64_t tokens, int32_t topk, int64_t hidden,
                  const float *weights, float *out, const uint8_t **address)
{
    run_t runs[num_ranks];
    const int64_t found = runs_of(counts, first, num_ranks, runs);
    rows_combine_runs(base, l, runs, found, order, tokens, topk, hidden, weights, out, address);
}

/* Position-dependent sum of 64-bit words; the tail is padded with zeros, the length is mixed in. */
uint64_t rows_checksum(const uint8_t *data, int64_t nbytes)
{
    const uint64_t odd = 0x9E3779B97F4A7C15ull;
    uint64_t sum = (uint64_t)nbytes * odd, multiplier = odd;
    int64_t i = 0;
    for (; i + 8 <= nbytes; i += 8, multiplier += 2 * odd) {
        uint64_t word;
        memcpy(&word, data + i, 8);
        sum += (word ^ (word >> 29)) * multiplier;
    }
    if (i < nbytes) {
        uint64_t word = 0;
        memcpy(&word, data + i, (size_t)(nbytes - i));
        sum += (word ^ (word >> 29)) * multiplier;
    }
    return sum;
}
