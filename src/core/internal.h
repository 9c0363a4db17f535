/* What the parts of weft know of each other. The order of work is problem -> plan -> execute.
 * weft__ is internal, weft_ is public. */
#ifndef WEFT_INTERNAL_H
#define WEFT_INTERNAL_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "weft.h"

#include "cpu/isa.h"

#define WEFT__COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define WEFT__MIN(a, b) ((a) < (b) ? (a) : (b))
#define WEFT__MAX(a, b) ((a) > (b) ? (a) : (b))
#if defined(__GNUC__)
#define WEFT__PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define WEFT__PRINTF(f, a)
#endif

/* ---------------------------------------------------------------- status.c: errors are values */
/* Record the text of this thread's last error and return s: return weft__fail(WEFT_ERR_INVALID, "src: ...", ...). */
weft_status weft__fail(weft_status s, const char *format, ...) WEFT__PRINTF(2, 3);

/* Pass a failure up. */
#define WEFT__TRY(call)                                           \
    do {                                                          \
        weft_status weft__try_status = (call);                    \
        if (weft__try_status != WEFT_OK) return weft__try_status; \
    } while (0)

/* Structs of callers built against another header. LEAST: the size a struct had when `last` was its last member.
 * Adopt copies what both know, the rest zero; false: shorter than `least`, or it asks for what this library does not
 * know. Return writes back, zero where the caller knows more. MOST: a larger size is not one. */
#define WEFT__LEAST(type, last) (offsetof(type, last) + sizeof(((type *)0)->last))
#define WEFT__MOST ((size_t)1 << 20)
bool weft__has_size(const void *given, size_t least); /* from least to MOST */
bool weft__adopt(void *to, size_t known, const void *from, size_t least);
void weft__return(void *to, const void *from, size_t known);

/* A text built in a fixed buffer; counts on past the end so that the caller learns the length it takes. */
typedef struct weft__text {
    char *at;
    size_t capacity, length;
} weft__text;
void weft__put(weft__text *t, const char *format, ...) WEFT__PRINTF(2, 3);

/* ---------------------------------------------------------------- names.c: words and their texts */
const char *weft__dtype_name(int dtype);
size_t weft__dtype_size(int dtype);
const char *weft__role_name(int role);
const char *weft__pass_name(int pass);
const char *weft__math_name(int math);
/* The index of the word text[0..n) in a table of names, or -1. */
int weft__word(const char *const *names, int count, const char *text, size_t n);
extern const char *const weft__dtype_names[WEFT_DTYPE_COUNT], *const weft__role_names[WEFT_ROLE_COUNT];
enum { WEFT__STEPS = WEFT_STEP_SILU + 1 };
extern const char *const weft__pass_names[WEFT_PASS_COUNT], *const weft__math_names[4],
                                                                *const weft__step_names[WEFT__STEPS];

/* ---------------------------------------------------------------- hardware */
#define WEFT__ISA_ID(arg, ID, ...) WEFT__##ID,
typedef enum weft__isa { WEFT__ISA_LIST(WEFT__ISA_ID, ) WEFT__ISA_COUNT } weft__isa; /* higher is wider */
#define WEFT__FEATURE_ID(ID, ...) WEFT__FEATURE_##ID,
enum { WEFT__FEATURE_LIST(WEFT__FEATURE_ID) WEFT__FEATURE_COUNT };
extern const char *const weft__isa_names[WEFT__ISA_COUNT], *const weft__feature_names[WEFT__FEATURE_COUNT + 1];

typedef struct weft__gpu {
    int ordinal, cc; /* compute capability: 90 for 9.0 */
    int sms;
    size_t l2, smem;    /* smem: the opt-in limit of one block */
    double gbs, gflops; /* rough rates for estimates */
    char name[64];
} weft__gpu;

/* What ok() and cost() may ask. Rates are rough: only ratios between kernels matter. */
typedef struct weft__hw {
    uint32_t features; /* of the CPU, as far as WEFT_ISA allows them */
    weft__isa isa;     /* the highest usable */
    int threads, cores;
    size_t l1, l2, l3;
    double gbs;                     /* memory, all threads */
    double gflops[WEFT__ISA_COUNT]; /* f32 multiply-add, one thread */
    const weft__gpu *gpu;           /* of the problem's device; NULL: none */
} weft__hw;
void weft__hw_detect(weft__hw *hw);
void weft__hw_limit(weft__hw *hw, weft__isa isa); /* no features but those of isa */
bool weft__hw_runs(const weft__hw *hw, weft__isa isa);
/* rates.c: measured rates for hw->threads, where the machine has them or can be measured. */
void weft__rates(weft_ctx *ctx, weft__hw *hw);
pthread_mutex_t *weft__rates_lock(void); /* for fork alone */
void weft__hw_nominal(weft__hw *hw);     /* one thread and rates that were not measured */

/* ---------------------------------------------------------------- ops: one record per operator
 * A new operator is a record in src/ops/NAME.c, items in src/ref/NAME.h, and a line in WEFT_OP_LIST. */
typedef struct weft__field { /* one letter of the problem text, at an offset in weft_problem */
    const char *key;
    /* one value; one per axis; low+high per axis; a real */
    enum { WEFT__FIELD_INT, WEFT__FIELD_AXES, WEFT__FIELD_PADS, WEFT__FIELD_REAL } kind;
    size_t offset;   /* PADS: of pad_lo; pad_hi follows it */
    double fallback; /* printed only when different ... */
    bool always;     /* ... or when this is set */
    int min_rank;    /* not present for problems of lower rank */
    int section;     /* 0: sizes, 1: attributes */
} weft__field;

#define WEFT__BIT(x) (UINT64_C(1) << (x))
/* reads, writes: sets of roles. A role of `biased` takes part if the epilogue has bias */
typedef struct weft__pass_def {
    int pass;
    uint64_t reads, writes, biased;
    bool epilogue; /* relu and clip allowed */
    bool acc;      /* accumulation allowed */
    bool silu;     /* silu allowed */
} weft__pass_def;

typedef struct weft__items {   /* the reference, see src/ref/item.h */
    const char *source, *name; /* embedded text and item function, for the CUDA engine */
    int (*phases)(const weft_problem *p);
    int64_t (*count)(const weft_problem *p, int phase);
    size_t (*workspace)(const weft_problem *p);
    void (*item)(const weft_problem *p, void *const *ptr, void *workspace, int phase, int64_t i);
} weft__items;

typedef struct weft__op {
    const char *name;
    int op, min_rank, max_rank;
    const weft__field *fields;
    size_t nfields;
    const weft__pass_def *passes;
    size_t npasses;
    weft_status (*check)(weft_problem *p); /* geometry: ranges, divisibility, overflow; sets derived fields */
    void (*shape)(const weft_problem *p, int role, weft_tensor *t); /* rank and dims of a role's tensor */
    /* bit set of allowed weft_dtype; a main type that is not in it is replaced by the first that is */
    uint64_t (*dtypes)(const weft_problem *p, int role);
    /* roles of the pass that this problem's attributes leave out; NULL: none */
    uint64_t (*absent)(const weft_problem *p);
    uint64_t (*kept)(const weft_problem *p); /* roles the pass writes that this problem only reads; NULL: none */
    double (*flops)(const weft_problem *p);
    /* Values for an input, in host memory, that mean something (src/ops/fill.h); false, or NULL: any will do. */
    bool (*fill)(const weft_problem *p, const weft_tensor *t, void *ptr, uint64_t seed);
    bool in_place;       /* dst may be src, and diff_src diff_dst */
    bool transcendental; /* its items call exp, log, tanh or pow, whose last bits differ between engines */
    const weft__items *items;
} weft__op;
const weft__op *weft__op_of(int op); /* NULL: no such operator */
const weft__pass_def *weft__pass_of(const weft_problem *p);
/* Every role that takes part, in role order; bit set of weft_role. */
uint64_t weft__roles(const weft_problem *p);
bool weft__is_output(const weft_problem *p, int role);
/* its old value counts; running statistics and accumulated gradients are both */
bool weft__is_input(const weft_problem *p, int role);

/* ---------------------------------------------------------------- problem.c: questions kernels ask */
const weft_tensor *weft__tensor(const weft_problem *p, int role); /* NULL: takes no part */
int64_t weft__numel(const weft_tensor *t);
/* Dense in that order; axes of size 1 do not count. A tensor may be both. */
bool weft__is_first(const weft_tensor *t);
bool weft__is_last(const weft_tensor *t);
bool weft__all_dtype(const weft_problem *p, int dtype);
bool weft__has_step(const weft_problem *p, int kind);
bool weft__is_empty(const weft_problem *p); /* no output element */
double weft__bytes(const weft_problem *p);  /* each tensor once */
double weft__flops(const weft_problem *p);
/* a * b in int64; false on overflow. */
bool weft__mul(int64_t a, int64_t b, int64_t *r);

/* weft_problem_complete in place, on a problem of our own; after a failure *p means nothing. */
weft_status weft__complete(weft_problem *p);
/* The caller's problem has a size that can be written to. */
weft_status weft__check_problem_size(const weft_problem *p);
/* A caller's problem, completed, as one of our own. */
weft_status weft__take_problem(weft_problem *p, const weft_problem *given);
/* Zeroed, unit sizes, and the fallback of every field. */
void weft__problem_defaults(weft_problem *p, const weft__op *op, int rank);
#define WEFT__FLOATS \
    (WEFT__BIT(WEFT_DTYPE_F32) | WEFT__BIT(WEFT_DTYPE_F64) | WEFT__BIT(WEFT_DTYPE_F16) | WEFT__BIT(WEFT_DTYPE_BF16))
/* The layout a role has when the text says nothing: weights are channels-first whatever the data is. */
weft_layout weft__default_layout(int role, weft_layout data);
/* the main type where the role allows it, else the first it does */
int weft__default_dtype(const weft_problem *p, int role, int main);
weft_layout weft__data_layout(const weft_problem *p); /* that of the first tensor, in a completed problem */
/* The axes of a tensor that the user sees: indices into dims, count returned. */
int weft__visible_axes(const weft_problem *p, const weft_tensor *t, int axes[WEFT_MAX_RANK]);

/* The cache key: everything that names the problem, nothing else. Returns words written (at most WEFT__KEY_MAX). */
#define WEFT__KEY_MAX (64 + WEFT_MAX_TENSORS * (2 + 2 * WEFT_MAX_RANK))
size_t weft__problem_key(const weft_problem *p, uint64_t *key);
uint64_t weft__hash(const uint64_t *words, size_t n);

/* ---------------------------------------------------------------- kernels: one record each, listed in kernels.def */
/* What a kernel answers when it is asked about a problem; zeroed before. run, pack and defines read the parameters. */
enum { WEFT__PARAM_BYTES = 512 };
typedef struct weft__decision {
    double ns;                /* estimated */
    size_t workspace, packed; /* bytes of scratch; bytes of weights in the kernel's own order, 0: taken as they are */
    _Alignas(16) unsigned char params[WEFT__PARAM_BYTES]; /* tile, split, slots: the kernel's own struct */
} weft__decision;
/* The parameters as a struct of the kernel's own type; too large a type does not compile. */
#define WEFT__PARAMS(type, d) ((type *)((d)->params + 0 * sizeof(char[sizeof(type) <= WEFT__PARAM_BYTES ? 1 : -1])))

typedef struct weft__exec { /* one call, as a kernel sees it: checked, roles filled */
    const weft_problem *p;
    const weft__hw *hw;
    weft_ctx *ctx;
    const void *params; /* of the decision */
    void *const *ptr;   /* by role */
    const void *packed;
    void *workspace, *stream;
    void *const *functions; /* CUDA: of each part */
} weft__exec;

/* CUDA: a device function of a kernel, compiled by itself. defines writes space-separated options: "-DA=1 -DB=2". */
typedef struct weft__part {
    const char *source, *entry; /* embedded file, extern "C" function */
    void (*defines)(const weft_problem *, const weft__hw *, const void *params, weft__text *t);
    bool arch_specific; /* compile for sm_90a and the like: instructions of one generation */
} weft__part;
enum { WEFT__PARTS_MAX = 8 };
#define WEFT__PARTS(...)                         \
    .parts = (const weft__part[]) {              \
        __VA_ARGS__, { NULL, NULL, NULL, false } \
    }

typedef struct weft__kernel {
    const char *name; /* dtype_operator_pass_layout_tile__isa */
    int version;      /* wisdom of another version is not used */
    int op;
    unsigned engine; /* WEFT_ENGINE_* */
    weft__isa isa;   /* least ISA, for the CPU engine */
    /* What it takes, checked before plan is asked: sets of weft_pass, weft_step_kind, and weft_dtype of every tensor of
     * floating point; 0 of passes and dtypes: any. A step that is not in the set is refused. */
    uint32_t passes, steps, dtypes;
    bool reference;              /* takes every valid problem, empty inputs too; others never see those */
    bool exact;                  /* equal to the reference on integers; else within `bound` */
    bool not_strict;             /* refuses strict math */
    bool tiled;                  /* FFT, Winograd: its error is relative to the largest sum of products within a tile */
    double bound;                /* error over that of the direct f32 sum; 0 means 1; at most 4 */
    const char *const *variants; /* names, ended by NULL; NULL: one variant without a name */
    /* NULL: takes it, *d is filled; else the reason why not. */
    const char *(*plan)(const weft_problem *, const weft__hw *, int variant, weft__decision *d);
    /* Follows from weights, pass, groups and params alone: see weft_plan_packed_id. */
    weft_status (*pack)(const weft__exec *, const void *weights, void *packed);
    weft_status (*run)(const weft__exec *);
    const weft__part *parts; /* CUDA: at most WEFT__PARTS_MAX, see WEFT__PARTS */
} weft__kernel;
#define WEFT__STEPS_ALL (~0u)
#define WEFT__PASS_SET(name) (1u << WEFT_PASS_##name)
#define WEFT__STEP_SET(name) (1u << WEFT_STEP_##name)
#define WEFT__DTYPE_SET(name) (1u << WEFT_DTYPE_##name)

/* Kernels of one operator, best first, reference last. */
size_t weft__kernels(int op, const weft__kernel *const **list);
/* Those of the operator and, after them, the context's external implementation; NULL: no more. */
const weft__kernel *weft__kernel_at(const weft_ctx *ctx, int op, size_t index);
int weft__kernel_variants(const weft__kernel *k); /* at least 1 */
#define WEFT__NAME_MAX 128
/* "name", or "name#variant" of a kernel with variants. */
void weft__kernel_name(const weft__kernel *k, int variant, char text[WEFT__NAME_MAX]);
/* The decision of one variant: its engine runs on the problem's device, is enabled, the ISA is there, the record and
 * plan agree; else why not. */
const char *weft__kernel_plan(const weft_ctx *ctx, const weft__kernel *k, int variant, const weft_problem *p,
                              const weft__hw *hw, weft__decision *d);
size_t weft__decision_bytes(const weft__decision *d);                   /* of workspace, with room for packing */
extern const weft__kernel *const weft__ref_kernels[WEFT_OP_COUNT];      /* ref.c */
extern const weft__kernel *const weft__cuda_ref_kernels[WEFT_OP_COUNT]; /* cuda/ref.c */

/* ---------------------------------------------------------------- context.c, cpu/threads.c */
typedef struct weft__pool weft__pool;
typedef struct weft__cuda weft__cuda;
typedef struct weft__wisdom weft__wisdom;
typedef struct weft__cache weft__cache;

weft_status weft__check_ctx(const weft_ctx *ctx);     /* it is one, and this is no callback of alloc, free or log */
void *weft__alloc(const weft_ctx *ctx, size_t bytes); /* NULL on failure; zeroed */
void weft__free(const weft_ctx *ctx, void *block);
const weft_ctx_opts *weft__opts(const weft_ctx *ctx);
const char *weft__env(const char *name); /* secure_getenv: NULL too where the process has rights its caller has not */
/* The hardware as the problem's device shows it; for CUDA opens the engine. Fails with the reason if it is absent. */
weft_status weft__ctx_hw(weft_ctx *ctx, const weft_problem *p, weft__hw *hw);
weft_ctx *weft__ctx_retain(weft_ctx *ctx);
void weft__ctx_drop(weft_ctx *ctx);         /* undoes retain */
int weft__ctx_threads(const weft_ctx *ctx); /* of whichever pool runs */
/* external.c: the host's implementation as a kernel of each operator; its name NULL: none. */
typedef struct weft__external {
    weft_external of;
    weft__kernel kernel[WEFT_OP_COUNT];
} weft__external;
weft__external *weft__ctx_external(const weft_ctx *ctx);
const char *weft__external_plan(const weft__external *x, const weft_problem *p, const weft__hw *hw, weft__decision *d);
weft__wisdom *weft__ctx_wisdom(const weft_ctx *ctx);
weft__cache *weft__ctx_cache(const weft_ctx *ctx);
/* The CUDA engine, opened on first use; NULL and *why if absent. Never opened by a CPU problem. */
weft__cuda *weft__ctx_cuda(weft_ctx *ctx, const char **why);

/* Slots and everything a slot computes must follow from the problem alone. */
void weft__parallel(weft_ctx *ctx, int64_t slots, weft_task task, void *arg);
unsigned weft__process(void); /* which process this is, counted from 1 through forks */
weft_status weft__pool_create(const weft_ctx *ctx, weft__pool **pool, int threads);
void weft__pool_destroy(const weft_ctx *ctx, weft__pool *pool);
void weft__pool_run(weft__pool *pool, int64_t slots, weft_task task, void *arg);

bool weft__logs(const weft_ctx *ctx, int topic); /* ask before building a line */
void weft__log(const weft_ctx *ctx, int topic, const char *format, ...) WEFT__PRINTF(3, 4);
uint64_t weft__now_ns(void);

/* ---------------------------------------------------------------- planner.c, measure.c, wisdom.c, cache.c */
typedef struct weft__choice { /* what planning decides */
    const weft__kernel *kernel;
    int variant;
    weft__decision d;
    const char *why; /* "estimate", "measured", "wisdom", "pinned", "only": no other applies */
} weft__choice;
/* Put c among the n candidates of `best`, least estimate first; how many there are then. Of one design and variant two
 * ISAs are worth a measurement: those with the least estimates. */
enum { WEFT__CANDIDATES_MAX = 10 };
size_t weft__add_candidate(weft__choice *best, size_t n, const weft__choice *c);
typedef struct weft__want {
    int mode, variant; /* variant: of the pinned kernel, -1: the one with the least estimate */
    bool deterministic;
    uint32_t engines;
    size_t limit;
    const weft__kernel *pin;
    double seconds;
} weft__want;

/* Time one choice on private buffers: median ns; abandoned (HUGE_VAL) when a run exceeds give_up_ns. */
weft_status weft__measure(weft_ctx *ctx, const weft_problem *p, const weft__hw *hw, const weft__choice *c,
                          double give_up_ns, double seconds, double *ns);
weft_status weft__plan_build(weft_plan **plan, weft_ctx *ctx, const weft_problem *p, const weft__hw *hw,
                             const weft__choice *c);
const weft__choice *weft__plan_choice(const weft_plan *plan); /* for the command: what was chosen, and why */

/* "cpu:<model>:avx512" or "cuda:<name>:cc90", no spaces: the device field of wisdom. */
void weft__device_name(const weft__hw *hw, int device, char *text, size_t capacity);
weft__wisdom *weft__wisdom_create(const weft_ctx *ctx);
void weft__wisdom_destroy(const weft_ctx *ctx, weft__wisdom *w);
/* The fastest remembered choice that applies and fits; false: none. */
bool weft__wisdom_find(weft_ctx *ctx, const weft_problem *p, const weft__hw *hw, uint32_t engines, size_t limit,
                       weft__choice *c);
weft_status weft__wisdom_add(weft_ctx *ctx, const weft_problem *p, const weft__hw *hw, const weft__choice *c);

pthread_mutex_t *weft__cache_lock(weft__cache *c); /* for fork alone */
pthread_mutex_t *weft__wisdom_lock(weft__wisdom *w);
weft__cache *weft__cache_create(const weft_ctx *ctx, size_t capacity);
void weft__cache_destroy(const weft_ctx *ctx, weft__cache *c);
weft_plan *weft__cache_get(weft__cache *c, const uint64_t *key, size_t n, uint64_t hash); /* retained, or NULL */
/* Keeps *plan, or replaces it by the equal one that is there already. */
weft_status weft__cache_put(const weft_ctx *ctx, weft__cache *c, const uint64_t *key, size_t n, uint64_t hash,
                            weft_plan **plan);
/* Drop the plans whose key begins with these words; n 0: all. */
void weft__cache_clear(const weft_ctx *ctx, weft__cache *c, const uint64_t *key, size_t n);

#include "cuda/cuda.h" /* the CUDA engine, as the others see it */

#endif
