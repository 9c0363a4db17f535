/* CPython as the entries see it: opaque objects and a table of functions found at load time, so that one binary serves
 * every Python from 3.10 on and needs no header of it. Names and contracts are CPython's. */
#ifndef WEFT_TORCH_PYTHON_H
#define WEFT_TORCH_PYTHON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct py_object { /* a count and a type: checked by the self-test, not so in a free-threaded Python */
    intptr_t refs;
    struct py_object *type;
} py_object;
typedef py_object *(*py_fast)(py_object *self, py_object *const *args, intptr_t nargs);
typedef struct py_method {
    const char *name;
    py_fast call;
    int flags;
    const char *doc;
} py_method;
enum { PY_FASTCALL = 0x80 };

#define WT_PYTHON_FUNCTIONS(X)                                                                               \
    X(py_object *, PyCFunction_NewEx, (py_method * method, py_object * self, py_object * module))            \
    X(py_object *, PyObject_Vectorcall, (py_object * f, py_object *const *args, size_t n, py_object *names)) \
    X(long long, PyLong_AsLongLong, (py_object * value))                                                     \
    X(double, PyFloat_AsDouble, (py_object * value))                                                         \
    X(intptr_t, PyTuple_Size, (py_object * tuple))                                                           \
    X(py_object *, PyTuple_GetItem, (py_object * tuple, intptr_t i))                                         \
    X(py_object *, PyTuple_New, (intptr_t n))                                                                \
    X(int, PyTuple_SetItem, (py_object * tuple, intptr_t i, py_object * item))                               \
    X(intptr_t, PyList_Size, (py_object * list))                                                             \
    X(py_object *, PyList_GetItem, (py_object * list, intptr_t i))                                           \
    X(const char *, PyUnicode_AsUTF8AndSize, (py_object * text, intptr_t * size))                            \
    X(py_object *, PyDict_GetItem, (py_object * dict, py_object * key))                                      \
    X(int, PyDict_SetItem, (py_object * dict, py_object * key, py_object * item))                            \
    X(py_object *, PyLong_FromUnsignedLongLong, (unsigned long long value))                                  \
    X(py_object *, PyErr_Occurred, (void))                                                                   \
    X(void, PyErr_Clear, (void))                                                                             \
    X(void, Py_IncRef, (py_object * object))                                                                 \
    X(void, Py_DecRef, (py_object * object))                                                                 \
    X(void *, PyEval_SaveThread, (void))                                                                     \
    X(void, PyEval_RestoreThread, (void *state))
#define WT_PYTHON_OBJECTS(X)    \
    X(_Py_NoneStruct)           \
    X(_Py_TrueStruct)           \
    X(_Py_FalseStruct)          \
    X(_Py_NotImplementedStruct) \
    X(PyLong_Type) X(PyFloat_Type) X(PyTuple_Type) X(PyList_Type) X(PyUnicode_Type) X(PyDict_Type)

typedef struct wt_python {
#define X(returns, name, parameters) returns(*name) parameters;
    WT_PYTHON_FUNCTIONS(X)
#undef X
#define X(name) py_object *name;
    WT_PYTHON_OBJECTS(X)
#undef X
} wt_python;
extern wt_python py;

/* Fill the table. false: this is no CPython that the entries know. */
bool wt_python_load(void);

#endif
