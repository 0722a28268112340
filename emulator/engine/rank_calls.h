/* What the compiled calls of a rank share: its state, its trace, and how they are made (pairs.c, schedule_call.c). */
#ifndef SUPERPOD_RANK_CALLS_H
#define SUPERPOD_RANK_CALLS_H
#include "entry.h"
#include "python_abi.h"

#define NONE (&_Py_NoneStruct)
#define TRUE (&_Py_TrueStruct)
#define FALSE (&_Py_FalseStruct)
enum { OP_COMPUTE = 1, OP_EXCHANGE = 13, OP_ROWS = 15, OP_SCHEDULE = 18 }; /* emulator.tracing.Op */
enum { FAIL_ENGINE, FAIL_FIELDS, FAIL_COUNTS, FAIL_SLOT };                  /* emulator.pairs */

typedef struct { i64 start, end, nbytes; u64 checksum; i32 peer, op; } trace_t;

/* Of a rank. The first fields are filled by emulator/pairs.py, in this order. */
typedef struct {
    local_t *l;
    uint8_t *state; /* my state on the board: 0 running, 1 blocked */
    const i64 *posted, *applied;
    char *trace;
    i64 *trace_at, trace_size, channel, meta; /* of the barrier */
    PyObject *leave, *flush, *fail, *empty, *ndarray, *float32, *int32, *int64, *uint8;
} rank_calls_t;

int sp_call_record(rank_calls_t *d, i64 op, i64 start, i64 peer, i64 nbytes, u64 checksum);
PyObject *sp_call_fail(rank_calls_t *d, i64 what, i64 number);
int sp_call_ready(const rank_calls_t *d, i64 channel);              /* may an exchange of it begin? (pairs.c) */
int sp_call_exchange(rank_calls_t *d, const row_args_t *a);
int sp_call_leave(rank_calls_t *d);
PyObject *sp_bind(PyMethodDef *def, void *state);
void *sp_keep(const void *from, size_t size);
#endif
