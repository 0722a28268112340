/* One call per operation: dispatch, combine and barrier, from the caller's arrays to the caller's arrays.
 *
 * With hundreds of ranks on two cores every wake-up finds cold caches, and what costs is how much code and data a rank
 * touches until it sleeps again. So these functions plan, pack, enter the engine, sleep, read and record the operation
 * in the trace in one go. They do what `collectives/moe.py` does step by step, to the bit; where anything is out of the
 * ordinary (a bad argument, an open exchange) they touch nothing and return None, and the caller takes the steps.
 */
#include "rank_calls.h"
#include "rows.h"
#include <stdlib.h>
#include <string.h>

#define LIMIT_PS ((i64)1 << 60)
#define LIMIT_BYTES ((i64)1 << 31)

typedef struct { i64 channel, *event; uint8_t *all[2], *own[2]; layout_t layout; } side_t;

/* Of a micro-batch of an expert exchange; filled by emulator/pairs.py too. */
typedef struct {
    rank_calls_t *d;
    i64 slots, hidden, topk, max_tokens, max_rows, most, int8, *times;
    side_t out, back;
    PyObject *handle, *number;
} pair_t;

/* What a handle keeps: this, then runs sent, runs received, order, place (i32), then rows and charge by slot (i64). */
typedef struct { i32 tokens, pairs, rows, sent, received, slots, num_ranks, topk; } kept_t;

typedef struct { i64 start, pull_start, record, row_bytes, meta; } costs_t;

/* ---- arguments */

static int is_array(const PyObject *type, const PyObject *o, const PyObject *dtype, int nd, i64 rows, i64 columns)
{
    const array_t *a = (const array_t *)o;
    return o->type == type && a->dtype == dtype && a->nd == nd && (a->flags & C_CONTIGUOUS) && (a->flags & ALIGNED)
        && (rows < 0 || a->shape[0] == rows) && (nd < 2 || a->shape[1] == columns);
}

static int read_costs(PyObject *given, costs_t *out)
{
    i64 *values = (i64 *)out;
    if (PyTuple_Size(given) != 5) return PyErr_Clear(), 0;
    for (int i = 0; i < 5; i++) {
        values[i] = PyLong_AsLongLong(PyTuple_GetItem(given, i));
        if (values[i] < 0 || values[i] > (i < 3 ? LIMIT_PS : LIMIT_BYTES)) return PyErr_Clear(), 0;
    }
    return 1;
}

int sp_call_ready(const rank_calls_t *d, i64 channel)
{
    local_t *l = d->l;
    core_t *c = l->c;
    i64 round = AT(c, i64, c->rounds)[l->rank * c->cfg.channels + channel];
    return !l->finished && !l->open[channel] && AT(c, i64, SLOT(c, 2 * channel + (round & 1))->start)[l->rank] == INF;
}

/* ---- an exchange */

static int charge_start(rank_calls_t *d, i64 ps)
{
    if (!ps) return 0;
    i64 start = d->l->now;
    sp_compute(d->l, ps, 0, 0); /* not published: the exchange follows at once */
    return sp_call_record(d, OP_COMPUTE, start, 0, 0, 0);
}

/* Post my row, which is in place, sleep until the exchange is over for me. */
int sp_call_exchange(rank_calls_t *d, const row_args_t *a)
{
    local_t *l = d->l;
    i64 start = l->now;
    *d->state = 1;
    void *thread = PyEval_SaveThread();
    sp_begin(l);
    int code = sp_post_row(l, a);
    if (!code) code = sp_wait_rows(l, a, l->slot);
    PyEval_RestoreThread(thread);
    if (sp_call_leave(d)) return -1;
    if (sp_call_record(d, OP_EXCHANGE, start, -1, 0, 0)) return -1;
    if (code) sp_call_fail(d, FAIL_ENGINE, code);
    return code ? -1 : 0;
}

static int exchange(pair_t *p, side_t *side, const costs_t *k)
{
    i64 event = (*side->event)++;
    p->times[0] = p->d->l->now;
    row_args_t a = { side->channel, k->row_bytes, k->meta, event, k->pull_start, k->record, 0, 1, 1, 1 };
    return sp_call_exchange(p->d, &a);
}

/* Who sent me rows in the exchange that ended; -1 if the rows are of another event. */
static i64 read_runs(const pair_t *p, i64 event, run_t *runs, i64 *total)
{
    local_t *l = p->d->l;
    core_t *c = l->c;
    slot_t *s = SLOT(c, l->slot);
    i64 n = c->cfg.n, found = 0;
    const i32 *charge = AT(c, i32, s->received) + l->rank * n, *fields = AT(c, i32, s->offsets) + l->rank;
    const i64 *tags = AT(c, i64, s->tag);
    *total = 0;
    for (i64 q = 0; q < n; q++) {
        if (!charge[q]) continue;
        i64 field = fields[q * n], count = field % (p->most + 1);
        if (count && tags[q] != event) return -1;
        runs[found++] = (run_t){ (i32)q, (i32)count, (i32)(field / (p->most + 1)), charge[q] };
        *total += count;
    }
    return found;
}

static PyObject *new_rows(rank_calls_t *d, i64 rows, i64 hidden)
{
    PyObject *shape = PyTuple_New(2), *made;
    if (!shape) return 0;
    PyTuple_SetItem(shape, 0, PyLong_FromLongLong(rows));
    PyTuple_SetItem(shape, 1, PyLong_FromLongLong(hidden));
    made = PyObject_CallFunctionObjArgs(d->empty, shape, d->float32, (PyObject *)0);
    Py_DecRef(shape);
    return made;
}

/* The operation is over: times, and a record of the rows it brought. */
static int note(pair_t *p, const side_t *side, PyObject *rows, i64 count)
{
    local_t *l = p->d->l;
    i64 nbytes = count * p->hidden * 4;
    p->times[1] = l->records;
    p->times[2] = l->now;
    return sp_call_record(p->d, OP_ROWS, l->now, side->channel, nbytes,
                  rows_checksum((const uint8_t *)((array_t *)rows)->data, nbytes));
}

/* ---- dispatch */

static i64 kept_bytes(const kept_t *k)
{
    i64 words = (i64)(sizeof *k / 4) + 4 * ((i64)k->sent + k->received) + k->pairs + k->rows;
    return (words + (words & 1)) * 4 + 16 * (i64)k->slots;
}

static PyObject *read_in(pair_t *p, i64 event, kept_t *k, const run_t *sent, const i32 *order)
{
    i64 n = p->d->l->c->cfg.n, total;
    run_t runs[n];
    i64 found = read_runs(p, event, runs, &total);
    if (found < 0) return sp_call_fail(p->d, FAIL_FIELDS, event);
    k->rows = (i32)total;
    k->received = (i32)found;
    i64 size = kept_bytes(k);
    PyObject *rows = new_rows(p->d, total, p->hidden), *raw = rows ? PyBytes_FromStringAndSize(0, size) : 0, *made = 0;
    if (raw) {
        char *at = PyBytes_AsString(raw);
        i64 *by_slot = (i64 *)(at + size) - 2 * k->slots;
        memcpy(at, k, sizeof *k);
        run_t *to = (run_t *)(at + sizeof *k);
        memcpy(to, sent, (size_t)k->sent * sizeof *to);
        memcpy(to += k->sent, runs, (size_t)found * sizeof *to);
        i32 *numbers = (i32 *)(to + found);
        memcpy(numbers, order, (size_t)k->pairs * 4);
        i64 done = rows_unpack_runs(p->out.all[event & 1], &p->out.layout, runs, found, k->slots, p->hidden,
                                    (i32)p->int8, (float *)((array_t *)rows)->data, by_slot, by_slot + k->slots,
                                    numbers + k->pairs);
        if (done != total) sp_call_fail(p->d, FAIL_SLOT, p->slots);
        else if (!note(p, &p->out, rows, total))
            made = PyObject_CallFunctionObjArgs(p->handle, rows, p->number, raw, (PyObject *)0);
    }
    if (rows) Py_DecRef(rows);
    if (raw) Py_DecRef(raw);
    return made;
}

/* dispatch(x, slot_ids, charge or None, (start, pull_start, record, row_bytes, meta_bytes)) -> handle, or None. */
static PyObject *dispatch(PyObject *self, PyObject *const *args, intptr_t count)
{
    pair_t *p = PyCapsule_GetPointer(self, 0);
    rank_calls_t *d = p->d;
    costs_t costs;
    const array_t *x = (const array_t *)args[0], *ids = (const array_t *)args[1], *charge = 0;
    i64 n = d->l->c->cfg.n, slots = p->slots;
    if (count != 4 || !is_array(d->ndarray, args[0], d->float32, 2, -1, p->hidden) || x->shape[0] > p->max_tokens
        || !is_array(d->ndarray, args[1], d->int64, 2, x->shape[0], p->topk) || !read_costs(args[3], &costs)
        || !sp_call_ready(d, p->out.channel))
        goto refuse;
    i64 tokens = x->shape[0], pairs = tokens * p->topk;
    if (args[2] != NONE) {
        charge = (const array_t *)args[2];
        if (!is_array(d->ndarray, args[2], d->int32, 1, tokens, 0)) goto refuse;
        for (i64 t = 0; t < tokens; t++)
            if (((const i32 *)charge->data)[t] < 1) goto refuse;
    }
    const i32 *weight = charge ? (const i32 *)charge->data : 0;
    i32 *scratch = malloc(((size_t)(2 * n + pairs) + (size_t)(n * slots)) * 4 + (size_t)n * sizeof(run_t));
    if (!scratch) return PyErr_NoMemory();
    run_t *sent = (run_t *)scratch;
    i32 *counts = (i32 *)(sent + n), *first = counts + n, *order = first + n;
    row_t row = sp_next_row(d->l, p->out.channel);
    if (rows_plan((const i64 *)ids->data, pairs, (i32)slots, (i32)n, weight, (i32)p->topk, (i32)p->most, counts,
                  row.counts, first, row.offsets, order, order + pairs)) {
        free(scratch);
        goto refuse;
    }
    kept_t k = { (i32)tokens, (i32)pairs, 0, 0, 0, (i32)slots, (i32)n, (i32)p->topk };
    for (i64 q = 0; q < n; q++)
        if (counts[q]) sent[k.sent++] = (run_t){ (i32)q, counts[q], first[q], row.counts[q] };
    i64 event = *p->out.event, failed = charge_start(d, costs.start);
    rows_pack(p->out.own[event & 1], &p->out.layout, (const float *)x->data, p->hidden, order, pairs, (i32)p->topk,
              (const i64 *)ids->data, (i32)slots, weight, (i32)p->int8);
    PyObject *made = failed || exchange(p, &p->out, &costs) ? 0 : read_in(p, event, &k, sent, order);
    free(scratch);
    return made;
refuse:
    Py_IncRef(NONE);
    return NONE;
}

/* ---- combine */

/* My row of the combine: what each source of the dispatch gets back. */
static void plan_back(const pair_t *p, row_t row, const run_t *runs, i64 found)
{
    memset(row.counts, 0, (size_t)p->d->l->c->cfg.n * 4);
    i32 at = 0;
    for (const run_t *r = runs; r < runs + found; at += r++->count) {
        row.counts[r->rank] = r->charge;
        row.offsets[r->rank] = at * (i32)(p->most + 1) + r->count;
    }
}

static PyObject *add_up(pair_t *p, i64 event, const kept_t *k, const i32 *order, const float *weights)
{
    i64 n = k->num_ranks, total;
    run_t runs[n];
    const run_t *sent = (const run_t *)(k + 1);
    i64 found = read_runs(p, event, runs, &total);
    if (found < 0) return sp_call_fail(p->d, FAIL_FIELDS, event);
    int same = found == k->sent;
    for (i64 i = 0; same && i < found; i++) same = runs[i].rank == sent[i].rank && runs[i].count == sent[i].count;
    if (!same) return sp_call_fail(p->d, FAIL_COUNTS, event);
    PyObject *out = new_rows(p->d, k->tokens, p->hidden);
    const uint8_t **address = out ? malloc((size_t)(k->pairs + 1) * sizeof *address) : 0;
    if (!address) return out ? Py_DecRef(out), PyErr_NoMemory() : 0;
    rows_combine_runs(p->back.all[event & 1], &p->back.layout, runs, found, order, k->tokens, (i32)p->topk, p->hidden,
                      weights, (float *)((array_t *)out)->data, address);
    free(address);
    if (note(p, &p->back, out, k->tokens)) {
        Py_DecRef(out);
        return 0;
    }
    return out;
}

/* combine(what the handle keeps, y, weights, costs) -> rows, or None. */
static PyObject *combine(PyObject *self, PyObject *const *args, intptr_t count)
{
    pair_t *p = PyCapsule_GetPointer(self, 0);
    rank_calls_t *d = p->d;
    costs_t costs;
    const kept_t *k = count == 4 ? (const kept_t *)PyBytes_AsString(args[0]) : 0;
    const array_t *y = (const array_t *)args[1], *weights = (const array_t *)args[2];
    if (!k) {
        PyErr_Clear();
        goto refuse;
    }
    if (k->num_ranks != d->l->c->cfg.n || k->topk != p->topk || k->rows > p->max_rows
        || !is_array(d->ndarray, args[1], d->float32, 2, k->rows, p->hidden)
        || (k->tokens && !is_array(d->ndarray, args[2], d->float32, 2, k->tokens, p->topk))
        || !read_costs(args[3], &costs) || !sp_call_ready(d, p->back.channel))
        goto refuse;
    const run_t *got = (const run_t *)(k + 1) + k->sent;
    const i32 *order = (const i32 *)(got + k->received), *place = order + k->pairs;
    i64 event = *p->back.event;
    if (charge_start(d, costs.start)) return 0;
    plan_back(p, sp_next_row(d->l, p->back.channel), got, k->received);
    rows_pack(p->back.own[event & 1], &p->back.layout, (const float *)y->data, p->hidden, place, k->rows, 1, 0,
              (i32)p->slots, 0, 0);
    if (exchange(p, &p->back, &costs)) return 0;
    return add_up(p, event, k, order, k->tokens ? (const float *)weights->data : 0);
refuse:
    Py_IncRef(NONE);
    return NONE;
}

/* ---- barrier */

/* meet() -> 1, or 0 if it did nothing; the caller has completed its puts. */
static PyObject *meet(PyObject *self, PyObject *const *args, intptr_t count)
{
    rank_calls_t *d = PyCapsule_GetPointer(self, 0);
    (void)args;
    (void)count;
    if (!sp_call_ready(d, d->channel)) return PyLong_FromLongLong(0);
    row_args_t a = { d->channel, 0, d->meta, 0, 0, 0, 0, 0, 0, 1 };
    if (sp_call_exchange(d, &a)) return 0;
    return PyLong_FromLongLong(1);
}

/* ---- how they are made */

static PyMethodDef MEET = { "meet", meet, METH_FASTCALL, 0 }, DISPATCH = { "dispatch", dispatch, METH_FASTCALL, 0 },
                   COMBINE = { "combine", combine, METH_FASTCALL, 0 };

/* What NumPy's arrays look like from here: data, dimensions, first two lengths, flags, dtype, type. */
void sp_look_at(PyObject *array, i64 out[7])
{
    const array_t *a = (const array_t *)array;
    i64 seen[] = { (i64)(intptr_t)a->data, a->nd, a->shape[0], a->shape[1], a->flags, (i64)(intptr_t)a->dtype,
                   (i64)(intptr_t)a->head.type };
    memcpy(out, seen, sizeof seen);
}

i64 sp_calls_size(i64 of_pair) { return of_pair ? (i64)sizeof(pair_t) : (i64)sizeof(rank_calls_t); }

PyObject *sp_meet(void *state) { return sp_bind(&MEET, state); }

PyObject *sp_pair_calls(const void *state)
{
    void *kept = sp_keep(state, sizeof(pair_t));
    PyObject *both = kept ? PyTuple_New(2) : 0, *out = both ? sp_bind(&DISPATCH, kept) : 0, *back = out ? sp_bind(&COMBINE, kept) : 0;
    if (!back) return PyErr_NoMemory();
    PyTuple_SetItem(both, 0, out);
    PyTuple_SetItem(both, 1, back);
    return both;
}
