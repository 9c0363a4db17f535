/* Depthwise with rows end to end: sums. See flat.h.
 * Blocking:  up to 8 vectors of outputs stay in registers over all taps, or up to 9 taps over all centers. With 32
 *            registers the second and third tap of a row of 3 are slid out of what the first one loaded: loads at odd
 *            offsets split lines, and took half as long again. 3x3 has both at once: a tap is loaded once for its
 *            output and for its gradient
 * Roofline:  multiply-adds; 9 of them take 10 cycles of a Zen 4 core, both at once 18 */
#include "cpu/conv/gemm_view.h"
#include "cpu/dwconv/flat.h"

enum { TAPS = 9 };

typedef struct ends {
    vf bias, lo, hi;
} ends;
static ends ends_of(const flat_sink *k) { return (ends){vf_set1(k->bias), vf_set1(k->lo), vf_set1(k->hi)}; }

/* The live lanes of a vector of outputs; what is written after them is written over. */
VF_INLINE int64_t put(const flat_sink *k, int64_t at, vf sum, const flat_spot *s, const ends *e) {
    vf_store(k->out + at, vf_compress(&s->spread, vf_clip(sum, e->lo, e->hi)));
    return at + s->live;
}

/* ---------------------------------------------------------------- outputs */
VF_INLINE void outputs(const flat_window *f, const float *in, const float *weights, const flat_spot *s, flat_sink *k,
                       const int V, const bool threes) {
    const ends e = ends_of(k);
    vf sum[FLAT_OUTS];
    VF_UNROLL for (int v = 0; v < V; v++) sum[v] = e.bias;
    for (int64_t i = 0; i < f->taps; i += threes ? 3 : 1) {
        const float *from = in + f->tap[i].at;
        const vf w = vf_keep(vf_broadcast(weights + i));
        if (!threes) {
            VF_UNROLL for (int v = 0; v < V; v++) sum[v] = vf_fma(vf_load(from + v * VF_LANES), w, sum[v]);
            continue;
        }
        const vf second = vf_keep(vf_broadcast(weights + i + 1)), third = vf_keep(vf_broadcast(weights + i + 2));
        vf t = vf_keep(vf_load(from));
        VF_UNROLL for (int v = 0; v < V; v++) {
            const vf next = vf_keep(vf_load(from + (v + 1) * VF_LANES));
            sum[v] = vf_fma(t, w, sum[v]);
            sum[v] = vf_fma(vf_slide(t, next, 1), second, sum[v]);
            sum[v] = vf_fma(vf_slide(t, next, 2), third, sum[v]);
            t = next;
        }
    }
    int64_t at = k->at;
    VF_UNROLL for (int v = 0; v < V; v++) at = put(k, at, sum[v], s + v, &e);
    k->at = at;
}

void flat_sum(const flat_window *f, const float *in, const float *weights, int64_t wide, const flat_spot *s,
              flat_sink *k) {
    switch (wide + (FLAT_SLID && f->threes ? FLAT_OUTS : 0)) {
#define WIDE(V)                                      \
    case V:                                          \
        outputs(f, in, weights, s, k, V, false);     \
        break;                                       \
    case FLAT_OUTS + V:                              \
        outputs(f, in, weights, s, k, V, FLAT_SLID); \
        break;
        DW_TO_8(WIDE)
#undef WIDE
    default:
        break;
    }
}

/* ---------------------------------------------------------------- gradients of weights */
/* T taps, or T rows of 3. */
VF_INLINE void gradient(const flat_tap *t, const float *in, const float *center, int64_t vectors, float *sums,
                        const int T, const bool threes) {
    const int N = threes ? 3 * T : T;
    vf sum[TAPS];
    VF_UNROLL for (int i = 0; i < N; i++) sum[i] = vf_load(sums + i * VF_LANES);
    for (int64_t x = 0; x < vectors * VF_LANES; x += VF_LANES) {
        const vf c = vf_keep(vf_load(center + x));
        VF_UNROLL for (int i = 0; i < N; i += threes ? 3 : 1) {
            const float *from = in + t[i].at + x;
            const vf first = vf_load(from);
            sum[i] = vf_fma(first, c, sum[i]);
            if (!threes) continue;
            const vf next = vf_load(from + VF_LANES);
            sum[i + 1] = vf_fma(vf_slide(first, next, 1), c, sum[i + 1]);
            sum[i + 2] = vf_fma(vf_slide(first, next, 2), c, sum[i + 2]);
        }
    }
    VF_UNROLL for (int i = 0; i < N; i++) vf_store(sums + i * VF_LANES, sum[i]);
}

void flat_grad(const flat_window *f, const float *in, const float *center, int64_t vectors, float *sums) {
    const bool threes = FLAT_SLID && f->threes;
    const int64_t each = threes ? 3 : 1, all = f->taps / each, groups = gemm_split(all, TAPS / each);
    for (int64_t i = 0; i < groups; i++) {
        const int64_t first = gemm_first(all, groups, i);
        const flat_tap *t = f->tap + each * first;
        float *to = sums + each * first * VF_LANES;
        switch (gemm_first(all, groups, i + 1) - first + (threes ? TAPS : 0)) {
#define MANY(T)                                         \
    case T:                                             \
        gradient(t, in, center, vectors, to, T, false); \
        break;
#define ROWS(T)                                             \
    case TAPS + T:                                          \
        gradient(t, in, center, vectors, to, T, FLAT_SLID); \
        break;
            DW_TO_8(MANY)
            MANY(9)
            ROWS(1)
            ROWS(2)
            ROWS(3)
#undef MANY
#undef ROWS
        default:
            break;
        }
    }
}

/* ---------------------------------------------------------------- both, 3x3 */
void flat_both(const flat_window *f, const float *in, const float *weights, const float *center, int64_t vectors,
               float *sums, const flat_spot *s, flat_sink *k) {
    const ends e = ends_of(k);
    const float *row[3] = {in + f->tap[0].at, in + f->tap[3].at, in + f->tap[6].at};
    vf w[9], sum[9];
    VF_UNROLL for (int i = 0; i < 9; i++) w[i] = vf_keep(vf_broadcast(weights + i));
    VF_UNROLL for (int i = 0; i < 9; i++) sum[i] = vf_load(sums + i * VF_LANES);
    int64_t at = k->at;
    for (int64_t v = 0; v < vectors; v++) {
        const vf c = vf_keep(vf_load(center + v * VF_LANES));
        vf out[3] = {e.bias, vf_zero(), vf_zero()};
        VF_UNROLL for (int r = 0; r < 3; r++) {
            const float *from = row[r] + v * VF_LANES;
            const vf first = vf_keep(vf_load(from)), next = vf_keep(vf_load(from + VF_LANES));
            const vf t[3] = {first, vf_slide(first, next, 1), vf_slide(first, next, 2)};
            VF_UNROLL for (int i = 0; i < 3; i++) {
                out[r] = vf_fma(t[i], w[3 * r + i], out[r]);
                sum[3 * r + i] = vf_fma(t[i], c, sum[3 * r + i]);
            }
        }
        at = put(k, at, vf_add(out[0], vf_add(out[1], out[2])), s + v, &e);
    }
    k->at = at;
    VF_UNROLL for (int i = 0; i < 9; i++) vf_store(sums + i * VF_LANES, sum[i]);
}
