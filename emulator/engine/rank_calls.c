/* What the compiled calls of a rank share: the trace, errors, how they are made. */
#include "rank_calls.h"
#include <stdlib.h>
#include <string.h>

int sp_call_record(rank_calls_t *d, i64 op, i64 start, i64 peer, i64 nbytes, u64 checksum)
{
    if (*d->trace_at + (i64)sizeof(trace_t) > d->trace_size) {
        PyObject *done = PyObject_CallFunctionObjArgs(d->flush, (PyObject *)0);
        if (!done) return -1;
        Py_DecRef(done);
    }
    trace_t t = { start, d->l->now, nbytes, checksum, (i32)peer, (i32)op };
    memcpy(d->trace + *d->trace_at, &t, sizeof t);
    *d->trace_at += (i64)sizeof t;
    return 0;
}

/* Have the Python side raise what went wrong. */
PyObject *sp_call_fail(rank_calls_t *d, i64 what, i64 number)
{
    PyObject *a = PyLong_FromLongLong(what), *b = PyLong_FromLongLong(number);
    PyObject *raised = a && b ? PyObject_CallFunctionObjArgs(d->fail, a, b, (PyObject *)0) : 0;
    if (a) Py_DecRef(a);
    if (b) Py_DecRef(b);
    if (raised) Py_DecRef(raised);
    return 0;
}

/* Back from a blocking call: my memory shows everything up to now. */
int sp_call_leave(rank_calls_t *d)
{
    *d->state = 0;
    if (*d->posted == *d->applied) return 0;
    PyObject *done = PyObject_CallFunctionObjArgs(d->leave, (PyObject *)0);
    if (!done) return -1;
    Py_DecRef(done);
    return 0;
}

PyObject *sp_bind(PyMethodDef *def, void *state)
{
    PyObject *capsule = PyCapsule_New(state, 0, 0), *made = 0;
    if (capsule) {
        made = PyCFunction_NewEx(def, capsule, 0);
        Py_DecRef(capsule);
    }
    return made;
}

/* Copies live as long as the process: a function may be kept by anybody. */
void *sp_keep(const void *from, size_t size)
{
    void *to = malloc(size);
    return to ? memcpy(to, from, size) : 0;
}

void *sp_rank_calls(const void *state) { return sp_keep(state, sizeof(rank_calls_t)); }
