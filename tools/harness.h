/* What the command and the tests share: values of every data type, buffers between guard pages, random problems, the
 * check of a kernel against the reference, and timing. None of it is part of the library. */
#ifndef WEFT_HARNESS_H
#define WEFT_HARNESS_H

#include "core/internal.h"

/* ---------------------------------------------------------------- harness_value.c: elements and random numbers */
double harness_load(int dtype, const void *at);
void harness_store(int dtype, void *at, double value); /* rounded once, to nearest even */
/* Unit roundoff: rounding x to dtype moves it by at most this times |x|; 0 for integers. */
double harness_roundoff(int dtype);
double harness_tiny(int dtype); /* the least positive value: what rounding may lose near 0 */

typedef struct harness_rng {
    uint64_t state;
} harness_rng;
uint64_t harness_mix(uint64_t a, uint64_t b); /* a new seed from two */
uint64_t harness_next(harness_rng *r);
int64_t harness_below(harness_rng *r, int64_t n); /* 0 .. n-1 */
double harness_real(harness_rng *r);              /* -1 .. 1 */
bool harness_chance(harness_rng *r, int percent);

/* The elements of a tensor in canonical order:
 *   for (harness_walk w = harness_first(t); !w.done; harness_step(&w)) use(w.index, w.offset); */
typedef struct harness_walk {
    const weft_tensor *t;
    int64_t index[WEFT_MAX_RANK], offset; /* offset in elements from the tensor's pointer */
    bool done;
} harness_walk;
harness_walk harness_first(const weft_tensor *t);
void harness_step(harness_walk *w);
void harness_where(const harness_walk *w, char *text, size_t capacity); /* "dst[0,3,0,7,1]" */

/* ---------------------------------------------------------------- harness_buffer.c: memory that notices misuse */
/* end: the last byte lies at a guard page (as near as the alignment lets it). start: the first byte does.
 * odd: the pointer is a multiple of the declared alignment and of nothing more. */
typedef enum harness_place { HARNESS_END, HARNESS_START, HARNESS_ODD, HARNESS_PLACES } harness_place;

/* integers: -4 .. 4, so that sums below 2^24 are exact in f32. reals: -1 .. 1, every sixteenth 0. specials: reals,
 * among them NaN and both infinities, of every third seed infinities alone. magnitudes, special magnitudes: |x| of the
 * reals and specials of the same seed. */
typedef enum harness_kind {
    HARNESS_INTEGERS,
    HARNESS_REALS,
    HARNESS_SPECIALS,
    HARNESS_MAGNITUDES,
    HARNESS_SPECIAL_MAGNITUDES,
    HARNESS_KINDS
} harness_kind;

typedef struct harness_buffer { /* all zero: empty. Memory is kept and used again by the next open */
    char *map;                  /* between the guards: */
    size_t room;
    char *low; /* the bytes in use */
    size_t bytes;
    void *at;           /* what weft is given */
    weft_tensor tensor; /* rank 0: plain bytes */
    bool sealed;
} harness_buffer;

/* Poisoned bytes for the tensor, or plain ones. false: out of memory. */
bool harness_open(harness_buffer *b, const weft_tensor *t, harness_place place);
bool harness_open_bytes(harness_buffer *b, size_t bytes, size_t align, harness_place place);
void harness_close(harness_buffer *b);
void harness_poison(harness_buffer *b);
void harness_fill(harness_buffer *b, harness_kind kind, uint64_t seed);
void harness_spread(harness_buffer *b,
                    uint64_t seed); /* each float times a power of two from 2^-20 to 2^20; f16 stays */
void harness_fill_below(harness_buffer *b, int64_t below, uint64_t seed); /* 0 .. below-1, for tensors of integers */
void harness_seal(harness_buffer *b); /* an input: its surroundings are poison of its own, writing faults */
void harness_copy(harness_buffer *to, const harness_buffer *from); /* the elements, of one tensor */
/* Every element written, nothing else touched; else false and why. */
bool harness_intact(const harness_buffer *b, char *why, size_t capacity);
bool harness_untouched(const harness_buffer *b); /* still all poison */
/* The bytes in use and some poison on both sides: what a copy on a device takes along. Starts at a multiple of 256. */
void harness_window(const harness_buffer *b, char **start, size_t *bytes);

/* ---------------------------------------------------------------- harness_random.c: problems from a seed */
/* A completed problem; the same for the same seed. false: the operator's generator gave nothing valid (a fault). */
bool harness_random(weft_problem *p, uint64_t seed, int device);
bool harness_random_of(weft_problem *p, uint64_t seed, int device, int op); /* of one operator; 0: any */
/* The first of many draws that the kernel takes; *seed becomes what draws it again. false: none of them. */
bool harness_random_for(weft_problem *p, uint64_t *seed, int device, const weft_ctx *ctx, const weft__kernel *k,
                        const weft__hw *hw);
/* Problem i of a stream: every second one for a fast kernel of the table, each kernel in turn; the others of any kind.
 * *seed becomes that of its data. */
bool harness_stream(weft_problem *p, uint64_t *seed, int device, weft_ctx *ctx, uint64_t i);
/* How many products are summed into one element of that output. */
double harness_terms(const weft_problem *p, int role);
/* What an input is given: by the fill of the operator's record, else harness_fill; other integers are 0 and 1. */
void harness_fill_input(const weft_problem *p, harness_buffer *b, harness_kind kind, uint64_t seed);
void harness_relate_inputs(const weft_problem *p, harness_buffer *in, harness_kind kind, uint64_t seed);

/* n, c and the visible axes of data n c d h w; about `most` elements at most, sometimes none. */
void harness_draw_data(weft_problem *p, harness_rng *r, double most);
/* How one operator's problems are drawn: tools/random_NAME.c defines it, harness_random.c lists it. NULL: the
 * general way. */
typedef struct harness_generator {
    void (*draw)(weft_problem *p, harness_rng *r, bool usual); /* geometry, always valid; pass and rank are set */
    double (*terms)(const weft_problem *p, int role);
    /* Put into data that the operator's record has filled, for the specials: labels that are no class. NULL:
     * nothing. */
    void (*spoil)(const weft_problem *p, harness_buffer *b, uint64_t seed);
    /* Passes whose outputs are differences of sums, and may be small where the sums are not: errors are measured
     * against the largest value of the output. A set of WEFT__PASS_SET. */
    uint32_t differences;
    /* Random floats of an input made into values as the operator has them, or that are hard for it; the same for reals
     * and their magnitudes, which bound the terms of every sum. NULL: as drawn. */
    void (*settle)(const weft_problem *p, harness_buffer *b, harness_kind kind, uint64_t seed);
    /* The same where one input follows from another, when all have been filled. NULL: none does. */
    void (*relate)(const weft_problem *p, harness_buffer *in, harness_kind kind, uint64_t seed);
} harness_generator;
#define HARNESS_EVERY_PASS (~0u)
bool harness_differences(const weft_problem *p);
extern const harness_generator harness_conv; /* its family starts from the same geometry */
#define HARNESS_PICK(r, list) ((list)[harness_below((r), (int64_t)WEFT__COUNT(list))])
/* One of the list; now and then a size past several vectors of any instruction set. */
#define HARNESS_SIZE(r, list) (harness_chance((r), 6) ? 34 + harness_below((r), 167) : HARNESS_PICK(r, list))

/* ---------------------------------------------------------------- harness.c: a kernel against the reference */
#define HARNESS_CTX_MAX 8
typedef struct harness {
    weft_ctx *ctx[HARNESS_CTX_MAX]; /* one per number of threads */
    int threads[HARNESS_CTX_MAX], nctx;
    harness_buffer in[WEFT_ROLE_COUNT], out[WEFT_ROLE_COUNT], want[WEFT_ROLE_COUNT], size[WEFT_ROLE_COUNT];
    harness_buffer first[WEFT_ROLE_COUNT]; /* outputs of the first number of threads */
    harness_buffer workspace, packed;
    size_t l3;                       /* last-level cache that kernels are told of; 0: the machine's */
    int64_t problems, runs;          /* done so far */
    int64_t *checked[WEFT_OP_COUNT]; /* problems per kernel, in the order of weft__kernels */
    bool *take;                      /* kernels that apply to the problem at hand */
    double worst;                    /* largest error over its bound */
    char why[2048];                  /* of the last failure */
    char kernel[128];                /* in which it happened */
} harness;

typedef struct harness_ask {
    uint64_t seed;      /* of the data */
    const char *kernel; /* NULL: every one that applies */
    bool thorough;      /* every kind of data in every place; else one place a kind, from the seed */
    bool fast_only;     /* leave out references, which are slow on large problems */
    bool quick;         /* of integers and reals those that decide: integers for an exact kernel, which is asked for */
    size_t cache;       /* what kernels are told of; 0: the machine's, and every second one of a tiny one, to stream */
} harness_ask;

weft_status harness_create(harness *h, const weft_ctx_opts *opts, const int *threads, int count);
void harness_destroy(harness *h);
/* Every applicable kernel against the reference, the same bits for every number of threads; else false, h->why,
 * h->kernel. */
bool harness_takes(const weft_ctx *ctx, const weft__kernel *k, const weft_problem *p,
                   const weft__hw *hw); /* any variant */
bool harness_check(harness *h, const weft_problem *p, const harness_ask *ask);
/* parse(format(p)) = p; else false and why. */
bool harness_round_trip(const weft_problem *p, char *why, size_t capacity);
bool harness_same_problem(const weft_problem *a, const weft_problem *b);
/* Pin a kernel, execute once: inputs from `in`, outputs into `out` (opened and poisoned here). On the problem's
 * device. With h->l3 the kernel plans and runs as on a machine with such a cache, if it then still applies. */
weft_status harness_run(harness *h, weft_ctx *ctx, const weft_problem *p, const char *kernel, harness_buffer *in,
                        harness_buffer *out, harness_place place, bool prepacked);
bool harness_inputs(harness *h, const weft_problem *p, harness_kind kind, harness_place place, uint64_t seed);
/* Say on stderr what was running when the process dies of a signal. */
void harness_catch_faults(void);
void harness_text(const weft_problem *p, char text[WEFT_TEXT_MAX]);

/* ---------------------------------------------------------------- harness_time.c: how long */
void harness_empty_caches(weft_ctx *ctx);
double harness_median(double *values, size_t n); /* sorts them */
/* Reads `in` bytes and writes `out` bytes with the context's threads, as a plain elementwise kernel would, caches
 * emptied before: ns. The floor of a problem is the better of regular and streaming stores. */
double harness_copy_ns(weft_ctx *ctx, size_t in, size_t out, bool streaming);

#endif
