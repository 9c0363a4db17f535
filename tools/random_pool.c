/* Random problems of pooling and of im2col: windows that touch, overlap, skip or hang over the edge. */
#include "harness.h"

enum { READS = 40000 }; /* taps read, about */
static const int widths[] = {1, 2, 3, 4, 5, 7, 8, 9, 13, 15, 16, 17, 28, 31, 33}, few[] = {1, 2, 3, 4, 5, 6, 7, 9};
static const int channels[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 32, 33, 48};

/* Many channels come with small images: tiles of one kind or the other are filled. */
static int64_t draw_size(const weft_problem *p, harness_rng *r, int a) {
    if (p->c > 9) return 1 + harness_below(r, 4);
    return a == 2 ? HARNESS_SIZE(r, widths) : HARNESS_PICK(r, few);
}

/* Does every window have a place to point at, which a step over the whole input has not? Its index would look
 * unwritten. */
static bool points(const weft_problem *p) {
    bool all = true;
    for (int a = 0; a < 3; a++) all = all && p->in[a] >= p->dilation[a];
    return all;
}

static void window(weft_problem *p, harness_rng *r, int a, bool usual) {
    bool pool = p->op == WEFT_OP_MAX_POOL || p->op == WEFT_OP_AVG_POOL;
    p->kernel[a] = usual ? 2 + harness_below(r, 2) : 1 + harness_below(r, 5);
    p->stride[a] = usual ? 1 + harness_below(r, 2) : 1 + harness_below(r, 4);
    if (p->op != WEFT_OP_AVG_POOL && !usual && harness_chance(r, 40)) p->dilation[a] = 1 + harness_below(r, 3);
    if (p->dilation[a] > 1 && harness_chance(r, 30)) p->stride[a] = p->dilation[a]; /* all taps meet a place */
    int64_t most = pool ? p->kernel[a] / 2 : 3;
    p->pad_lo[a] = harness_below(r, most + 1);
    p->pad_hi[a] = harness_chance(r, 70) ? p->pad_lo[a] : harness_below(r, most + 1);
    p->in[a] = draw_size(p, r, a);
    int64_t least = p->dilation[a] * (p->kernel[a] - 1) + 1 - p->pad_lo[a] - p->pad_hi[a];
    if (harness_chance(r, 90)) least = WEFT__MAX(least, p->dilation[a]);
    p->in[a] = WEFT__MAX(p->in[a], least);
}

static double reads(const weft_problem *p) {
    double work = (double)p->n * (double)p->c;
    for (int a = 0; a < 3; a++) work *= (double)(p->in[a] + 2) * (double)p->kernel[a] / (double)p->stride[a];
    return work;
}

static void draw(weft_problem *p, harness_rng *r, bool usual) {
    p->n = harness_chance(r, 2) ? 0 : 1 + harness_below(r, 3);
    p->c = HARNESS_SIZE(r, channels);
    for (int a = 3 - p->rank; a < 3; a++) window(p, r, a, usual);
    while (reads(p) > READS && (p->n > 1 || p->c > 1)) p->n > 1 ? p->n-- : p->c--;
}

static void draw_max(weft_problem *p, harness_rng *r, bool usual) {
    draw(p, r, usual);
    p->attr[WEFT_POOL_CEIL] = harness_chance(r, 40);
    p->attr[WEFT_MAX_POOL_INDEX] = harness_chance(r, 60) && points(p);
}

static void draw_avg(weft_problem *p, harness_rng *r, bool usual) {
    draw(p, r, usual);
    p->attr[WEFT_POOL_CEIL] = harness_chance(r, 40);
    p->attr[WEFT_AVG_POOL_INCLUDE_PAD] = harness_chance(r, 50);
    if (harness_chance(r, 25)) p->attr[WEFT_AVG_POOL_DIVISOR] = 1 + harness_below(r, 9);
}

static void draw_adaptive(weft_problem *p, harness_rng *r, bool usual) {
    (void)usual;
    p->n = harness_chance(r, 2) ? 0 : 1 + harness_below(r, 2);
    p->c = HARNESS_SIZE(r, channels);
    for (int a = 3 - p->rank; a < 3; a++) {
        p->in[a] = draw_size(p, r, a);
        p->attr[WEFT_ADAPTIVE_AVG_POOL_TO + a] = harness_chance(r, 2) ? 0 : HARNESS_PICK(r, few);
    }
}

/* Forward a window, backward the windows over one place: at most a tap each; with adaptive windows at most out + in
 * places per axis. */
static double terms(const weft_problem *p, int role) {
    double count = 1;
    (void)role;
    for (int a = 0; a < 3; a++)
        count *= (double)(p->op == WEFT_OP_ADAPTIVE_AVG_POOL ? p->in[a] + p->out[a] : p->kernel[a]);
    return count;
}

const harness_generator harness_max_pool = {draw_max, terms, NULL, 0, NULL, NULL};
const harness_generator harness_avg_pool = {draw_avg, terms, NULL, 0, NULL, NULL};
const harness_generator harness_adaptive_avg_pool = {draw_adaptive, terms, NULL, 0, NULL, NULL};
const harness_generator harness_columns = {draw, terms, NULL, 0, NULL, NULL};
