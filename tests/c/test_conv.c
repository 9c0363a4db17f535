/* The reference of convolution against a loop of another shape: every product of the sum is visited once, in scatter
 * form, and added to whichever output the pass has. On integers both are exact, so they agree exactly after one
 * rounding to the output. */
#include <math.h>

#include "ref/item.h"
#include "test.h"

/* A tensor as doubles, in canonical order. */
typedef struct plain {
    const weft_tensor *t;
    double *v;
} plain;

static plain read_tensor(const weft_problem *p, int role, const harness_buffer *b) {
    plain x = {weft__tensor(p, role), NULL};
    if (!x.t) return x;
    x.v = calloc((size_t)weft__numel(x.t) + 1, sizeof(double));
    size_t i = 0;
    for (harness_walk w = harness_first(x.t); b && !w.done; harness_step(&w))
        x.v[i++] = harness_load(x.t->dtype, (char *)b->at + w.offset * (int64_t)weft__dtype_size(x.t->dtype));
    return x;
}

static double *at(plain x, const int64_t i[5]) {
    const int64_t *d = x.t->dims;
    return &x.v[(((i[0] * d[1] + i[1]) * d[2] + i[2]) * d[3] + i[3]) * d[4] + i[4]];
}

/* One product: the three elements it joins, any of which may take no part. */
static void visit(const plain *x, const int64_t in[5], const int64_t w[5], const int64_t out[5]) {
    if (x[WEFT_ROLE_DST].t) *at(x[WEFT_ROLE_DST], out) += *at(x[WEFT_ROLE_SRC], in) * *at(x[WEFT_ROLE_WEIGHTS], w);
    if (x[WEFT_ROLE_DIFF_SRC].t)
        *at(x[WEFT_ROLE_DIFF_SRC], in) += *at(x[WEFT_ROLE_DIFF_DST], out) * *at(x[WEFT_ROLE_WEIGHTS], w);
    if (x[WEFT_ROLE_DIFF_WEIGHTS].t)
        *at(x[WEFT_ROLE_DIFF_WEIGHTS], w) += *at(x[WEFT_ROLE_DIFF_DST], out) * *at(x[WEFT_ROLE_SRC], in);
}

/* All taps of one pair of channels in one image. */
static void visit_pair(const weft_problem *p, const plain *x, int64_t n, int64_t o, int64_t i) {
    int64_t c = o / (p->o / p->groups) * (p->c / p->groups) + i, positions = p->out[0] * p->out[1] * p->out[2];
    int64_t taps = p->kernel[0] * p->kernel[1] * p->kernel[2];
    for (int64_t position = 0; position < positions; position++)
        for (int64_t tap = 0; tap < taps; tap++) {
            int64_t in[5] = {n, c}, w[5] = {o, i}, out[5] = {n, o}, y = position, k = tap;
            bool inside = true;
            for (int a = 2; a >= 0; a--) {
                out[2 + a] = y % p->out[a];
                w[2 + a] = k % p->kernel[a];
                y /= p->out[a];
                k /= p->kernel[a];
                in[2 + a] = out[2 + a] * p->stride[a] + w[2 + a] * p->dilation[a] - p->pad_lo[a];
                inside = inside && in[2 + a] >= 0 && in[2 + a] < p->in[a];
            }
            if (inside) visit(x, in, w, out);
        }
}

static void finish(const weft_problem *p, plain y, plain bias) {
    int64_t i = 0;
    for (harness_walk w = harness_first(y.t); !w.done; harness_step(&w), i++)
        for (int s = 0; s < p->nsteps; s++) {
            if (p->step[s].kind == WEFT_STEP_BIAS)
                y.v[i] += bias.v[w.index[1]];
            else if (p->step[s].kind == WEFT_STEP_RELU)
                y.v[i] = fmax(y.v[i], 0);
            else if (p->step[s].kind == WEFT_STEP_CLIP)
                y.v[i] = fmin(fmax(y.v[i], p->step[s].lo), p->step[s].hi);
        }
}

/* y = alpha * y + beta * (what was there before), if the problem ends so. */
static void accumulate(const weft_problem *p, plain y, const harness_buffer *before) {
    const weft_step *last = p->nsteps ? &p->step[p->nsteps - 1] : NULL;
    if (!last || last->kind != WEFT_STEP_ACC) return;
    plain old = read_tensor(p, y.t->role, last->beta != 0 ? before : NULL);
    for (int64_t i = 0; i < weft__numel(y.t); i++) y.v[i] = last->alpha * y.v[i] + last->beta * old.v[i];
    free(old.v);
}

static void naive(const weft_problem *p, plain *x) {
    for (int64_t n = 0; n < p->n && p->pass != WEFT_PASS_BWD_BIAS; n++)
        for (int64_t o = 0; o < p->o; o++)
            for (int64_t i = 0; i < p->c / p->groups; i++) visit_pair(p, x, n, o, i);
    int64_t k = 0;
    if (x[WEFT_ROLE_DIFF_BIAS].t)
        for (harness_walk w = harness_first(x[WEFT_ROLE_DIFF_DST].t); !w.done; harness_step(&w), k++)
            x[WEFT_ROLE_DIFF_BIAS].v[w.index[1]] += x[WEFT_ROLE_DIFF_DST].v[k];
    if (x[WEFT_ROLE_DST].t) finish(p, x[WEFT_ROLE_DST], x[WEFT_ROLE_BIAS]);
    if (p->pass == WEFT_PASS_BWD_DATA) finish(p, x[WEFT_ROLE_DIFF_SRC], x[WEFT_ROLE_BIAS]);
}

static void compare(const weft_problem *p, const harness_buffer *got, plain want) {
    char text[WEFT_TEXT_MAX], place[128], rounded[16];
    int64_t i = 0, size = (int64_t)weft__dtype_size(want.t->dtype);
    for (harness_walk w = harness_first(want.t); !w.done; harness_step(&w), i++) {
        double x = harness_load(want.t->dtype, (char *)got->at + w.offset * size);
        harness_store(want.t->dtype, rounded, want.v[i]);
        if (x == harness_load(want.t->dtype, rounded)) continue;
        harness_text(p, text);
        harness_where(&w, place, sizeof(place));
        test_stop(TEST_FAIL, "%s: %s = %g, the loop has %g", text, place, x, want.v[i]);
    }
}

static void check(harness *h, const weft_problem *p, uint64_t seed) {
    plain x[WEFT_ROLE_COUNT];
    const char *name = weft__ref_kernels[WEFT_OP_CONV]->name;
    CHECK(harness_inputs(h, p, HARNESS_INTEGERS, HARNESS_END, seed), "no memory");
    OK(harness_run(h, h->ctx[0], p, name, h->in, h->out, HARNESS_END, false));
    for (int role = 0; role < WEFT_ROLE_COUNT; role++)
        x[role] = read_tensor(p, role, weft__is_output(p, role) ? NULL : &h->in[role]);
    naive(p, x);
    for (int role = 0; role < WEFT_ROLE_COUNT; role++) {
        if (!x[role].t || !weft__is_output(p, role)) continue;
        accumulate(p, x[role], &h->in[role]);
        compare(p, &h->out[role], x[role]);
    }
    for (int role = 0; role < WEFT_ROLE_COUNT; role++) free(x[role].v);
}

TEST(reference_against_a_plain_loop) {
    static harness h;
    weft_ctx_opts opts = WEFT_CTX_OPTS_INIT;
    opts.engines = WEFT_ENGINE_REF;
    const int threads[] = {1};
    OK(harness_create(&h, &opts, threads, 1));
    for (uint64_t seed = 1, done = 0; done < 1500; seed++) {
        weft_problem p;
        CHECK(harness_random(&p, seed, WEFT_DEVICE_CPU), "seed %llu: %s", (unsigned long long)seed, weft_last_error());
        if (p.op != WEFT_OP_CONV) continue;
        check(&h, &p, seed);
        done++;
    }
    harness_destroy(&h);
}

/* The harness's own conversions, on values whose encodings the formats fix. */
TEST(values_of_16_bits) {
    static const struct {
        int dtype;
        double value;
        uint16_t bits;
    } known[] = {
        {WEFT_DTYPE_F16, 1, 0x3c00},           {WEFT_DTYPE_F16, -2, 0xc000},
        {WEFT_DTYPE_F16, 65504, 0x7bff},       {WEFT_DTYPE_F16, 65519, 0x7bff},
        {WEFT_DTYPE_F16, 65520, 0x7c00},       {WEFT_DTYPE_F16, 0x1p-24, 0x0001},
        {WEFT_DTYPE_F16, 0x1p-25, 0x0000},     {WEFT_DTYPE_F16, 0x1.8p-25, 0x0001},
        {WEFT_DTYPE_F16, 1 + 0x1p-11, 0x3c00}, {WEFT_DTYPE_F16, 1 + 0x3p-11, 0x3c02},
        {WEFT_DTYPE_F16, 0x1p-14, 0x0400},     {WEFT_DTYPE_BF16, 1, 0x3f80},
        {WEFT_DTYPE_BF16, 1 + 0x1p-8, 0x3f80}, {WEFT_DTYPE_BF16, 1 + 0x3p-8, 0x3f82},
        {WEFT_DTYPE_BF16, -0.0, 0x8000},       {WEFT_DTYPE_BF16, 0x1p-133, 0x0001},
        {WEFT_DTYPE_BF16, 3.4e38, 0x7f80},     {WEFT_DTYPE_BF16, (double)INFINITY, 0x7f80},
    };
    for (size_t i = 0; i < WEFT__COUNT(known); i++) {
        uint16_t bits;
        harness_store(known[i].dtype, &bits, known[i].value);
        CHECK(bits == known[i].bits, "%g in %s is 0x%04x, not 0x%04x", known[i].value, weft__dtype_name(known[i].dtype),
              known[i].bits, bits);
    }
    for (int dtype = WEFT_DTYPE_F16; dtype <= WEFT_DTYPE_BF16; dtype++)
        for (uint32_t bits = 0; bits < 65536; bits++) {
            uint16_t in = (uint16_t)bits, out;
            double v = harness_load(dtype, &in);
            harness_store(dtype, &out, v);
            CHECK(in == out || isnan(v), "%s 0x%04x comes back as 0x%04x", weft__dtype_name(dtype), in, out);
        }
}

/* The library's conversions to and from 16 bits beside the harness's, which are written apart from them: every value
 * of the formats, those half way between two, just beside, and below the least subnormal. */
TEST(the_library_rounds_as_the_harness) {
    for (int dtype = WEFT_DTYPE_F16; dtype <= WEFT_DTYPE_BF16; dtype++)
        for (uint32_t bits = 0; bits < 65536; bits++) {
            uint16_t in = (uint16_t)bits, ours, theirs;
            double v = harness_load(dtype, &in), next;
            double got = item_load(dtype, &in, 0);
            CHECK(got == v || (isnan(got) && isnan(v)), "%s 0x%04x is read as %g", weft__dtype_name(dtype), in, got);
            if (!isfinite(v) || (in & 0x7fff) == 0x7fff) continue;
            uint16_t up = (uint16_t)(in + 1);
            next = harness_load(dtype, &up);
            double near[] = {v,
                             v + (next - v) * 0.25,
                             v + (next - v) * 0.5,
                             nextafter(v + (next - v) * 0.5, 0),
                             nextafter(v + (next - v) * 0.5, 2 * next),
                             v * 0x1p-40,
                             nextafter(v, 0)};
            for (size_t i = 0; i < WEFT__COUNT(near) && isfinite(near[i]); i++) {
                harness_store(dtype, &theirs, near[i]);
                item_store(dtype, &ours, 0, near[i]);
                CHECK(ours == theirs, "%s of %a is 0x%04x, not 0x%04x", weft__dtype_name(dtype), near[i], theirs, ours);
            }
        }
}
