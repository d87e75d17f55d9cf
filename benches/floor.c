/* floor.c - how fast could a compiled detokenizer called from Python be?
 *
 * A small CPython extension, built by floor.py with the system C compiler.  It is a
 * measuring stick, not a library: one vocabulary table (token id -> bytes, plus ready
 * made str objects for tokens that are whole characters on their own), one UTF-8 tail
 * of at most 3 bytes per stream, and nothing else (no special-token rules, no space
 * stripping, ids are only range checked).
 *
 * It uses the limited API of Python 3.11, because a PyO3 wheel built as abi3 has the
 * same functions at hand and none of the inlined macros.
 */
#define Py_LIMITED_API 0x030b0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define PAD 64 /* blob and outputs are padded so short copies may run over */

typedef struct {
    PyObject_HEAD
    Py_ssize_t n;
    uint8_t *blob;
    uint32_t *off;      /* n + 1 */
    PyObject **whole;   /* str if the token is valid UTF-8 by itself, else NULL */
} Table;

static PyTypeObject *TableType, *StreamType, *NoopType;

static inline void copy_token(uint8_t *dst, const uint8_t *src, size_t len) {
    if (len <= 16) memcpy(dst, src, 16); /* one unaligned 16-byte move */
    else memcpy(dst, src, len);
}

static PyObject *Table_new(PyTypeObject *type, PyObject *args, PyObject *kw) {
    PyObject *list;
    if (!PyArg_ParseTuple(args, "O", &list)) return NULL;
    Py_ssize_t n = PyList_Size(list);
    if (n < 0) return NULL;
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Table *t = (Table *)alloc(type, 0);
    if (!t) return NULL;
    size_t total = 0;
    for (Py_ssize_t i = 0; i < n; i++) total += (size_t)PyBytes_Size(PyList_GetItem(list, i));
    t->n = n;
    t->blob = calloc(1, total + PAD);
    t->off = malloc((n + 1) * sizeof(uint32_t));
    t->whole = calloc(n, sizeof(PyObject *));
    uint32_t at = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *b = PyList_GetItem(list, i);
        Py_ssize_t len = PyBytes_Size(b);
        memcpy(t->blob + at, PyBytes_AsString(b), len);
        t->off[i] = at;
        t->whole[i] = PyUnicode_DecodeUTF8(PyBytes_AsString(b), len, "strict");
        if (!t->whole[i]) PyErr_Clear();
        at += (uint32_t)len;
    }
    t->off[n] = at;
    return (PyObject *)t;
}

/* One step: pending tail + token -> new text; the incomplete tail stays in pend. */
static inline PyObject *advance(Table *t, uint8_t *pend, uint8_t *npend, long id, int cached) {
    if (id < 0 || id >= t->n) {
        PyErr_SetString(PyExc_IndexError, "token id out of range");
        return NULL;
    }
    if (cached && *npend == 0 && t->whole[id]) return Py_NewRef(t->whole[id]);
    size_t len = t->off[id + 1] - t->off[id], have = *npend, total = have + len;
    uint8_t small[512], *buf = total + PAD <= sizeof small ? small : malloc(total + PAD);
    memcpy(buf, pend, 4);
    copy_token(buf + have, t->blob + t->off[id], len);
    Py_ssize_t used = 0;
    PyObject *s = PyUnicode_DecodeUTF8Stateful((char *)buf, (Py_ssize_t)total, "replace", &used);
    *npend = (uint8_t)(total - (size_t)used);
    memcpy(pend, buf + used, 4);
    if (buf != small) free(buf);
    return s;
}

/* ---- Stream: one object per request, one call per token -------------------------- */
typedef struct { PyObject_HEAD Table *t; uint8_t pend[4]; uint8_t npend; } Stream;

static PyObject *Stream_new(PyTypeObject *type, PyObject *args, PyObject *kw) {
    PyObject *t;
    if (!PyArg_ParseTuple(args, "O", &t)) return NULL;
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Stream *s = (Stream *)alloc(type, 0);
    if (s) s->t = (Table *)Py_NewRef(t);
    return (PyObject *)s;
}
static PyObject *Stream_step(Stream *s, PyObject *id) {
    long v = PyLong_AsLong(id);
    if (v == -1 && PyErr_Occurred()) return NULL;
    return advance(s->t, s->pend, &s->npend, v, 1);
}
static PyObject *Stream_step_uncached(Stream *s, PyObject *id) {
    long v = PyLong_AsLong(id);
    if (v == -1 && PyErr_Occurred()) return NULL;
    return advance(s->t, s->pend, &s->npend, v, 0);
}
static PyObject *Stream_finish(Stream *s, PyObject *ignored) {
    PyObject *r = PyUnicode_DecodeUTF8((char *)s->pend, s->npend, "replace");
    s->npend = 0;
    return r;
}

/* ---- offline ---------------------------------------------------------------------- */
static size_t gather(Table *t, const uint32_t *v, size_t n, uint8_t *dst) {
    uint8_t *p = dst;
    for (size_t i = 0; i < n; i++) {
        uint32_t a = t->off[v[i]], len = t->off[v[i] + 1] - a;
        copy_token(p, t->blob + a, len);
        p += len;
    }
    return (size_t)(p - dst);
}
static size_t size_of(Table *t, const uint32_t *v, size_t n) {
    size_t s = 0;
    for (size_t i = 0; i < n; i++) s += t->off[v[i] + 1] - t->off[v[i]];
    return s;
}
/* uint32 buffer -> number of bytes gathered into a scratch buffer kept between calls */
static PyObject *Table_gather(Table *t, PyObject *ids) {
    static uint8_t *scratch; static size_t cap;
    Py_buffer b;
    if (PyObject_GetBuffer(ids, &b, PyBUF_SIMPLE)) return NULL;
    size_t n = (size_t)b.len / 4, need = size_of(t, b.buf, n) + PAD;
    if (need > cap) { free(scratch); scratch = malloc(need); memset(scratch, 0, need); cap = need; }
    size_t w = gather(t, b.buf, n, scratch);
    PyBuffer_Release(&b);
    return PyLong_FromSize_t(w);
}
/* (uint32 buffer, uint64 offsets buffer) -> list[str] */
static PyObject *Table_decode_flat(Table *t, PyObject *args) {
    PyObject *a, *o;
    if (!PyArg_ParseTuple(args, "OO", &a, &o)) return NULL;
    Py_buffer b, ob;
    if (PyObject_GetBuffer(a, &b, PyBUF_SIMPLE)) return NULL;
    if (PyObject_GetBuffer(o, &ob, PyBUF_SIMPLE)) { PyBuffer_Release(&b); return NULL; }
    Py_ssize_t n = ob.len / 8 - 1;
    const uint64_t *off = ob.buf;
    const uint32_t *v = b.buf;
    PyObject *out = PyList_New(n);
    size_t cap = 1 << 16;
    uint8_t *buf = malloc(cap);
    for (Py_ssize_t i = 0; i < n; i++) {
        size_t m = off[i + 1] - off[i], need = size_of(t, v + off[i], m) + PAD;
        if (need > cap) { buf = realloc(buf, need); cap = need; }
        size_t w = gather(t, v + off[i], m, buf);
        PyList_SetItem(out, i, PyUnicode_DecodeUTF8((char *)buf, (Py_ssize_t)w, "replace"));
    }
    free(buf);
    PyBuffer_Release(&b); PyBuffer_Release(&ob);
    return out;
}
/* list[list[int]] -> list[str] */
static PyObject *Table_decode_batch(Table *t, PyObject *seqs) {
    Py_ssize_t n = PyList_Size(seqs);
    PyObject *out = PyList_New(n);
    size_t cap = 1 << 16, icap = 1 << 12;
    uint8_t *buf = malloc(cap);
    uint32_t *ids = malloc(icap * 4);
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *s = PyList_GetItem(seqs, i);
        size_t m = (size_t)PyList_Size(s);
        if (m > icap) { ids = realloc(ids, m * 4); icap = m; }
        for (size_t j = 0; j < m; j++) {
            long v = PyLong_AsLong(PyList_GetItem(s, (Py_ssize_t)j));
            ids[j] = v >= 0 && v < t->n ? (uint32_t)v : 0;
        }
        size_t need = size_of(t, ids, m) + PAD;
        if (need > cap) { buf = realloc(buf, need); cap = need; }
        size_t w = gather(t, ids, m, buf);
        PyList_SetItem(out, i, PyUnicode_DecodeUTF8((char *)buf, (Py_ssize_t)w, "replace"));
    }
    free(buf); free(ids);
    return out;
}

/* ---- the cheapest possible method call that returns a str ------------------------ */
typedef struct { PyObject_HEAD PyObject *s; } Noop;
static PyObject *Noop_new(PyTypeObject *type, PyObject *args, PyObject *kw) {
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Noop *o = (Noop *)alloc(type, 0);
    if (o) o->s = PyUnicode_FromStringAndSize(" the", 4);
    return (PyObject *)o;
}
static PyObject *Noop_cached(Noop *o, PyObject *id) { return Py_NewRef(o->s); }
static PyObject *Noop_fresh(Noop *o, PyObject *id) { return PyUnicode_FromStringAndSize(" the", 4); }

static PyMethodDef TableM[] = {{"gather", (PyCFunction)Table_gather, METH_O, 0},
    {"decode_flat", (PyCFunction)Table_decode_flat, METH_VARARGS, 0},
    {"decode_batch", (PyCFunction)Table_decode_batch, METH_O, 0}, {0}};
static PyMethodDef StreamM[] = {{"step", (PyCFunction)Stream_step, METH_O, 0},
    {"step_uncached", (PyCFunction)Stream_step_uncached, METH_O, 0},
    {"finish", (PyCFunction)Stream_finish, METH_NOARGS, 0}, {0}};
static PyMethodDef NoopM[] = {{"cached", (PyCFunction)Noop_cached, METH_O, 0},
    {"fresh", (PyCFunction)Noop_fresh, METH_O, 0}, {0}};

#define TYPE(NAME, NEW, METHODS) \
    static PyType_Slot NAME##_slots[] = {{Py_tp_new, NEW}, {Py_tp_methods, METHODS}, {0, 0}}; \
    static PyType_Spec NAME##_spec = {"floor_ext." #NAME, sizeof(NAME), 0, Py_TPFLAGS_DEFAULT, NAME##_slots};
TYPE(Table, Table_new, TableM)
TYPE(Stream, Stream_new, StreamM)
TYPE(Noop, Noop_new, NoopM)

static struct PyModuleDef mod = {PyModuleDef_HEAD_INIT, "floor_ext", 0, -1, 0};
PyMODINIT_FUNC PyInit_floor_ext(void) {
    PyObject *m = PyModule_Create(&mod);
    PyModule_AddObject(m, "Table", (PyObject *)(TableType = (PyTypeObject *)PyType_FromSpec(&Table_spec)));
    PyModule_AddObject(m, "Stream", (PyObject *)(StreamType = (PyTypeObject *)PyType_FromSpec(&Stream_spec)));
    PyModule_AddObject(m, "Noop", (PyObject *)(NoopType = (PyTypeObject *)PyType_FromSpec(&Noop_spec)));
    return m;
}
