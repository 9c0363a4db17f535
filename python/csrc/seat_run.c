/* Running a convolution that the seat was given: PyTorch's implementation of it, or weft's plans on tensors that are
 * made as PyTorch would make them. */
#include <string.h>

#include "seat.h"

static _Thread_local int bypass;
void wt_seat_bypass(int step) { bypass += step; }
bool seat_bypassed(void) { return bypass != 0; }

bool seat_is_cuda(const seat_call *c) { return c->in[SEAT_X].device_type != wt.aoti_torch_device_type_cpu(); }

void seat_drop_results(seat_call *c) {
    for (int i = 0; i < 3; i++) {
        if (c->out[i]) wt.aoti_torch_delete_tensor_object(c->out[i]);
        c->out[i] = NULL;
    }
}

/* ---------------------------------------------------------------- PyTorch's */
static bool forward_by_torch(seat_call *c) {
    const wt_list *l = c->list;
    wt_error(*run) WT_CONVOLUTION = seat_is_cuda(c) ? wt.aoti_torch_cuda_convolution : wt.aoti_torch_cpu_convolution;
    return !run(c->in[SEAT_X].handle, c->in[SEAT_W].handle, c->in[SEAT_BIAS].handle ? &c->in[SEAT_BIAS].handle : NULL,
                l[SEAT_STRIDE].item, (int64_t)l[SEAT_STRIDE].size, l[SEAT_PADDING].item, (int64_t)l[SEAT_PADDING].size,
                l[SEAT_DILATION].item, (int64_t)l[SEAT_DILATION].size, c->transposed, l[SEAT_EXTRA].item,
                (int64_t)l[SEAT_EXTRA].size, c->groups, &c->out[0]);
}

static bool backward_by_torch(seat_call *c) {
    const wt_list *l = c->list;
    const int64_t *sizes = c->bias_sizes.item;
    int32_t mask[3];
    for (int i = 0; i < 3; i++) mask[i] = c->want >> i & 1;
    wt_error(*run) WT_CONVOLUTION_BACKWARD =
        seat_is_cuda(c) ? wt.aoti_torch_cuda_convolution_backward : wt.aoti_torch_cpu_convolution_backward;
    return !run(c->in[SEAT_DY].handle, c->in[SEAT_X].handle, c->in[SEAT_W].handle, c->biased ? &sizes : NULL,
                (int64_t)c->bias_sizes.size, l[SEAT_STRIDE].item, (int64_t)l[SEAT_STRIDE].size, l[SEAT_PADDING].item,
                (int64_t)l[SEAT_PADDING].size, l[SEAT_DILATION].item, (int64_t)l[SEAT_DILATION].size, c->transposed,
                l[SEAT_EXTRA].item, (int64_t)l[SEAT_EXTRA].size, c->groups, mask, 3, &c->out[0], &c->out[1],
                &c->out[2]);
}

/* PyTorch 2.13 writes outside of its memory in the weight gradient of channels-last 1x1 convolutions with a stride
 * and fewer than 16 channels. It is not asked for that: contiguous tensors take another way through it. */
bool seat_is_dangerous(const seat_call *c) {
    const wt_tensor *x = &c->in[SEAT_X], *w = &c->in[SEAT_W];
    if (!c->backward || !(c->want & WT_WANT_WEIGHT) || !c->plain || w->rank < 4 || x->rank != w->rank ||
        x->sizes[1] >= 16 || seat_is_cuda(c))
        return false;
    bool strided = false;
    for (int64_t a = 2; a < w->rank; a++)
        if (w->sizes[a] != 1) return false;
    for (size_t i = 0; i < c->list[SEAT_STRIDE].size && i < WT_MAX_LIST; i++)
        strided |= c->list[SEAT_STRIDE].item[i] > 1;
    return strided && (seat_suggests_last(x) || seat_suggests_last(w));
}

static void contiguous(int64_t strides[5], const int64_t *sizes, int64_t rank) {
    int64_t step = 1;
    for (int64_t a = rank - 1; a >= 0; a--) strides[a] = step, step *= sizes[a] > 1 ? sizes[a] : 1;
}

static wt_handle copy_of(wt_handle from, const wt_tensor *like, const int64_t *sizes, const int64_t *strides) {
    wt_handle made = NULL;
    if (wt.aoti_torch_empty_strided(like->rank, sizes, strides, like->code, like->device_type, like->device_index,
                                    &made))
        return NULL;
    if (!wt.aoti_torch_copy_(made, from, 0)) return made;
    wt.aoti_torch_delete_tensor_object(made);
    return NULL;
}

/* A result in channels-last, as PyTorch would have given it. */
static bool turn_last(wt_handle *tensor, const wt_tensor *like) {
    wt_tensor is;
    int64_t strides[5];
    wt_view v;
    if (wt_read_tensor(*tensor, &is)) return false;
    v = wt_see(&is, (int)is.rank - 2);
    wt_dense(v.strides, v.dims, true);
    for (int64_t a = 0; a < is.rank; a++) strides[a] = v.strides[a < 2 ? a : a + 5 - is.rank];
    wt_handle turned = copy_of(*tensor, like, is.sizes, strides);
    if (!turned) return false;
    wt.aoti_torch_delete_tensor_object(*tensor);
    *tensor = turned;
    return true;
}

static bool backward_contiguously(seat_call *c) {
    seat_call safe = *c;
    static const int used[] = {SEAT_X, SEAT_W, SEAT_DY};
    bool ok = true, last = seat_suggests_last(&c->in[SEAT_X]) || seat_suggests_last(&c->in[SEAT_W]);
    for (int i = 0; i < 3; i++) {
        const wt_tensor *t = &c->in[used[i]];
        int64_t strides[5];
        contiguous(strides, t->sizes, t->rank);
        safe.in[used[i]].handle = copy_of(t->handle, t, t->sizes, strides);
        ok &= safe.in[used[i]].handle != NULL;
    }
    ok = ok && backward_by_torch(&safe);
    for (int i = 0; i < 2 && ok && last; i++)
        if (c->want >> i & 1) ok = turn_last(&safe.out[i], &c->in[i ? SEAT_W : SEAT_X]);
    for (int i = 0; i < 3; i++)
        if (safe.in[used[i]].handle) wt.aoti_torch_delete_tensor_object(safe.in[used[i]].handle);
    memcpy(c->out, safe.out, sizeof(c->out));
    return ok;
}

bool seat_delegate(seat_call *c) {
    bypass++;
    bool ok = !c->backward           ? forward_by_torch(c)
              : seat_is_dangerous(c) ? backward_contiguously(c)
                                     : backward_by_torch(c);
    bypass--;
    return ok;
}

/* ---------------------------------------------------------------- weft's */
static bool make(const seat_call *c, const seat_shape *s, wt_handle *tensor, void **data) {
    const wt_tensor *x = &c->in[SEAT_X];
    return !wt.aoti_torch_empty_strided(s->rank, s->sizes, s->strides, x->code, x->device_type, x->device_index,
                                        tensor) &&
           !wt.aoti_torch_get_data_ptr(*tensor, data);
}

static bool run_step(const seat_call *c, const seat_step *s, void *const slot[SEAT_SLOTS], void *stream) {
    weft_args args = WEFT_ARGS_INIT;
    wt_handle memory = NULL;
    void *workspace = NULL;
    const wt_tensor *x = &c->in[SEAT_X];
    const int64_t bytes = (int64_t)weft_plan_workspace_bytes(s->plan), unit = 1;
    if (bytes && (wt.aoti_torch_empty_strided(1, &bytes, &unit, wt.aoti_torch_dtype_uint8(), x->device_type,
                                              x->device_index, &memory) ||
                  wt.aoti_torch_get_data_ptr(memory, &workspace)))
        return false;
    for (int i = 0; i < s->n; i++) args.ptr[s->role[i]] = slot[s->slot[i]];
    args.packed = c->packed;
    bool ok = weft_execute(s->plan, &args, workspace, (size_t)bytes, stream) == WEFT_OK;
    if (memory) wt.aoti_torch_delete_tensor_object(memory);
    if (ok) wt_kernels_add(weft_plan_kernel_name(s->plan));
    return ok;
}

/* diff_bias as PyTorch makes it: the sum over all but the channels. */
static bool sum_bias(seat_call *c) {
    const wt_tensor *dy = &c->in[SEAT_DY];
    int64_t axes[4] = {0};
    wt_stack s = {.n = 0};
    for (int64_t a = 2; a < dy->rank; a++) axes[a - 1] = a;
    wt_push_tensor(&s, dy->handle);
    wt_push_optional_list(&s, axes, (int)dy->rank - 1);
    wt_push_bool(&s, false);
    wt_push_none(&s);
    if (s.failed || wt.torch_call_dispatcher("aten::sum", "dim_IntList", s.item, WT_BUILD_VERSION)) return false;
    c->out[2] = (wt_handle)(uintptr_t)s.item[0];
    return true;
}

bool seat_run(seat_call *c, seat_entry *e) {
    void *slot[SEAT_SLOTS] = {NULL}, *stream = NULL;
    wt_handle dy = NULL;
    bool ok = !seat_is_cuda(c) || !wt.aoti_torch_get_current_cuda_stream(c->in[SEAT_X].device_index, &stream);
    for (int i = 0; i < SEAT_INPUTS; i++) slot[i] = c->in[i].data;
    if (ok && e->dy.rank)
        ok = make(c, &e->dy, &dy, &slot[SEAT_DY]) && !wt.aoti_torch_copy_(dy, c->in[SEAT_DY].handle, 0);
    for (int i = 0; i < 3 && ok; i++) {
        if (e->out[i].rank)
            ok = make(c, &e->out[i], &c->out[i], &slot[SEAT_OUT + i]);
        else if (c->backward && !(e->sums && i == 2))
            ok = !wt.aoti_torch_new_uninitialized_tensor(&c->out[i]);
    }
    wt_kernels_clear();
    for (int i = 0; i < e->nsteps && ok; i++) ok = run_step(c, &e->step[i], slot, stream);
    if (ok && e->sums) ok = sum_bias(c);
    if (dy) wt.aoti_torch_delete_tensor_object(dy);
    if (!ok) seat_drop_results(c);
    return ok;
}
