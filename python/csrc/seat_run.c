/* Running what the seat was given: by PyTorch's implementation, or by weft's plans on tensors that are made as PyTorch
 * would make them. */
#include "seat.h"

static _Thread_local int bypass;
void wt_seat_bypass(int step) { bypass += step; }
bool seat_bypassed(void) { return bypass != 0; }

void seat_drop_results(seat_call *c) {
    for (int i = 0; i < SEAT_RESULTS; i++) {
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
    bool ok = c->op->torch && c->op->torch(c);
    bypass--;
    return ok;
}

/* ---------------------------------------------------------------- weft's */
bool seat_make(const seat_shape *s, const wt_tensor *beside, wt_tensor *t, wt_handle *place) {
    *t = (wt_tensor){.rank = s->rank, .sizes = s->sizes, .strides = s->strides, .code = s->code};
    return wt_new(t, beside, place);
}

bool seat_run_step(const seat_step *s, void *const *slot, const void *packed, const wt_tensor *beside) {
    weft_args args = WEFT_ARGS_INIT;
    for (int i = 0; i < s->n; i++) args.ptr[s->role[i]] = slot[s->slot[i]];
    args.packed = packed;
    return wt_run_plan(s->plan, &args, beside, NULL);
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

/* The copies of it that a plan reads: owned at `place`. */
static bool copy_inputs(const seat_call *c, const seat_entry *e, void **slot, wt_handle place[2]) {
    const seat_shape *shape[] = {&e->x, &e->dy};
    static const int at[] = {SEAT_X, SEAT_DY};
    for (int i = 0; i < 2; i++) {
        wt_tensor made;
        if (!shape[i]->rank) continue;
        if (!seat_make(shape[i], &c->in[SEAT_X], &made, &place[i]) ||
            wt.aoti_torch_copy_(place[i], c->in[at[i]].handle, 0))
            return false;
        slot[at[i]] = made.data;
    }
    return true;
}

bool seat_run(seat_call *c, seat_entry *e) {
    void *slot[SEAT_SLOTS] = {NULL};
    const wt_tensor *x = &c->in[SEAT_X];
    wt_tensor made;
    wt_handle copies[2] = {NULL, NULL};
    bool ok = true;
    for (int i = 0; i < SEAT_INPUTS; i++) slot[i] = c->in[i].data;
    for (int i = SEAT_MEAN; i <= SEAT_VAR && e->moves; i++) /* memory that is shared until the first write */
        ok = ok && !wt.aoti_torch_get_data_ptr(c->in[i].handle, &slot[i]);
    ok = ok && copy_inputs(c, e, slot, copies);
    for (int i = 0; i < c->op->nout && ok; i++) {
        if (e->out[i].rank)
            ok = seat_make(&e->out[i], x, &made, &c->out[i]), slot[SEAT_OUT + i] = made.data;
        else if (!(e->sums && i == 2))
            ok = !wt.aoti_torch_new_uninitialized_tensor(&c->out[i]);
    }
    wt_kernels_clear();
    for (int i = 0; i < e->nsteps && ok; i++) ok = seat_run_step(&e->step[i], slot, c->packed, x);
    if (ok && e->sums) ok = sum_bias(c);
    for (int i = 0; i < c->op->nout && ok; i++) {
        if (!(e->unwanted >> i & 1)) continue;
        wt.aoti_torch_delete_tensor_object(c->out[i]);
        ok = !wt.aoti_torch_new_uninitialized_tensor(&c->out[i]);
    }
    for (int i = 0; i < 2; i++)
        if (copies[i]) wt.aoti_torch_delete_tensor_object(copies[i]);
    if (!ok) seat_drop_results(c);
    return ok;
}
