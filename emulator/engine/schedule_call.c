/* Device.schedule as one compiled call: with hundreds of ranks on two cores, what a rank does in Python between two
 * sleeps costs more than the sleep. Anything out of the ordinary (a wrong array, a bad field, a dead rank, steps after
 * the last wait) returns None with nothing done, and the caller takes the steps one by one. */
#include "rank_calls.h"
#include <string.h>

#define LIMIT_PS ((i64)1 << 60)

/* Of a rank; filled by emulator/pairs.py, in this order. */
typedef struct {
    rank_calls_t *d;
    i64 *wire;           /* of the ledger, by plane */
    const uint8_t *dead; /* of the board, by rank */
    PyObject *step, *send; /* dtypes */
} scheduler_t;

static int is_row(const rank_calls_t *d, const PyObject *o, const PyObject *dtype)
{
    const array_t *a = (const array_t *)o;
    return o->type == d->ndarray && a->dtype == dtype && a->nd == 1 && (a->flags & C_CONTIGUOUS) && (a->flags & ALIGNED);
}

/* A time, or -1 for None; -2 if it is neither. */
static i64 time_of(PyObject *o)
{
    if (o == NONE) return -1;
    i64 value = PyLong_AsLongLong(o);
    if (value == -1) PyErr_Clear();
    return value >= 0 && value <= LIMIT_PS ? value : -2;
}

static i64 carry_out(scheduler_t *s, const array_t *steps, const array_t *sends, i64 step_ps, i64 timeout)
{
    rank_calls_t *d = s->d;
    *d->state = 1;
    void *thread = PyEval_SaveThread();
    i64 code = sp_schedule(d->l, (const step_t *)steps->data, steps->shape[0], (const send_t *)sends->data,
                           sends->shape[0], step_ps, timeout);
    PyEval_RestoreThread(thread);
    if (code < 0) *d->state = 0;
    return code;
}

/* schedule(steps, sends, step_ps, timeout_ps) -> steps carried out, or None. */
static PyObject *schedule(PyObject *self, PyObject *const *args, intptr_t count)
{
    scheduler_t *s = PyCapsule_GetPointer(self, 0);
    rank_calls_t *d = s->d;
    if (count != 4 || !is_row(d, args[0], s->step) || !is_row(d, args[1], s->send) || d->l->finished) goto refuse;
    const array_t *steps = (const array_t *)args[0], *sends = (const array_t *)args[1];
    const step_t *first = (const step_t *)steps->data;
    i64 step_ps = time_of(args[2]), timeout = time_of(args[3]), start = d->l->now;
    if (step_ps < 0 || timeout < -1 || steps->shape[0] < 1 || first[steps->shape[0] - 1].word < 0) goto refuse;
    if (memchr(s->dead, 1, (size_t)d->l->c->cfg.n)) goto refuse;
    i64 code = carry_out(s, steps, sends, step_ps, timeout);
    if (code < 0) goto refuse;
    if (sp_call_leave(d)) return 0;
    if (code) return sp_call_fail(d, FAIL_ENGINE, code);
    i64 charged = sp_charged((const send_t *)sends->data, sends->shape[0], s->wire);
    if (sp_call_record(d, OP_SCHEDULE, start, -1, charged, 0)) return 0;
    return PyLong_FromLongLong(d->l->index);
refuse:
    Py_IncRef(NONE);
    return NONE;
}

static PyMethodDef SCHEDULE = { "schedule", schedule, METH_FASTCALL, 0 };

PyObject *sp_scheduler(const void *state)
{
    void *kept = sp_keep(state, sizeof(scheduler_t));
    return kept ? sp_bind(&SCHEDULE, kept) : PyErr_NoMemory();
}
