/* Adding up rows of bfloat16, always in their order: out = ((row 0 + row 1) + row 2) + ... Both sides of a step are widened
 * to float32, the sum is rounded to nearest, ties to even; not-a-number stays one. The twin, which takes several passes
 * for each step, is in `collectives/reduction.py`; other types are as fast there. */
#include "layout.h"
#include <string.h>

enum { TILE = 1 << 16 }; /* bytes of a row at a time: the sums stay in the second cache */

#ifdef __GNUC__
#define PLAIN __attribute__((no_sanitize("thread"), optimize("O3"))) /* writes no shared state of the engine */
#else
#define PLAIN
#endif

PLAIN static void add(uint16_t *restrict sum, const uint16_t *restrict more, i64 count)
{
    for (i64 i = 0; i < count; i++) {
        union { uint32_t bits; float value; } a = { (uint32_t)sum[i] << 16 }, b = { (uint32_t)more[i] << 16 };
        a.value += b.value;
        uint32_t near = (a.bits + 0x7FFF + (a.bits >> 16 & 1)) >> 16, nan = (a.bits >> 16) | 0x40;
        sum[i] = (uint16_t)((a.bits & 0x7FFFFFFF) > 0x7F800000 ? nan : near);
    }
}

/* Add up `count` rows of `nbytes`, `stride` bytes apart, into `out`. */
PLAIN void sp_fold_bf16(const char *rows, i64 count, i64 nbytes, i64 stride, char *out)
{
    for (i64 at = 0; at < nbytes; at += TILE) {
        i64 size = min64(TILE, nbytes - at);
        memcpy(out + at, rows + at, (size_t)size);
        for (i64 r = 1; r < count; r++) add((uint16_t *)(out + at), (const uint16_t *)(rows + r * stride + at), size / 2);
    }
}
