/* Convolution, training batch norm, and what else has a seat where a gradient is wanted: the seat decides and runs.
 * Without a gradient its plans, or PyTorch's convolution below the dispatcher, are run at once; with one PyTorch's
 * operator makes the graph, and the seat under it takes the passes that weft wins. */
#include <string.h>

#include "entry.h"
#include "settings.h"

/* By entry_kind. */
static const struct {
    const seat_op *forward, *backward;
} seats[] = {
    [ENTRY_CONV] = {&seat_op_convolution, &seat_op_convolution_backward},
    [ENTRY_CONV_TRANSPOSE] = {&seat_op_convolution, &seat_op_convolution_backward},
    [ENTRY_MAX_POOL] = {&seat_op_max_pool2d_with_indices, &seat_op_max_pool2d_with_indices_backward},
    [ENTRY_AVG_POOL] = {&seat_op_avg_pool2d, &seat_op_avg_pool2d_backward},
    [ENTRY_ADAPTIVE_AVG_POOL] = {&seat_op__adaptive_avg_pool2d, &seat_op__adaptive_avg_pool2d_backward},
    [ENTRY_SOFTMAX] = {&seat_op__softmax, &seat_op__softmax_backward_data},
    [ENTRY_LOG_SOFTMAX] = {&seat_op__log_softmax, &seat_op__log_softmax_backward_data},
    [ENTRY_BATCH_NORM] = {&seat_op_native_batch_norm, &seat_op_native_batch_norm_backward},
    [ENTRY_OTHER] = {NULL, NULL},
};

/* To one pixel PyTorch takes a mean instead of its pooling. */
static bool is_mean(const entry_record *r) {
    const wt_list *size = &r->list[SEAT_EXTRA];
    return size->item[0] == 1 && size->item[1] == 1;
}

bool entry_has_seat(const entry_call *k) { return seats[k->front->kind].forward; }
static bool is_conv(const entry_call *k) {
    return k->front->kind == ENTRY_CONV || k->front->kind == ENTRY_CONV_TRANSPOSE;
}
static bool is_pool(const entry_call *k) {
    return k->front->kind == ENTRY_MAX_POOL || k->front->kind == ENTRY_AVG_POOL ||
           k->front->kind == ENTRY_ADAPTIVE_AVG_POOL;
}

static void make_call(const entry_call *k, const entry_record *r, seat_call *c) {
    memset(c, 0, sizeof(*c));
    c->op = seats[k->front->kind].forward;
    c->plain = c->read = true;
    c->cuda = entry_on_cuda(k);
    for (int i = 0; i < k->front->tensors; i++) c->in[i] = k->in[i]; /* SEAT_X, SEAT_W and so on */
    memcpy(c->value, r->value, sizeof(c->value));
    memcpy(c->real, r->real, sizeof(c->real));
    if (k->front->kind == ENTRY_BATCH_NORM) c->value[SEAT_CUDNN] = 0; /* for torch.batch_norm alone */
    memcpy(c->list, r->list, sizeof(c->list));
}

/* ---------------------------------------------------------------- deciding */
/* What the gradient reads of the forward pass, made up: where it lies, and which result it was. */
static const struct made_up {
    int slot, result;
} made_up[][3] = {
    [ENTRY_CONV] = {{SEAT_DY, 0}},
    [ENTRY_CONV_TRANSPOSE] = {{SEAT_DY, 0}},
    [ENTRY_MAX_POOL] = {{SEAT_DY, 0}, {SEAT_INDEX, 1}},
    [ENTRY_AVG_POOL] = {{SEAT_DY, 0}},
    [ENTRY_ADAPTIVE_AVG_POOL] = {{SEAT_DY, 0}},
    [ENTRY_SOFTMAX] = {{SEAT_DY, 0}},
    [ENTRY_LOG_SOFTMAX] = {{SEAT_DY, 0}},
    [ENTRY_BATCH_NORM] = {{SEAT_DY, 0}, {SEAT_SAVED_MEAN, 1}, {SEAT_SAVED_INVSTD, 2}},
};

/* Is the gradient of this call the seat's, by weft or as one in which PyTorch needs care? grad_output is made up, in
 * the format of the result. */
static bool takes_backward(const entry_call *k, const entry_record *r, const seat_shape out[SEAT_RESULTS]) {
    seat_call c;
    make_call(k, r, &c);
    c.op = seats[k->front->kind].backward;
    memset(&c.in[SEAT_BIAS], 0, sizeof(c.in[0]));
    for (int i = 0; i < 3 && (is_conv(k) || k->front->kind == ENTRY_BATCH_NORM); i++) c.want |= k->wants[i] << i;
    if (is_conv(k)) {
        c.biased = k->in[2].handle != NULL;
        c.bias_sizes.size = c.biased;
        c.bias_sizes.item[0] = out[0].sizes[1];
        if (seat_is_dangerous(&c)) return true;
    }
    if (k->front->kind == ENTRY_ADAPTIVE_AVG_POOL) c.list[SEAT_EXTRA].size = 0; /* grad_output says it */
    if (!out[0].rank) return false;                                             /* a call that the seat leaves */
    if (k->front->kind == ENTRY_SOFTMAX || k->front->kind == ENTRY_LOG_SOFTMAX) c.type = k->in[0].code;
    const struct made_up *made = made_up[k->front->kind];
    bool taken = true;
    for (int i = 0; i < 3 && made[i].slot && taken; i++) {
        wt_tensor *t = &c.in[made[i].slot];
        taken = seat_make(&out[made[i].result], &k->in[0], t, &t->handle) && !wt.aoti_torch_zero_(t->handle);
    }
    seat_entry *e = taken ? seat_find(&c, wt_settings()->math) : NULL;
    taken = e && atomic_load(&e->taken);
    seat_release(e);
    for (int i = 0; i < 3 && made[i].slot; i++)
        if (c.in[made[i].slot].handle) wt.aoti_torch_delete_tensor_object(c.in[made[i].slot].handle);
    return taken;
}

/* In 3D, and on CUDA, PyTorch may give a channels-first result of channels-last data, depending on the kernel that it
 * takes, where the operator keeps the format, and torch.compile is told so: those are the operator's. */
static bool turns_format(const entry_call *k, const seat_entry *e) {
    const wt_tensor *x = &k->in[0];
    const int rank = k->front->rank;
    if (!is_conv(k) || x->rank != rank + 2 || rank < (entry_on_cuda(k) ? 2 : 3)) return false;
    const seat_shape *out = &e->out[0];
    wt_view v = wt_see(x, rank);
    return wt_is_last(&v) && !(out->rank == x->rank && out->strides[1] < out->strides[rank + 1]);
}

/* May PyTorch compute the gradient of this pooling? On CUDA its sums have an order only for channels-first data (for a
 * maximum it refuses where an order is asked for), and its averages of channels-last data are wrong. */
static bool may_leave_gradient(const entry_call *k) {
    if (!is_pool(k) || !entry_on_cuda(k)) return true;
    wt_view v = wt_see(&k->in[0], 2);
    return wt_is_dense(&v, false) &&
           (k->front->kind == ENTRY_AVG_POOL || (k->front->kind == ENTRY_MAX_POOL && !entry_is_deterministic()));
}

/* Max pooling in training: the seat's index is PyTorch's, 8 bytes for each window; that of weft's operator is one byte,
 * which saves a third of a ns for each of them, on CUDA 4 ps, and seven of eight bytes until the backward pass. But its
 * gradient is recorded from Python, for some 80 us more, which on CUDA pass while the device computes. PyTorch's
 * gradient by its own index is as fast as weft's by bytes, or faster by a tenth. */
static bool wants_bytes(const entry_call *k, const entry_record *r, const seat_shape *out) {
    enum { BYTE_TAPS = 256 };
    const int64_t windows = entry_on_cuda(k) ? 1 << 22 : 1 << 18;
    if (k->front->kind != ENTRY_MAX_POOL) return false;
    const int64_t *kernel = r->list[SEAT_KERNEL].item;
    return wt_count(out->sizes, out->rank) >= windows && kernel[0] <= BYTE_TAPS && kernel[0] * kernel[1] <= BYTE_TAPS;
}

/* Batch norm that the long way refuses, or computes with care for 16 bits. */
static bool is_special_norm(const entry_call *k) {
    return k->front->kind == ENTRY_BATCH_NORM &&
           (k->wants[SEAT_MEAN] || k->wants[SEAT_VAR] || wt_is_half(k->in[0].dtype));
}

entry_way entry_decide_seat(const entry_call *k, entry_record *r) {
    seat_call c;
    if (is_special_norm(k)) return ENTRY_UNKNOWN;
    if (!entry_read_settings(k, r)) return ENTRY_LONG;
    if (k->front->kind == ENTRY_ADAPTIVE_AVG_POOL && is_mean(r)) return ENTRY_UNKNOWN;
    make_call(k, r, &c);
    seat_entry *e = seat_find(&c, wt_settings()->math);
    if (!e) return ENTRY_LONG;
    bool sound = e->sound && !turns_format(k, e), taken = atomic_load(&e->taken);
    double ns = taken ? e->ns : e->torch_ns;
    r->slow = ns == 0 || ns > ENTRY_LONG_NS; /* PyTorch's is below 0 where weft had better not ask */
    if (!k->records && sound) {
        if (taken || is_conv(k)) r->seat = e;
        if (!r->seat) seat_release(e);
        return taken ? ENTRY_SEAT : is_conv(k) ? ENTRY_SHIM : ENTRY_TORCH;
    }
    const bool backward = sound && takes_backward(k, r, e->out), all = taken && backward;
    const bool bytes = taken && sound && wants_bytes(k, r, &e->out[0]);
    taken = taken || backward;
    seat_release(e);
    if (!backward && !may_leave_gradient(k)) return ENTRY_UNKNOWN;
    if (!is_conv(k) && !all && !c.cuda && k->in[0].dtype != WEFT_DTYPE_F32 && k->in[0].dtype != WEFT_DTYPE_F64)
        return ENTRY_UNKNOWN;               /* PyTorch lacks some of these on the CPU, and sums in 16 bits in others */
    if (!sound || bytes) return ENTRY_LONG; /* what is wrong is said there */
    return !taken ? ENTRY_TORCH : entry_register_seat(c.op->family, c.cuda) ? ENTRY_MARK : ENTRY_LONG;
}

/* ---------------------------------------------------------------- packed weights */
static py_object *pack_new(const weft_plan *plan, const wt_tensor *w, py_object *id, py_object *packs) {
    const int64_t bytes = (int64_t)weft_plan_packed_bytes(plan), unit = 1;
    wt_tensor t = {.rank = 1, .sizes = &bytes, .strides = &unit, .code = wt.aoti_torch_dtype_uint8()};
    if (!wt_new(&t, w, &t.handle)) return NULL;
    if (weft_pack(plan, w->data, t.data, NULL) != WEFT_OK) {
        wt.aoti_torch_delete_tensor_object(t.handle);
        return NULL;
    }
    py_object *made = entry_wrap(t.handle);
    if (made && !py.PyDict_SetItem(packs, id, made)) return made;
    if (made) py.Py_DecRef(made);
    py.PyErr_Clear();
    return NULL;
}

py_object *entry_pack(const entry_call *k, const entry_record *r, const void **packed) {
    const weft_plan *plan = r->way == ENTRY_SEAT ? r->seat->step[0].plan : NULL;
    wt_tensor t;
    *packed = NULL;
    if (!plan || !k->packs || entry_on_cuda(k) || !weft_plan_packed_bytes(plan)) return NULL;
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

bool entry_run_seat(const entry_call *k, const entry_record *r, const void *packed, wt_handle *out) {
    seat_call c;
    make_call(k, r, &c);
    c.packed = packed;
    bool ok = r->way == ENTRY_SEAT ? seat_run(&c, r->seat) : seat_delegate(&c);
    if (ok && r->way == ENTRY_SHIM) wt_note_torch();
    for (int i = 1; i < SEAT_RESULTS && ok; i++)
        if (c.out[i]) wt.aoti_torch_delete_tensor_object(c.out[i]);
    *out = c.out[0];
    return ok;
}
