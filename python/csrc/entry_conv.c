/* Convolution: the seat decides and runs. Without a gradient its plans, or PyTorch's convolution below the
 * dispatcher, are run at once; with one PyTorch's builtin makes the graph, and the seat under it takes the passes
 * that weft wins. */
#include <string.h>

#include "entry.h"
#include "settings.h"

/* ---------------------------------------------------------------- arguments */
static bool read_int(py_object *value, int64_t *to) {
    if (value->type != py.PyLong_Type) return false;
    *to = py.PyLong_AsLongLong(value); /* the key has read it already: it fits */
    return true;
}

static bool read_ints(py_object *value, int rank, wt_list *to) {
    bool tuple = value->type == py.PyTuple_Type;
    to->size = (size_t)rank;
    if (!tuple && value->type != py.PyList_Type) {
        bool ok = read_int(value, &to->item[0]);
        for (int a = 1; a < rank; a++) to->item[a] = to->item[0];
        return ok;
    }
    intptr_t n = tuple ? py.PyTuple_Size(value) : py.PyList_Size(value);
    if (n != rank && n != 1) return false;
    for (int a = 0; a < rank; a++) {
        intptr_t i = n == 1 ? 0 : a;
        if (!read_int(tuple ? py.PyTuple_GetItem(value, i) : py.PyList_GetItem(value, i), &to->item[a])) return false;
    }
    return true;
}

/* 'valid', or 'same' where both sides get as much. */
static bool read_padding(py_object *value, const wt_tensor *w, const wt_list *stride, const wt_list *dilation,
                         wt_list *to) {
    const int rank = (int)w->rank - 2;
    if (value->type != py.PyUnicode_Type) return read_ints(value, rank, to);
    const char *text = py.PyUnicode_AsUTF8AndSize(value, NULL);
    bool same = text && !strcmp(text, "same");
    if (!text || (!same && strcmp(text, "valid"))) return false;
    to->size = (size_t)rank;
    for (int a = 0; a < rank; a++) {
        int64_t total = dilation->item[a] * (w->sizes[2 + a] - 1);
        if (same && (stride->item[a] != 1 || total & 1)) return false;
        to->item[a] = same ? total / 2 : 0;
    }
    return true;
}

static bool read_settings(const entry_call *k, entry_record *r) {
    enum { STRIDE = 3, PADDING, DILATION, GROUPS, T_EXTRA = 5, T_GROUPS, T_DILATION, NARGS };
    const wt_tensor *w = &k->in[1];
    const int rank = (int)w->rank - 2, named = k->front->name[strlen(k->front->name) - 2] - '0'; /* conv2d */
    r->transposed = k->front->kind == ENTRY_CONV_TRANSPOSE;
    if (k->nargs != (r->transposed ? NARGS : GROUPS + 1) || rank != named) return false;
    memset(&r->list[SEAT_EXTRA], 0, sizeof(r->list[0]));
    r->list[SEAT_EXTRA].size = (size_t)rank;
    return read_ints(k->arg[STRIDE], rank, &r->list[SEAT_STRIDE]) &&
           read_ints(k->arg[r->transposed ? T_DILATION : DILATION], rank, &r->list[SEAT_DILATION]) &&
           read_int(k->arg[r->transposed ? T_GROUPS : GROUPS], &r->groups) &&
           (r->transposed ? read_ints(k->arg[PADDING], rank, &r->list[SEAT_PADDING]) &&
                                read_ints(k->arg[T_EXTRA], rank, &r->list[SEAT_EXTRA])
                          : read_padding(k->arg[PADDING], w, &r->list[SEAT_STRIDE], &r->list[SEAT_DILATION],
                                         &r->list[SEAT_PADDING]));
}

static void make_call(const entry_call *k, const entry_record *r, seat_call *c) {
    memset(c, 0, sizeof(*c));
    c->op = &seat_op_convolution;
    c->plain = c->read = true;
    c->value[SEAT_TRANSPOSED] = r->transposed;
    c->value[SEAT_GROUPS] = r->groups;
    for (int i = 0; i < 3; i++) c->in[i] = k->in[i]; /* SEAT_X, SEAT_W, SEAT_BIAS */
    memcpy(c->list, r->list, sizeof(c->list));
}

/* ---------------------------------------------------------------- deciding */
/* Is the gradient of this call the seat's, by weft or as one in which PyTorch needs care? grad_output is made up, in
 * the format of the result. */
static bool takes_backward(const entry_call *k, const entry_record *r, const seat_shape *y) {
    seat_call c;
    wt_handle dy = NULL;
    make_call(k, r, &c);
    c.op = &seat_op_convolution_backward;
    memset(&c.in[SEAT_BIAS], 0, sizeof(c.in[0]));
    c.biased = k->in[2].handle != NULL;
    c.bias_sizes.size = c.biased;
    c.bias_sizes.item[0] = y->sizes[1];
    for (int i = 0; i < 3; i++) c.want |= k->wants[i] << i;
    if (seat_is_dangerous(&c)) return true;
    if (!y->rank) return false; /* a call that the seat leaves */
    if (wt.aoti_torch_empty_strided(y->rank, y->sizes, y->strides, k->in[0].code, k->in[0].device_type,
                                    k->in[0].device_index, &dy) ||
        wt_read_tensor(dy, &c.in[SEAT_DY]))
        return false;
    seat_entry *e = seat_find(&c, wt_settings()->math);
    bool taken = e && atomic_load(&e->taken);
    seat_release(e);
    wt.aoti_torch_delete_tensor_object(dy);
    return taken;
}

/* In 3D PyTorch may give a channels-first result of channels-last data, depending on the kernel that it takes, where
 * the operator keeps the format, and torch.compile is told so: those are the operator's. */
static bool turns_format(const entry_call *k, const seat_entry *e) {
    const wt_tensor *x = &k->in[0];
    if (x->rank != 5) return false;
    wt_view v = wt_see(x, 3);
    return wt_is_last(&v) && !(e->out[0].rank == 5 && e->out[0].strides[1] < e->out[0].strides[4]);
}

entry_way entry_decide_conv(const entry_call *k, entry_record *r) {
    seat_call c;
    if (!k->in[0].handle || !k->in[1].handle || !read_settings(k, r)) return ENTRY_LONG;
    make_call(k, r, &c);
    seat_entry *e = seat_find(&c, wt_settings()->math);
    if (!e) return ENTRY_LONG;
    bool sound = e->sound && !turns_format(k, e), taken = atomic_load(&e->taken);
    double ns = taken ? e->ns : e->torch_ns;
    r->slow = ns <= 0 || ns > ENTRY_LONG_NS;
    if (!k->records && sound) {
        r->seat = e;
        return taken ? ENTRY_SEAT : ENTRY_SHIM;
    }
    taken = taken || (sound && takes_backward(k, r, &e->out[0]));
    seat_release(e);
    if (!sound) return ENTRY_LONG; /* what is wrong is said there */
    return !taken ? ENTRY_TORCH : entry_register_seat() ? ENTRY_MARK : ENTRY_LONG;
}

/* ---------------------------------------------------------------- packed weights */
static py_object *pack_new(const weft_plan *plan, const wt_tensor *w, py_object *id, py_object *packs) {
    const int64_t bytes = (int64_t)weft_plan_packed_bytes(plan), unit = 1;
    wt_handle memory = NULL;
    void *data = NULL;
    if (wt.aoti_torch_empty_strided(1, &bytes, &unit, wt.aoti_torch_dtype_uint8(), w->device_type, w->device_index,
                                    &memory))
        return NULL;
    if (wt.aoti_torch_get_data_ptr(memory, &data) || weft_pack(plan, w->data, data, NULL) != WEFT_OK) {
        wt.aoti_torch_delete_tensor_object(memory);
        return NULL;
    }
    py_object *made = entry_wrap(memory);
    if (made && !py.PyDict_SetItem(packs, id, made)) return made;
    if (made) py.Py_DecRef(made);
    py.PyErr_Clear();
    return NULL;
}

py_object *entry_pack(const entry_call *k, const entry_record *r, const void **packed) {
    const weft_plan *plan = r->way == ENTRY_SEAT ? r->seat->step[0].plan : NULL;
    wt_tensor t;
    *packed = NULL;
    if (!plan || !k->packs || !weft_plan_packed_bytes(plan)) return NULL;
    py_object *id = py.PyLong_FromUnsignedLongLong(weft_plan_packed_id(plan));
    py_object *kept = id ? py.PyDict_GetItem(k->packs, id) : NULL;
    if (kept)
        py.Py_IncRef(kept);
    else if (id)
        kept = pack_new(plan, &k->in[1], id, k->packs);
    if (id) py.Py_DecRef(id);
    if (kept && entry_read(kept, &t)) *packed = t.data;
    return kept;
}

bool entry_run_conv(const entry_call *k, const entry_record *r, const void *packed, wt_handle *out) {
    seat_call c;
    make_call(k, r, &c);
    c.packed = packed;
    bool ok = r->way == ENTRY_SEAT ? seat_run(&c, r->seat) : seat_delegate(&c);
    if (ok && r->way == ENTRY_SHIM) wt_note_torch();
    *out = c.out[0];
    return ok;
}
