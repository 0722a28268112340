/* An exchange of records that say one number each, as one compiled call: what comes back is the sum of the numbers. */
#include "rank_calls.h"
#include <string.h>

#define MOST_BYTES ((i64)1 << 31)

/* Is it a number of bytes, or one for each of g ranks (which are then announced)? Sets *meta. */
static int sizes_of(rank_calls_t *d, PyObject *o, i64 g, i64 *meta)
{
    const array_t *a = (const array_t *)o;
    *meta = 0;
    if (o->type == d->ndarray) {
        int row = a->dtype == d->int64 && a->nd == 1 && a->shape[0] == g && (a->flags & C_CONTIGUOUS) && (a->flags & ALIGNED);
        return row && !sp_set_sizes(d->l, (const i64 *)a->data, g);
    }
    *meta = PyLong_AsLongLong(o);
    if (*meta == -1) PyErr_Clear();
    return *meta >= 0 && *meta <= MOST_BYTES;
}

static i64 sum_of_tags(const local_t *l, const group_t *g)
{
    const i64 *tags = AT(l->c, i64, SLOT(l->c, l->slot)->tag);
    u64 sum = 0;
    for (i64 j = 0; j < g->size; j++) sum += (u64)tags[RANK_AT(g, j)];
    return (i64)sum;
}

/* exchange_tags(channel, record_bytes, tag) -> sum of the group's tags, or None with nothing done. */
static PyObject *exchange_tags(PyObject *self, PyObject *const *args, intptr_t count)
{
    rank_calls_t *d = PyCapsule_GetPointer(self, 0);
    local_t *l = d->l;
    i64 channel = count == 3 ? PyLong_AsLongLong(args[0]) : -1, tag = channel >= 0 ? PyLong_AsLongLong(args[2]) : 0, meta;
    if (PyErr_Occurred()) {
        PyErr_Clear();
        goto refuse;
    }
    if (channel < 0 || channel >= l->c->cfg.channels || !sp_call_ready(d, channel)) goto refuse;
    if (AT(l->c, i32, l->c->grouped)[channel] && !l->opened[channel]) goto refuse;
    group_t g = own_group(l->c, channel, l->rank);
    if (!sizes_of(d, args[1], g.size, &meta)) goto refuse;
    row_args_t a = { channel, 0, meta, tag, 0, 0, 0, 0, 0, 1 };
    if (sp_call_exchange(d, &a)) return 0;
    return PyLong_FromLongLong(sum_of_tags(l, &g));
refuse:
    Py_IncRef(NONE);
    return NONE;
}

/* ---- the same for a collective, which says what it is */

enum { DEPTH = 4, FIELDS = 10 }; /* collectives.store, collectives.agreement */

/* Of a group; filled by emulator/pairs.py, in this order. */
typedef struct { rank_calls_t *d; i64 channel, size; char *mine[DEPTH]; } entrance_t;

/* Of a plan; packed by collectives/work.py, in this order. fields[0], the number of the call, is set here. */
typedef struct { i64 meta; u64 mark; i64 balance, fields[FIELDS]; } called_t;

/* enter(called, number): write beside the others' what I call, exchange records. True if all call the same, False if
 * they may not, None with nothing done. The tag is alike on all ranks that call the same, but for the balance. */
static PyObject *enter_collective(PyObject *self, PyObject *const *args, intptr_t count)
{
    entrance_t *e = PyCapsule_GetPointer(self, 0);
    local_t *l = e->d->l;
    called_t k;
    const char *given = count == 2 ? PyBytes_AsString(args[0]) : 0;
    i64 number = given ? PyLong_AsLongLong(args[1]) : -1;
    if (number < 0 || !sp_call_ready(e->d, e->channel)) {
        PyErr_Clear();
        Py_IncRef(NONE);
        return NONE;
    }
    memcpy(&k, given, sizeof k);
    k.fields[0] = number;
    memcpy(e->mine[number % DEPTH], k.fields, sizeof k.fields);
    u64 same = k.mark * (2 * (u64)number + 1);
    row_args_t a = { e->channel, 0, k.meta, (i64)(same + (u64)k.balance), 0, 0, 0, 0, 0, 1 };
    if (sp_call_exchange(e->d, &a)) return 0;
    group_t g = own_group(l->c, e->channel, l->rank);
    PyObject *agreed = (u64)sum_of_tags(l, &g) == same * (u64)e->size ? TRUE : FALSE;
    Py_IncRef(agreed);
    return agreed;
}

static PyMethodDef ENTER = { "enter_collective", enter_collective, METH_FASTCALL, 0 };

PyObject *sp_collective_entrance(const void *state)
{
    void *kept = sp_keep(state, sizeof(entrance_t));
    return kept ? sp_bind(&ENTER, kept) : PyErr_NoMemory();
}

static PyMethodDef TAGS = { "exchange_tags", exchange_tags, METH_FASTCALL, 0 };

PyObject *sp_tag_exchanger(void *state) { return sp_bind(&TAGS, state); }
