/* Convolution by its mathematical properties, for every kernel that applies: no reference is asked. Data are small
 * integers, so every sum is exact and the properties hold exactly; kernels that are not exact come nearer to them
 * than to any other integer. */
#include <math.h>

#include "test.h"

static harness h;

static void open_harness(void) {
    static const int threads[] = {2};
    weft_ctx_opts opts = WEFT_CTX_OPTS_INIT;
    opts.workspace_limit = WEFT_NO_LIMIT;
    opts.cache_dir = "";
    if (!h.nctx) OK(harness_create(&h, &opts, threads, 1));
}

/* The geometries: %s is the pass. Every property holds in each of them. */
static const char *const geometries[] = {
    "conv2d:%s:f32:nchw:n2c4h11w23:o4k3p1g4",    "conv2d:%s:f32:nchw:n1c3h9w40:o3k3g3",
    "conv2d:%s:f32:nhwc:n2c19h6w9:o19k3p1g19",   "conv2d:%s:f32:nchw:n2c3h12w18:o3k3s2p1g3",
    "conv2d:%s:f32:nhwc:n1c16h9w8:o16k3s2p1g16", "conv2d:%s:f32:nchw:n2c6h7w8:o9k3x2s1x2p1+0x2d2x1g3",
    "conv1d:%s:f64:ncw:n2c4w15:o6k5p2g2",        "conv3d:%s:f32:ndhwc:n1c4d4h5w6:o4k3p1g4",
    "conv2d:%s:f32:nchw:n1c4h30w33:o5k5p2",
};

static weft_problem geometry(size_t i, const char *pass) {
    char text[WEFT_TEXT_MAX];
    snprintf(text, sizeof(text), geometries[i], pass);
    return test_problem(text);
}

/* ---------------------------------------------------------------- tensors as plain memory */
static double get(const harness_buffer *b, int64_t offset) {
    return harness_load(b->tensor.dtype, (char *)b->at + offset * (int64_t)weft__dtype_size(b->tensor.dtype));
}

static void put(harness_buffer *b, int64_t offset, double v) {
    harness_store(b->tensor.dtype, (char *)b->at + offset * (int64_t)weft__dtype_size(b->tensor.dtype), v);
}

static int64_t offset_of(const weft_tensor *t, const int64_t i[5]) {
    int64_t at = 0;
    for (int a = 0; a < t->rank; a++) at += i[a] * t->strides[a];
    return at;
}

static void fresh(harness_buffer *b, const weft_tensor *t, uint64_t seed) {
    CHECK(harness_open(b, t, HARNESS_END), "no memory");
    if (seed)
        harness_fill(b, HARNESS_INTEGERS, seed);
    else
        for (harness_walk w = harness_first(t); !w.done; harness_step(&w)) put(b, w.offset, 0);
}

/* a . b over all elements; both have the same dims. */
static double dot(const harness_buffer *a, const harness_buffer *b) {
    double sum = 0;
    harness_walk v = harness_first(&b->tensor);
    for (harness_walk w = harness_first(&a->tensor); !w.done; harness_step(&w), harness_step(&v))
        sum += get(a, w.offset) * get(b, v.offset);
    return sum;
}

/* For each kernel that takes the problem. */
#define FOR_KERNELS(p, desc)                                                  \
    for (size_t k_ = 0, n_ = weft_kernel_count(h.ctx[0], (p)); k_ < n_; k_++) \
        if (weft_kernel_info(h.ctx[0], (p), k_, (desc)) == WEFT_OK && (desc)->applies)

/* Equal, or for a kernel that is not exact as near as an integer is near. */
static bool same(const char *kernel, double got, double want) {
    const weft__kernel *const *list = NULL;
    for (size_t i = 0, n = weft__kernels(WEFT_OP_CONV, &list); i < n; i++)
        if (strcmp(list[i]->name, kernel) == 0 && !list[i]->exact) return fabs(got - want) < 0.25;
    return got == want;
}

static void run(const weft_problem *p, const char *kernel, harness_buffer *in, harness_buffer *out) {
    OK(harness_run(&h, h.ctx[0], p, kernel, in, out, HARNESS_END, false));
}

/* ---------------------------------------------------------------- the properties */
/* One 1 in src: dst holds the weights, each where its tap meets it, and 0 elsewhere. */
TEST(impulse) {
    open_harness();
    for (size_t g = 0; g < WEFT__COUNT(geometries); g++) {
        weft_problem p = geometry(g, "fwd");
        weft_kernel_desc d = WEFT_KERNEL_DESC_INIT;
        int64_t spot[5] = {p.n - 1, p.c / 2, p.in[0] / 2, p.in[1] / 2, p.in[2] / 3}, per_group = p.c / p.groups;
        fresh(&h.in[WEFT_ROLE_SRC], weft__tensor(&p, WEFT_ROLE_SRC), 0);
        put(&h.in[WEFT_ROLE_SRC], offset_of(&h.in[WEFT_ROLE_SRC].tensor, spot), 1);
        fresh(&h.in[WEFT_ROLE_WEIGHTS], weft__tensor(&p, WEFT_ROLE_WEIGHTS), 5 + g);
        FOR_KERNELS(&p, &d) {
            run(&p, d.name, h.in, h.out);
            for (harness_walk w = harness_first(weft__tensor(&p, WEFT_ROLE_DST)); !w.done; harness_step(&w)) {
                int64_t tap[5] = {w.index[1], spot[1] % per_group};
                bool meets = w.index[0] == spot[0] && w.index[1] / (p.o / p.groups) == spot[1] / per_group;
                for (int a = 0; a < 3; a++) {
                    int64_t reach = spot[2 + a] + p.pad_lo[a] - w.index[2 + a] * p.stride[a];
                    tap[2 + a] = reach / p.dilation[a];
                    meets = meets && reach >= 0 && reach % p.dilation[a] == 0 && tap[2 + a] < p.kernel[a];
                }
                double want =
                           meets ? get(&h.in[WEFT_ROLE_WEIGHTS], offset_of(&h.in[WEFT_ROLE_WEIGHTS].tensor, tap)) : 0,
                       got = get(&h.out[WEFT_ROLE_DST], w.offset);
                CHECK(same(d.name, got, want), "%s in geometry %zu: %g, wanted %g", d.name, g, got, want);
            }
        }
    }
}

/* A(x + y) = A x + A y. */
TEST(linearity) {
    static harness_buffer x[WEFT_ROLE_COUNT], y[WEFT_ROLE_COUNT], ax[WEFT_ROLE_COUNT], ay[WEFT_ROLE_COUNT];
    open_harness();
    for (size_t g = 0; g < WEFT__COUNT(geometries); g++) {
        weft_problem p = geometry(g, "fwd");
        const weft_tensor *src = weft__tensor(&p, WEFT_ROLE_SRC), *dst = weft__tensor(&p, WEFT_ROLE_DST);
        weft_kernel_desc d = WEFT_KERNEL_DESC_INIT;
        fresh(&x[WEFT_ROLE_SRC], src, 11 + g);
        fresh(&y[WEFT_ROLE_SRC], src, 111 + g);
        fresh(&h.in[WEFT_ROLE_SRC], src, 0);
        for (harness_walk w = harness_first(src); !w.done; harness_step(&w))
            put(&h.in[WEFT_ROLE_SRC], w.offset, get(&x[WEFT_ROLE_SRC], w.offset) + get(&y[WEFT_ROLE_SRC], w.offset));
        fresh(&h.in[WEFT_ROLE_WEIGHTS], weft__tensor(&p, WEFT_ROLE_WEIGHTS), 7 + g);
        x[WEFT_ROLE_WEIGHTS] = y[WEFT_ROLE_WEIGHTS] = h.in[WEFT_ROLE_WEIGHTS];
        FOR_KERNELS(&p, &d) {
            run(&p, d.name, x, ax);
            run(&p, d.name, y, ay);
            run(&p, d.name, h.in, h.out);
            for (harness_walk w = harness_first(dst); !w.done; harness_step(&w))
                CHECK(same(d.name, get(&h.out[WEFT_ROLE_DST], w.offset),
                           get(&ax[WEFT_ROLE_DST], w.offset) + get(&ay[WEFT_ROLE_DST], w.offset)),
                      "%s in geometry %zu", d.name, g);
        }
    }
    for (int role = 0; role < WEFT_ROLE_COUNT; role++) {
        if (role == WEFT_ROLE_WEIGHTS) continue; /* shared with the harness */
        harness_close(&x[role]), harness_close(&y[role]), harness_close(&ax[role]), harness_close(&ay[role]);
    }
}

/* src moved by one stride along w moves dst by one, where no padding is involved. */
TEST(shift) {
    static harness_buffer moved[WEFT_ROLE_COUNT], out[WEFT_ROLE_COUNT];
    open_harness();
    for (size_t g = 0; g < WEFT__COUNT(geometries); g++) {
        weft_problem p = geometry(g, "fwd");
        const weft_tensor *src = weft__tensor(&p, WEFT_ROLE_SRC), *dst = weft__tensor(&p, WEFT_ROLE_DST);
        weft_kernel_desc d = WEFT_KERNEL_DESC_INIT;
        fresh(&h.in[WEFT_ROLE_SRC], src, 21 + g);
        fresh(&h.in[WEFT_ROLE_WEIGHTS], weft__tensor(&p, WEFT_ROLE_WEIGHTS), 22 + g);
        fresh(&moved[WEFT_ROLE_SRC], src, 0);
        for (harness_walk w = harness_first(src); !w.done; harness_step(&w))
            if (w.index[4] >= p.stride[2])
                put(&moved[WEFT_ROLE_SRC], w.offset,
                    get(&h.in[WEFT_ROLE_SRC], w.offset - p.stride[2] * src->strides[4]));
        moved[WEFT_ROLE_WEIGHTS] = h.in[WEFT_ROLE_WEIGHTS];
        FOR_KERNELS(&p, &d) {
            run(&p, d.name, h.in, h.out);
            run(&p, d.name, moved, out);
            for (harness_walk w = harness_first(dst); !w.done; harness_step(&w)) {
                int64_t first = (w.index[4] - 1) * p.stride[2] - p.pad_lo[2],
                        last = w.index[4] * p.stride[2] - p.pad_lo[2] + p.dilation[2] * (p.kernel[2] - 1);
                if (w.index[4] < 1 || first < 0 || last >= p.in[2]) continue;
                CHECK(same(d.name, get(&out[WEFT_ROLE_DST], w.offset),
                           get(&h.out[WEFT_ROLE_DST], w.offset - dst->strides[4])),
                      "%s in geometry %zu", d.name, g);
            }
        }
    }
    harness_close(&moved[WEFT_ROLE_SRC]);
    harness_close(&out[WEFT_ROLE_DST]);
}

/* <A x, y> = <x, A' y> = <w, dw(x, y)>: forward, data gradient and weights gradient are one trilinear form. */
TEST(adjoint) {
    open_harness();
    for (size_t g = 0; g < WEFT__COUNT(geometries); g++) {
        weft_problem fwd = geometry(g, "fwd"), data = geometry(g, "bwd_data"), weights = geometry(g, "bwd_weights"),
                     both = geometry(g, "bwd");
        weft_kernel_desc d = WEFT_KERNEL_DESC_INIT;
        fresh(&h.in[WEFT_ROLE_SRC], weft__tensor(&fwd, WEFT_ROLE_SRC), 31 + g);
        fresh(&h.in[WEFT_ROLE_WEIGHTS], weft__tensor(&fwd, WEFT_ROLE_WEIGHTS), 32 + g);
        fresh(&h.in[WEFT_ROLE_DIFF_DST], weft__tensor(&data, WEFT_ROLE_DIFF_DST), 33 + g);
        run(&fwd, weft__ref_kernels[WEFT_OP_CONV]->name, h.in, h.out);
        double want = dot(&h.out[WEFT_ROLE_DST], &h.in[WEFT_ROLE_DIFF_DST]);
        const weft_problem *const passes[] = {&fwd, &data, &weights, &both};
        for (size_t i = 0; i < 4; i++) FOR_KERNELS(passes[i], &d) {
                run(passes[i], d.name, h.in, h.out);
                double got = i == 0   ? dot(&h.out[WEFT_ROLE_DST], &h.in[WEFT_ROLE_DIFF_DST])
                             : i == 2 ? dot(&h.out[WEFT_ROLE_DIFF_WEIGHTS], &h.in[WEFT_ROLE_WEIGHTS])
                                      : dot(&h.out[WEFT_ROLE_DIFF_SRC], &h.in[WEFT_ROLE_SRC]);
                CHECK(same(d.name, got, want), "%s in geometry %zu: %.17g, forward gives %.17g", d.name, g, got, want);
                if (i == 3)
                    CHECK(same(d.name, dot(&h.out[WEFT_ROLE_DIFF_WEIGHTS], &h.in[WEFT_ROLE_WEIGHTS]), want),
                          "%s in geometry %zu: the weights gradient", d.name, g);
            }
    }
}

/* The loss <A_w x, y> is linear in w, so its difference over a unit step in one weight is the gradient there,
 * exactly. */
TEST(finite_differences) {
    static harness_buffer stepped[WEFT_ROLE_COUNT], grad[WEFT_ROLE_COUNT];
    open_harness();
    for (size_t g = 0; g < WEFT__COUNT(geometries); g++) {
        weft_problem fwd = geometry(g, "fwd"), weights = geometry(g, "bwd_weights");
        const weft_tensor *t = weft__tensor(&fwd, WEFT_ROLE_WEIGHTS);
        weft_kernel_desc d = WEFT_KERNEL_DESC_INIT;
        fresh(&h.in[WEFT_ROLE_SRC], weft__tensor(&fwd, WEFT_ROLE_SRC), 41 + g);
        fresh(&h.in[WEFT_ROLE_DIFF_DST], weft__tensor(&weights, WEFT_ROLE_DIFF_DST), 42 + g);
        stepped[WEFT_ROLE_SRC] = h.in[WEFT_ROLE_SRC];
        FOR_KERNELS(&weights, &d) {
            run(&weights, d.name, h.in, grad);
            for (int64_t i = 0, total = weft__numel(t); i < total; i += 1 + total / 12) {
                double loss[2];
                int64_t left = i;
                harness_walk spot = harness_first(t);
                while (left--) harness_step(&spot);
                for (int step = 0; step < 2; step++) {
                    fresh(&stepped[WEFT_ROLE_WEIGHTS], t, 43 + g);
                    put(&stepped[WEFT_ROLE_WEIGHTS], spot.offset, get(&stepped[WEFT_ROLE_WEIGHTS], spot.offset) + step);
                    run(&fwd, weft__ref_kernels[WEFT_OP_CONV]->name, stepped, h.out);
                    loss[step] = dot(&h.out[WEFT_ROLE_DST], &h.in[WEFT_ROLE_DIFF_DST]);
                }
                double got = get(&grad[WEFT_ROLE_DIFF_WEIGHTS],
                                 offset_of(weft__tensor(&weights, WEFT_ROLE_DIFF_WEIGHTS), spot.index));
                CHECK(same(d.name, got, loss[1] - loss[0]), "%s in geometry %zu: %g, the difference is %g", d.name, g,
                      got, loss[1] - loss[0]);
            }
        }
    }
    harness_close(&stepped[WEFT_ROLE_WEIGHTS]);
    harness_close(&grad[WEFT_ROLE_DIFF_WEIGHTS]);
    harness_destroy(&h);
}
