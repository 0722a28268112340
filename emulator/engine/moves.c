/* Many rows of equal size between one array and another, past the caches: what hundreds of ranks copy in turn never
 * fits there, and a store that first reads what it overwrites moves half as much again. The twin is in
 * `collectives/moves.py`. */
#include "rank_calls.h"
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

enum { LINE = 64, AHEAD = 1024, FEW = 1024 }; /* rows of fewer bytes are copied as usual */

#ifdef __SSE2__
static void copy_past_caches(char *to, const char *from, i64 nbytes)
{
    i64 at = (i64)(-(uintptr_t)to & (LINE - 1));
    memcpy(to, from, (size_t)at);
    for (; at + LINE <= nbytes; at += LINE) {
        _mm_prefetch(from + at + AHEAD, _MM_HINT_NTA); /* read once: the third cache keeps what it has */
        const __m128i *in = (const __m128i *)(from + at);
        __m128i *out = (__m128i *)(to + at), a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1);
        __m128i c = _mm_loadu_si128(in + 2), d = _mm_loadu_si128(in + 3);
        _mm_stream_si128(out, a);
        _mm_stream_si128(out + 1, b);
        _mm_stream_si128(out + 2, c);
        _mm_stream_si128(out + 3, d);
    }
    memcpy(to + at, from + at, (size_t)(nbytes - at));
}

static void copy(char *to, const char *from, i64 nbytes)
{
    if (nbytes < FEW) memcpy(to, from, (size_t)nbytes);
    else copy_past_caches(to, from, nbytes);
}

static void finished(void) { _mm_sfence(); } /* before anybody is told */
#else
static void copy(char *to, const char *from, i64 nbytes) { memcpy(to, from, (size_t)nbytes); }
static void finished(void) {}
#endif

void sp_copy_past_caches(char *to, const char *from, i64 nbytes) { copy(to, from, nbytes); }
void sp_copies_finished(void) { finished(); }

typedef struct { char *at; i64 planes, plane, rows, row, nbytes; } view_t; /* steps in bytes */

/* uint8 of 1 to 3 dimensions, the last without gaps. */
static int view_of(const rank_calls_t *d, PyObject *o, view_t *v)
{
    const array_t *a = (const array_t *)o;
    if (o->type != d->ndarray || a->dtype != d->uint8 || a->nd < 1 || a->nd > 3 || a->strides[a->nd - 1] != 1) return 0;
    i64 shape[3] = { 1, 1, 1 }, step[3] = { 0, 0, 1 };
    for (int i = 0; i < a->nd; i++) {
        shape[3 - a->nd + i] = a->shape[i];
        step[3 - a->nd + i] = a->strides[i];
    }
    *v = (view_t){ a->data, shape[0], step[0], shape[1], step[1], shape[2] };
    if (v->rows > 1 && v->row == v->nbytes) { /* rows without gaps are one */
        v->nbytes *= v->rows;
        v->rows = 1;
    }
    return 1;
}

static void move(const view_t *v, char *flat, int inward)
{
    for (i64 p = 0; p < v->planes; p++)
        for (i64 r = 0; r < v->rows; r++, flat += v->nbytes) {
            char *row = v->at + p * v->plane + r * v->row;
            if (inward) copy(row, flat, v->nbytes);
            else copy(flat, row, v->nbytes);
        }
    finished();
}

/* move_rows(view, flat, inward) -> True, or None with nothing done. See `collectives.moves`. */
static PyObject *move_rows(PyObject *self, PyObject *const *args, intptr_t count)
{
    rank_calls_t *d = PyCapsule_GetPointer(self, 0);
    view_t v, flat;
    PyObject *done = NONE;
    if (count == 3 && view_of(d, args[0], &v) && view_of(d, args[1], &flat)) {
        int whole = flat.planes == 1 && flat.rows == 1 && flat.nbytes == v.planes * v.rows * v.nbytes;
        if (whole) {
            void *thread = PyEval_SaveThread();
            move(&v, flat.at, args[2] == TRUE);
            PyEval_RestoreThread(thread);
            done = TRUE;
        }
    }
    Py_IncRef(done);
    return done;
}

static PyMethodDef MOVE = { "move_rows", move_rows, METH_FASTCALL, 0 };

PyObject *sp_row_mover(void *state) { return sp_bind(&MOVE, state); }
