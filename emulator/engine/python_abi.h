/* The few pieces of Python's stable ABI that pairs.c needs, declared here so that building needs no Python headers; and
 * the head of a NumPy array, which pairs.py checks against a real one before anything relies on it. */
#ifndef SUPERPOD_PYTHON_ABI_H
#define SUPERPOD_PYTHON_ABI_H
#include <stdint.h>

typedef struct { intptr_t references; void *type; } PyObject;
typedef PyObject *(*fast_call_t)(PyObject *self, PyObject *const *args, intptr_t count);
typedef struct { const char *name; fast_call_t call; int flags; const char *doc; } PyMethodDef;
enum { METH_FASTCALL = 0x80 };

typedef struct { /* PyArrayObject_fields, as far as needed */
    PyObject head;
    char *data;
    int nd;
    intptr_t *shape, *strides;
    PyObject *base, *dtype;
    int flags;
} array_t;
enum { C_CONTIGUOUS = 1, ALIGNED = 0x100 };

PyObject *PyCFunction_NewEx(PyMethodDef *def, PyObject *self, PyObject *module);
PyObject *PyCapsule_New(void *pointer, const char *name, void (*destructor)(PyObject *));
void *PyCapsule_GetPointer(PyObject *capsule, const char *name);
PyObject *PyObject_CallFunctionObjArgs(PyObject *call, ...);
PyObject *PyTuple_New(intptr_t size);
int PyTuple_SetItem(PyObject *tuple, intptr_t at, PyObject *item);
PyObject *PyTuple_GetItem(PyObject *tuple, intptr_t at);
intptr_t PyTuple_Size(PyObject *tuple);
PyObject *PyBytes_FromStringAndSize(const char *from, intptr_t size);
char *PyBytes_AsString(PyObject *bytes);
PyObject *PyLong_FromLongLong(long long value);
long long PyLong_AsLongLong(PyObject *number);
PyObject *PyErr_Occurred(void);
void PyErr_Clear(void);
PyObject *PyErr_NoMemory(void);
void Py_IncRef(PyObject *o);
void Py_DecRef(PyObject *o);
void *PyEval_SaveThread(void);
void PyEval_RestoreThread(void *state);
extern PyObject _Py_NoneStruct, _Py_TrueStruct, _Py_FalseStruct;
#endif
