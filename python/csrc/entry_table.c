/* What was decided for a call of a front, by all that the decision depends on: sizes, strides, types and alignment
 * of its tensors, which of them want a gradient, its settings, those of weft.backends, the number of threads, whether
 * deterministic algorithms are asked for. Used under the GIL. */
#include <stdlib.h>
#include <string.h>

#include "entry.h"

/* ---------------------------------------------------------------- the key */
static bool put(entry_call *k, int64_t word) {
    if (k->words == ENTRY_WORDS) return false;
    k->word[k->words++] = word;
    return true;
}

static bool put_tensor(entry_call *k, int i) {
    const wt_tensor *t = &k->in[i];
    const int at = k->words;
    if (t->rank > 8 || at + 1 + 2 * (int)t->rank > ENTRY_WORDS) return false;
    k->words = seat_key_tensor(k->word, at, t);
    k->word[at] |= (int64_t)k->wants[i] << 48;
    return true;
}

bool entry_int(py_object *value, int64_t *to) {
    if (value->type != py.PyLong_Type) return false;
    *to = py.PyLong_AsLongLong(value);
    if (*to != -1 || !py.PyErr_Occurred()) return true;
    py.PyErr_Clear(); /* it is too large */
    return false;
}

bool entry_ints(py_object *values, int64_t *to, intptr_t most, size_t *count) {
    const bool tuple = values->type == py.PyTuple_Type;
    if (!tuple && values->type != py.PyList_Type) return false;
    const intptr_t n = tuple ? py.PyTuple_Size(values) : py.PyList_Size(values);
    bool ok = n <= most;
    for (intptr_t i = 0; ok && i < n; i++)
        ok = entry_int(tuple ? py.PyTuple_GetItem(values, i) : py.PyList_GetItem(values, i), &to[i]);
    *count = (size_t)n;
    return ok;
}

static bool put_ints(entry_call *k, py_object *values) {
    enum { MOST = 6 };
    int64_t *to = k->word + k->words;
    size_t n = 0;
    if (k->words + 1 + MOST > ENTRY_WORDS || !entry_ints(values, to + 1, MOST, &n)) return false;
    *to = ENTRY_IS_INTS | (int64_t)n << 8;
    k->words += 1 + (int)n;
    return true;
}

/* Words of up to eight letters: 'same', 'valid'. */
static bool put_text(entry_call *k, py_object *value) {
    intptr_t size = 0;
    const char *text = py.PyUnicode_AsUTF8AndSize(value, &size);
    int64_t letters = 0;
    if (!text) py.PyErr_Clear();
    if (!text || size > 8) return false;
    memcpy(&letters, text, (size_t)size);
    return put(k, ENTRY_IS_TEXT | size << 8) && put(k, letters);
}

static bool put_setting(entry_call *k, py_object *value) {
    const py_object *type = value->type;
    if (value == py._Py_NoneStruct) return put(k, ENTRY_IS_NONE);
    if (value == py._Py_FalseStruct) return put(k, ENTRY_IS_FALSE);
    if (value == py._Py_TrueStruct) return put(k, ENTRY_IS_TRUE);
    int64_t bits;
    if (type == py.PyLong_Type) return entry_int(value, &bits) && put(k, ENTRY_IS_INT) && put(k, bits);
    if (type == py.PyTuple_Type || type == py.PyList_Type) return put_ints(k, value);
    if (type == py.PyUnicode_Type) return put_text(k, value);
    if (type != py.PyFloat_Type) return false;
    double real = py.PyFloat_AsDouble(value);
    memcpy(&bits, &real, sizeof(bits));
    return put(k, ENTRY_IS_FLOAT) && put(k, bits);
}

bool entry_make_key(entry_call *k) {
    uint32_t threads = 1;
    wt.torch_get_num_threads(&threads);
    k->words = 0;
    k->word[k->words++] = (int64_t)(uintptr_t)k->front;
    k->word[k->words++] =
        wt_seat_settings() << 24 | (int64_t)threads << 2 | (int64_t)entry_is_deterministic() << 1 | k->records;
    for (int i = 0; i < k->front->tensors; i++)
        if (!put_tensor(k, i)) return false;
    k->settings = k->words;
    for (int i = k->front->tensors; i < k->nargs; i++)
        if (!put_setting(k, k->arg[i])) return false;
    k->hash = seat_hash(k->word, k->words);
    return true;
}

/* ---------------------------------------------------------------- the table */
void entry_release(entry_record *r) {
    if (--r->refs) return;
    seat_release(r->seat);
    if (r->replay) weft_plan_release(r->replay->step.plan);
    free(r->replay);
    free(r->arg);
    free(r);
}

static void release(seat_node *node) { entry_release((entry_record *)node); }
static seat_table table = {.release = release};

entry_record *entry_look(const entry_call *k) { return (entry_record *)seat_look(&table, k->hash, k->word, k->words); }

entry_record *entry_keep(const entry_call *k, entry_way way) {
    const size_t bytes = (size_t)k->words * sizeof(k->word[0]);
    entry_record *r = calloc(1, sizeof(*r) + bytes);
    if (!r) return NULL;
    r->node = (seat_node){NULL, k->hash, k->words, memcpy(r->word, k->word, bytes)};
    r->refs = 1, r->way = way;
    r->direct = entry_read_settings(k, r);
    seat_keep(&table, &r->node, k->word[1] >> 24);
    return r;
}
