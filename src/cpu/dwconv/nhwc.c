/* Depthwise convolution, channels-last: forward and data gradient. Any window, stride, dilation, padding and channel
 * multiplier, one to three axes, f32, f16 and bf16 with f32 sums.
 * Math:      see dw.h
 * Blocking:  rows of outputs, see last.h; 8 pixels x 1 vector of channels, see last_tile.c
 * Output:    streamed past the caches where it is large and its pixels are whole cache lines
 * Traffic:   every input from memory once, its rows from L2 once for each row of taps; every output once
 * Roofline:  bandwidth for small windows, multiply-adds from about 7x7 on
 *            Measured on two Zen 4 cores of a shared machine: 48% of a streaming copy for 3x3 8x128x56x56, 132
 *            Gflop/s for 7x7 8x96x56x56
 * Assumes:   dense tensors; any sizes. Nothing is read or written out of bounds
 * Try:       weft bench conv2d:fwd:f32:nhwc:n8c128h56w56:o128k3p1g128 */
#include "cpu/dwconv/last.h"

typedef struct job {
    const weft__exec *e;
    const dwl_plan *f;
    dwl_outputs o;
    int64_t units;
} job;

static void run_units(void *arg, int64_t slot) {
    const job *q = arg;
    dwl_work w;
    dwl_start(&w, q->f, q->e, q->e->p->pass == WEFT_PASS_BWD_DATA, (float *)q->e->workspace + slot * q->f->floats);
    dwl_sum(&w, &q->o, cpu_first(q->units, q->f->slots, slot), cpu_first(q->units, q->f->slots, slot + 1));
}

static weft_status run(const weft__exec *e) {
    const bool up = e->p->pass == WEFT_PASS_BWD_DATA;
    const int role = up ? WEFT_ROLE_DIFF_SRC : WEFT_ROLE_DST;
    const int64_t *out = up ? e->p->in : e->p->out;
    job q = {.e = e, .f = e->params};
    q.o = (dwl_outputs){cpu_epilogue_of(e), e->ptr[role], dwl_streams(e->hw, weft__tensor(e->p, role), e->ptr[role])};
    q.o.stream &= e->p->tensor[0].dtype == WEFT_DTYPE_F32;
    q.units = e->p->n * out[0] * out[1] * q.f->tiles * q.f->chunks;
    weft__parallel(e->ctx, q.f->slots, run_units, &q);
    return WEFT_OK;
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    (void)variant;
    const char *why = dw_refusal(p, WEFT_LAYOUT_LAST);
    if (why) return why;
    const dw_window g = dw_window_of(p, p->pass == WEFT_PASS_BWD_DATA);
    dwl_plan *f = WEFT__PARAMS(dwl_plan, d);
    if ((why = dwl_cut(f, &g, false, weft__bytes(p)))) return why;
    d->workspace = (size_t)(f->slots * f->floats) * sizeof(float);
    d->packed = dwl_packed(p);
    d->ns = dw_cost(p, hw, (double)cpu_round_up(p->o, VF_LANES) / (double)p->o, 0.5);
    return NULL;
}

#define RECORD(pass_name, PASS)                                                        \
    WEFT__KERNEL(dwconv_##pass_name##_nhwc) = {                                        \
        .name = WEFT__NAME("dwconv_" #pass_name "_nhwc_" TILE),                        \
        .version = 1,                                                                  \
        .op = WEFT_OP_CONV,                                                            \
        .engine = WEFT_ENGINE_CPU,                                                     \
        .isa = WEFT__ISA_HERE,                                                         \
        .passes = WEFT__PASS_SET(PASS),                                                \
        .dtypes = WEFT__DTYPE_SET(F32) | WEFT__DTYPE_SET(F16) | WEFT__DTYPE_SET(BF16), \
        .steps = CPU_EPILOGUE_STEPS,                                                   \
        .exact = true,                                                                 \
        .plan = plan,                                                                  \
        .pack = dwl_pack,                                                              \
        .run = run,                                                                    \
    }
#if VF_REGS >= 32
#define TILE "8x1v"
#else
#define TILE "4x1v"
#endif
RECORD(fwd, FWD);
RECORD(bwd_data, BWD_DATA);
