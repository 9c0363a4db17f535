/* Depthwise convolution, channels-first: forward and data gradient. Any window, stride, dilation, padding and channel
 * multiplier, one to three axes, f32, f16 and bf16 with f32 sums.
 * Math:      see dw.h
 * Blocking:  units of rows in the nearest cache, see first.h; 4 rows x up to 4 vectors of sums, see first_tile.c
 * Traffic:   every input is read once, but for the halo of a strip, every output written once, past the caches where
 *            they are large
 * Roofline:  bandwidth for small windows, multiply-adds from about 7x7 on
 *            Measured on two Zen 4 cores of a shared machine: 48% of a streaming copy for 3x3 8x128x56x56, 73
 *            Gflop/s for 3x3x3 1x64x50x50x50; on one core, in cache, 76 Gflop/s for 7x7 and 113 for 31x31
 * Assumes:   dense tensors; any sizes. Nothing is read or written out of bounds
 * Try:       weft bench conv2d:fwd:f32:nchw:n8c128h56w56:o128k3p1g128 */
#include "cpu/dwconv/first.h"

typedef struct job {
    const weft__exec *e;
    const dwf_plan *f;
    bool stream;
} job;

static void run_units(void *arg, int64_t slot) {
    const job *q = arg;
    const dwf_plan *f = q->f;
    const weft_problem *p = q->e->p;
    const int64_t each = f->chunks * f->strips * f->tiles, units = p->n * p->c * each;
    dwf_work w;
    dwf_start(&w, f, q->e, p->pass == WEFT_PASS_BWD_DATA, (float *)q->e->workspace + slot * f->floats);
    w.e = cpu_epilogue_of(q->e);
    w.stream = q->stream;
    for (int64_t u = cpu_first(units, f->slots, slot); u < cpu_first(units, f->slots, slot + 1); u++) {
        dwf_unit(&w, u / each / p->c, u / each % p->c, u % each);
        for (int64_t z = w.from[0]; z < w.to[0]; z++) {
            dwf_fill(&w, z);
            for (int64_t i = 0; i < w.g.outs; i++) dwf_outputs(&w, z, i);
        }
    }
    if (q->stream) vf_stream_end();
}

static weft_status run(const weft__exec *e) {
    const dwf_plan *f = e->params;
    const weft_tensor *out = weft__tensor(e->p, e->p->pass == WEFT_PASS_FWD ? WEFT_ROLE_DST : WEFT_ROLE_DIFF_SRC);
    job q = {e, f, cpu_streams(e->hw, (double)weft__numel(out) * (double)weft__dtype_size(out->dtype))};
    weft__parallel(e->ctx, f->slots, run_units, &q);
    return WEFT_OK;
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    (void)variant;
    const char *why = dw_refusal(p, WEFT_LAYOUT_FIRST);
    if (why) return why;
    const dw_window g = dw_window_of(p, p->pass == WEFT_PASS_BWD_DATA);
    dwf_plan *f = WEFT__PARAMS(dwf_plan, d);
    if ((why = dwf_cut(f, &g, false, weft__bytes(p)))) return why;
    d->workspace = (size_t)(f->slots * f->floats) * sizeof(float);
    const double lanes = (double)cpu_round_up(p->out[2], VF_LANES) / (double)p->out[2];
    d->ns = dw_cost(p, hw, WEFT__MIN(lanes, 2), 0.5);
    return NULL;
}

#define RECORD(pass_name, PASS)                                                        \
    WEFT__KERNEL(dwconv_##pass_name##_nchw) = {                                        \
        .name = WEFT__NAME("dwconv_" #pass_name "_nchw_4x" TILE),                      \
        .version = 1,                                                                  \
        .op = WEFT_OP_CONV,                                                            \
        .engine = WEFT_ENGINE_CPU,                                                     \
        .isa = WEFT__ISA_HERE,                                                         \
        .passes = WEFT__PASS_SET(PASS),                                                \
        .dtypes = WEFT__DTYPE_SET(F32) | WEFT__DTYPE_SET(F16) | WEFT__DTYPE_SET(BF16), \
        .steps = CPU_EPILOGUE_STEPS,                                                   \
        .exact = true,                                                                 \
        .plan = plan,                                                                  \
        .run = run,                                                                    \
    }
#if VF_REGS >= 32
#define TILE "4v"
#else
#define TILE "2v"
#endif
RECORD(fwd, FWD);
RECORD(bwd_data, BWD_DATA);
