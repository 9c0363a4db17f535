/* Running what the seat was given: by PyTorch's implementation, or by weft's plans on tensors that are made as PyTorch
 * would make them. */
#include "seat.h"

static _Thread_local int bypass;
void wt_seat_bypass(int step) { bypass += step; }
bool seat_bypassed(void) { return bypass != 0; }

void seat_drop_results(seat_call *c) {
    for (int i = 0; i < 3; i++) {
        if (c->out[i]) wt.aoti_torch_delete_tensor_object(c->out[i]);
        c->out[i] = NULL;
    }
}

bool seat_read(seat_call *c) {
    for (int i = 0; i < SEAT_INPUTS && !c->read; i++)
        if (c->in[i].handle) c->plain &= !wt_read_tensor(c->in[i].handle, &c->in[i]) && c->in[i].rank <= 5;
    c->read = true;
    return c->plain;
}

bool seat_delegate(seat_call *c) {
    bypass++;
    bool ok = c->op->torch(c);
    bypass--;
    return ok;
}

/* ---------------------------------------------------------------- weft's */
static bool make(const seat_call *c, const seat_shape *s, wt_handle *tensor, void **data) {
    const wt_tensor *x = &c->in[SEAT_X];
    return !wt.aoti_torch_empty_strided(s->rank, s->sizes, s->strides, s->code, x->device_type, x->device_index,
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
    wt_push(&s, wt_of_tensor(&s, dy->handle));
    wt_push(&s, wt_boxed(&s, wt_of_list(&s, axes, (int)dy->rank - 1)));
    wt_push(&s, false), wt_push(&s, 0);
    if (s.failed || wt.torch_call_dispatcher("aten::sum", "dim_IntList", s.item, WT_BUILD_VERSION)) return false;
    c->out[2] = (wt_handle)(uintptr_t)s.item[0];
    return true;
}

bool seat_run(seat_call *c, seat_entry *e) {
    void *slot[SEAT_SLOTS] = {NULL}, *stream = NULL;
    wt_handle dy = NULL;
    bool ok = !c->cuda || !wt.aoti_torch_get_current_cuda_stream(c->in[SEAT_X].device_index, &stream);
    for (int i = 0; i < SEAT_INPUTS; i++) slot[i] = c->in[i].data;
    if (ok && e->dy.rank)
        ok = make(c, &e->dy, &dy, &slot[SEAT_DY]) && !wt.aoti_torch_copy_(dy, c->in[SEAT_DY].handle, 0);
    for (int i = 0; i < c->op->nout && ok; i++) {
        if (e->out[i].rank)
            ok = make(c, &e->out[i], &c->out[i], &slot[SEAT_OUT + i]);
        else if (!(e->sums && i == 2))
            ok = !wt.aoti_torch_new_uninitialized_tensor(&c->out[i]);
    }
    wt_kernels_clear();
    for (int i = 0; i < e->nsteps && ok; i++) ok = run_step(c, &e->step[i], slot, stream);
    if (ok && e->sums) ok = sum_bias(c);
    if (dy) wt.aoti_torch_delete_tensor_object(dy);
    if (!ok) seat_drop_results(c);
    return ok;
}
