/* Sums of published vectors: publish mine, add up chunks nobody has begun, take all sums, one call each. What this does,
 * where it lies and why is in `collectives/sums.py`, which does the same in steps. */
#include "rank_calls.h"
#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef __GNUC__
#define PLAIN __attribute__((no_sanitize("thread"), optimize("O3"))) /* writes no shared state of the engine */
#else
#define PLAIN
#endif

enum { LINE = 16, AHEAD = 256 }; /* floats */
enum { TILE = 1 << 14, FLOAT32 = 0 }; /* bytes of a row at a time: the sums stay in the first cache */
/* Marks of the chunk of a number (done, begun: by a call), of the rank of a number (it waits for the end of a call and
 * for nothing else, so it adds up the chunk that begins with its block), and of all in rank 0's: chunks that are done. */
enum { DONE, BEGUN, PLEDGED, COUNT, MARKS };
enum { PATIENCE_NS = 100000000 }; /* without a chunk done: then I do what those who pledged have not */

/* Of a plan; filled by emulator/pairs.py, in this order. Addresses are of calls of even and odd number. */
typedef struct { rank_calls_t *d; i64 size, rank, unit, per_chunk, chunks, step, kind; char *parts[2], *sums[2], *marks[2]; } sums_t;

void sp_copy_past_caches(char *to, const char *from, i64 nbytes);
void sp_copies_finished(void);
void sp_fold_bf16(const char *rows, i64 count, i64 nbytes, i64 stride, char *out);

static i64 *mark_of(const sums_t *s, i64 call, i64 number) { return (i64 *)(s->marks[call & 1] + MARKS * sizeof(i64) * number); }

PLAIN static void fold_f32(const char *rows, i64 count, i64 nbytes, i64 stride, char *out)
{
    float sum[TILE / 4];
    for (i64 at = 0; at < nbytes; at += TILE) {
        i64 size = min64(TILE, nbytes - at), n = size / 4;
        __builtin_memcpy(sum, rows + at, (size_t)size);
        for (i64 r = 1; r < count; r++) {
            const float *more = (const float *)(rows + r * stride + at);
            i64 i = 0;
            for (; i + LINE <= n; i += LINE) {
                __builtin_prefetch(more + i + AHEAD, 0, 0); /* read once */
                for (i64 k = i; k < i + LINE; k++) sum[k] += more[k];
            }
            for (; i < n; i++) sum[i] += more[i];
        }
        __builtin_memcpy(out + at, sum, (size_t)size); /* at once: whoever adds up the same writes the same bytes */
    }
}

PLAIN static void fold_bf16(const char *rows, i64 count, i64 nbytes, i64 stride, char *out)
{
    char sum[TILE];
    for (i64 at = 0; at < nbytes; at += TILE) {
        i64 size = min64(TILE, nbytes - at);
        sp_fold_bf16(rows + at, count, size, stride, sum);
        __builtin_memcpy(out + at, sum, (size_t)size);
    }
}

PLAIN static void add_chunk(const sums_t *s, i64 call, i64 chunk)
{
    i64 stride = s->per_chunk * s->unit, *mark = mark_of(s, call, chunk);
    i64 nbytes = min64(stride, s->size * s->unit - chunk * stride);
    const char *rows = s->parts[call & 1] + chunk * s->step;
    char *out = s->sums[call & 1] + chunk * stride;
    mark[BEGUN] = call;
    if (s->kind == FLOAT32) fold_f32(rows, s->size, nbytes, stride, out);
    else fold_bf16(rows, s->size, nbytes, stride, out);
    if (__atomic_exchange_n(mark + DONE, call, __ATOMIC_ACQ_REL) == call) return; /* by who did it beside me */
    i64 *done = mark_of(s, call, 0) + COUNT;
    if (__atomic_add_fetch(done, 1, __ATOMIC_ACQ_REL) == s->chunks) syscall(SYS_futex, done, FUTEX_WAKE, INT_MAX, 0, 0, 0);
}

/* From mine on, those without the mark. */
PLAIN static void add_without(const sums_t *s, i64 call, int which, i64 count)
{
    i64 mine = s->rank / s->per_chunk;
    for (i64 i = 0; i < count; i++) {
        i64 chunk = (mine + i) % s->chunks;
        if (__atomic_load_n(mark_of(s, call, chunk) + which, __ATOMIC_ACQUIRE) != call) add_chunk(s, call, chunk);
    }
}

static int pledged(const sums_t *s, i64 call, i64 rank) { return __atomic_load_n(mark_of(s, call, rank) + PLEDGED, __ATOMIC_ACQUIRE) == call; }

/* Sleep until all chunks are done, or none was for a while. */
static void await_others(const sums_t *s, i64 call)
{
    i64 *done = mark_of(s, call, 0) + COUNT, before = -1, now, until = 0;
    while ((now = __atomic_load_n(done, __ATOMIC_ACQUIRE)) != s->chunks) {
        if (now != before) until = clock_ns(CLOCK_MONOTONIC) + PATIENCE_NS;
        else if (clock_ns(CLOCK_MONOTONIC) >= until) return;
        before = now;
        sp_futex_until((u32 *)done, (u32)now, until);
    }
}

/* See that all are done, each once where its rank comes here too: hundreds of page tables grow by their own chunk only. */
static void add_all(const sums_t *s, i64 call)
{
    if (!pledged(s, call, s->rank)) {
        add_without(s, call, BEGUN, s->chunks);
    } else {
        if (s->rank % s->per_chunk == 0) add_without(s, call, BEGUN, 1);
        for (i64 chunk = 0; chunk < s->chunks; chunk++)
            if (!pledged(s, call, chunk * s->per_chunk) && mark_of(s, call, chunk)[BEGUN] != call) add_chunk(s, call, chunk);
        await_others(s, call);
    }
    add_without(s, call, DONE, s->chunks); /* begun by others, for whom I cannot wait */
}

PLAIN static void publish(const sums_t *s, i64 call, const char *raw, i64 nbytes)
{
    i64 stride = s->per_chunk * s->unit, all = s->size * s->unit, *mark = mark_of(s, call, s->rank);
    memset(mark, 0, MARKS * sizeof *mark);
    for (i64 chunk = 0; chunk < s->chunks; chunk++) {
        i64 at = chunk * stride, room = min64(stride, all - at), have = max64(0, min64(room, nbytes - at));
        char *to = s->parts[call & 1] + chunk * s->step + s->rank * stride;
        sp_copy_past_caches(to, raw + at, have);
        __builtin_memset(to + have, 0, (size_t)(room - have));
    }
    sp_copies_finished();
}

/* A contiguous uint8 array of at most all blocks' bytes. */
static const array_t *bytes_of(const sums_t *s, PyObject *o)
{
    const array_t *a = (const array_t *)o;
    int good = o->type == s->d->ndarray && a->dtype == s->d->uint8 && a->nd == 1 && a->strides[0] == 1;
    return good && a->shape[0] <= s->size * s->unit ? a : 0;
}

static PyObject *answer(int done)
{
    PyObject *o = done ? TRUE : NONE;
    Py_IncRef(o);
    return o;
}

enum { PUBLISH, ADD_MINE, ADD_ALL, TAKE, PLEDGE };

/* sums(what, call, bytes or None) -> True, or None with nothing done. */
static PyObject *sums(PyObject *self, PyObject *const *args, intptr_t count)
{
    const sums_t *s = PyCapsule_GetPointer(self, 0);
    i64 what = count == 3 ? PyLong_AsLongLong(args[0]) : -1, call = what >= 0 ? PyLong_AsLongLong(args[1]) : -1;
    const array_t *a = what == PUBLISH || what == TAKE ? bytes_of(s, args[2]) : 0;
    if (call < 0 || ((what == PUBLISH || what == TAKE) && !a)) {
        PyErr_Clear();
        return answer(0);
    }
    void *thread = PyEval_SaveThread();
    if (what == PUBLISH) publish(s, call, a->data, a->shape[0]);
    else if (what == TAKE) {
        sp_copy_past_caches(a->data, s->sums[call & 1], a->shape[0]);
        sp_copies_finished();
    } else if (what == PLEDGE) __atomic_store_n(mark_of(s, call, s->rank) + PLEDGED, call, __ATOMIC_RELEASE);
    else if (what == ADD_ALL) add_all(s, call);
    else add_without(s, call, BEGUN, 1);
    PyEval_RestoreThread(thread);
    return answer(1);
}

static PyMethodDef SUMS = { "sums", sums, METH_FASTCALL, 0 };

PyObject *sp_summer(const void *state)
{
    void *kept = sp_keep(state, sizeof(sums_t));
    return kept ? sp_bind(&SUMS, kept) : PyErr_NoMemory();
}
