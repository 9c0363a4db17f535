/* The records of src/ops: what each problem reads and writes, and the ends of every range that is allowed.
 * tests/operators.txt has a line for each problem; a line that is not as it was is printed as it is now. */
#include "test.h"

/* ---------------------------------------------------------------- tensors, types, steps and work */
static const char *const steps[] = {"bias", "relu", "clip0_6", "silu", "acc1_1"};

/* Does the problem, without the epilogue and the device of its text, take the step? An operator without attributes has
 * no section for them. */
static bool takes_step(const char *text, const char *step) {
    char with[WEFT_TEXT_MAX];
    int colons = 0;
    size_t n = 0;
    for (; text[n] && text[n] != '@'; n++)
        if (text[n] == ':' && ++colons == 6) break;
    for (int more = colons < 5 ? 0 : 1; more < 2; more++) {
        weft_problem p = WEFT_PROBLEM_INIT;
        snprintf(with, sizeof(with), "%.*s%s:%s", (int)n, text, colons < 5 && more ? ":" : "", step);
        if (weft_problem_parse(&p, with) == WEFT_OK) return true;
    }
    return false;
}

/* "steps relu clip; work 720; src < 1e 2.4.1.1.5; ...": of each tensor whether it is read (<), written (>) or both
 * (=), the set of data types that it may have, and its shape. */
static void describe(const char *text, char *line, size_t capacity) {
    weft_problem p = test_problem(text);
    weft__text t = {line, capacity, 0};
    weft__put(&t, "%s steps", text);
    for (size_t i = 0; i < WEFT__COUNT(steps); i++)
        if (takes_step(text, steps[i])) weft__put(&t, " %s", steps[i]);
    weft__put(&t, "; work %.15g", weft__flops(&p));
    for (int i = 0; i < p.ntensors; i++) {
        const weft_tensor *x = &p.tensor[i];
        const bool in = weft__is_input(&p, x->role), out = weft__is_output(&p, x->role);
        weft__put(&t, "; %s %s %llx", weft__role_name(x->role),
                  in && out ? "="
                  : in      ? "<"
                  : out     ? ">"
                            : "?",
                  (unsigned long long)weft__op_of(p.op)->dtypes(&p, x->role));
        for (int a = 0; a < x->rank; a++) weft__put(&t, a ? ".%lld" : " %lld", (long long)x->dims[a]);
    }
}

TEST(every_problem_has_its_tensors) {
    static char line[8192], now[8192];
    bool seen[WEFT_OP_COUNT][WEFT_PASS_COUNT] = {{false}};
    FILE *f = fopen(WEFT_SOURCE "/tests/operators.txt", "r");
    CHECK(f, "tests/operators.txt is missing");
    while (fgets(line, sizeof(line), f)) {
        char text[WEFT_TEXT_MAX];
        line[strcspn(line, "\n")] = 0;
        if (line[0] == '#' || sscanf(line, "%4095s", text) != 1) continue;
        describe(text, now, sizeof(now));
        CHECK(strcmp(line, now) == 0, "a line of tests/operators.txt is now\n%s", now);
        weft_problem p = test_problem(text);
        seen[p.op][p.pass] = true;
    }
    fclose(f);
    for (int op = 1; op < WEFT_OP_COUNT; op++)
        for (size_t i = 0; i < weft__op_of(op)->npasses; i++)
            CHECK(seen[op][weft__op_of(op)->passes[i].pass], "tests/operators.txt has no %s of %s",
                  weft__pass_name(weft__op_of(op)->passes[i].pass), weft__op_of(op)->name);
}

/* ---------------------------------------------------------------- ranges */
#define BIG (INT64_C(1) << 40)
#define ANY INT64_MIN /* that end is not looked at */
static const struct {
    const char *text; /* with %lld for the value */
    int64_t least, most;
    const char *words; /* of the error, before "is VALUE" */
} ranges[] = {
    {"conv1d:fwd:f32:ncw:n%lldc1w1:o1k1", 0, BIG, "conv: batch n"},
    {"conv1d:fwd:f32:ncw:n1c%lldw1:o1k1", 1, BIG, "conv: channels c"},
    {"conv3d:fwd:f32:ncdhw:n1c1d%lldh1w1:o1k1p1", 0, BIG, "conv: input size along d"},
    {"conv2d:fwd:f32:nchw:n1c1h%lldw1:o1k1p1", 0, BIG, "conv: input size along h"},
    {"conv1d:fwd:f32:ncw:n1c1w%lld:o1k1p1", 0, BIG, "conv: input size along w"},
    {"conv1d:fwd:f32:ncw:n1c1w1:o%lldk1", 1, BIG, "conv: output channels o"},
    {"conv1d:fwd:f32:ncw:n1c4w1:o4k1g%lld", 1, 4, "groups"},
    {"conv1d:fwd:f32:ncw:n1c%lldw1:o4k1g4", 4, 4, "groups"},
    {"conv1d:fwd:f32:ncw:n1c4w1:o%lldk1g4", 4, 4, "groups"},
    {"partial_conv1d:fwd:f32:ncw:n1c%lldw9:o4k1g4", 4, 4, "groups"},
    {"partial_conv1d:fwd:f32:ncw:n1c4w9:o%lldk1g4", 4, 4, "groups"},
    {"sparse_conv1d:fwd:f32:ncw:n1c%lldw9:o4k1g4nnz1", 4, 4, "groups"},
    {"sparse_conv1d:fwd:f32:ncw:n1c4w9:o%lldk1g4nnz1", 4, 4, "groups"},
    {"conv1d:fwd:f32:ncw:n1c1w4194304:o1k%lld", 1, 1 << 20, "conv: kernel size along w"},
    {"conv2d:fwd:f32:nchw:n1c1h1w4194304:o1k1x%lld", 1, 1 << 20, "conv: kernel size along w"},
    {"conv1d:fwd:f32:ncw:n1c1w1:o1k1s%lld", 1, BIG, "conv: stride along w"},
    {"conv1d:fwd:f32:ncw:n1c1w1:o1k1d%lld", 1, 1 << 20, "conv: dilation along w"},
    {"conv1d:fwd:f32:ncw:n1c1w1:o1k1p%lld+0", 0, BIG, "conv: low padding along w"},
    {"conv1d:fwd:f32:ncw:n1c1w1:o1k1p0+%lld", 0, BIG, "conv: high padding along w"},
    {"conv1d:fwd:f32:ncw:n1c1w9:o1k%lld", ANY, 9, "conv: the window along w"},
    {"conv1d:fwd:f32:ncw:n1c1w9:o1k3d%lld", ANY, 4, "conv: the window along w"},
    {"conv1d:fwd:f32:ncw:n1c1w7:o1k9p1+%lld", 1, ANY, "conv: the window along w"},
    {"conv1d:fwd:f32:ncw:n1c1w7:o1k9p%lld+1", 1, ANY, "conv: the window along w"},
    {"im2col1d:fwd:f32:ncw:n1c1w9:k%lld", ANY, 9, "im2col: the window along w"},
    {"partial_conv1d:fwd:f32:ncw:n1c1w9:o1k1mask%lld", 0, 2, "partial_conv: mask"},
    {"partial_conv1d:fwd:f32:ncw:n1c1w9:o1k1shared%lld", 0, 1, "partial_conv: shared"},
    {"partial_conv1d:bwd_data:f32:ncw:n1c1w9:o1k1biased%lld", 0, 1, "partial_conv: biased"},
    {"partial_conv1d:fwd:f32:ncw:n1c1w9:o1k1transposed%lld", 0, 1, "partial_conv: transposed"},
    {"partial_conv1d:fwd:f32:ncw:n1c1w9:o1k1outpad%lld", 0, 0, "partial_conv: outpad along w"},
    {"partial_conv1d:fwd:f32:ncw:n1c1w9:o1k1s3transposed1outpad%lld", 0, 2, "partial_conv: outpad along w"},
    {"partial_conv1d:fwd:f32:ncw:n1c1w9:o1k1d4transposed1outpad%lld", 0, 3, "partial_conv: outpad along w"},
    {"partial_conv1d:fwd:f32:ncw:n1c1w3:o1k1p%lldtransposed1", ANY, 1, "partial_conv: transposed output size along w"},
    {"sparse_conv1d:fwd:f32:ncw:n1c1w9:o1k1nnz%lld", 0, BIG, "sparse_conv: nnz"},
    {"sparse_conv1d:fwd:f32:ncw:n1c1w9:o1k1nnz1stretched%lld", 0, 1, "sparse_conv: stretched"},
    {"max_pool1d:fwd:f32:ncw:n%lldc1w1:k1", 0, BIG, "max_pool: batch n"},
    {"max_pool1d:fwd:f32:ncw:n1c%lldw1:k1", 0, BIG, "max_pool: channels c"},
    {"max_pool1d:fwd:f32:ncw:n1c1w%lld:k1", 1, BIG, "max_pool: input size along w"},
    {"max_pool1d:fwd:f32:ncw:n1c1w9:k2ceil%lld", 0, 1, "max_pool: ceil"},
    {"max_pool1d:fwd:f32:ncw:n1c1w9:k2index%lld", 0, 1, "max_pool: index"},
    {"max_pool1d:fwd:f32:ncw:n1c1w9:k4p%lld+0", 0, 2, "padding along w"},
    {"max_pool1d:fwd:f32:ncw:n1c1w9:k4p0+%lld", 0, 2, "padding along w"},
    {"max_pool1d:fwd:f32:ncw:n1c1w9:k%llds3", ANY, 9, "max_pool: the window along w"},
    {"max_pool1d:fwd:f32:ncw:n1c1w9:k%llds3ceil1", ANY, 11, "max_pool: the window along w"},
    {"max_pool1d:fwd:f32,index=u8:ncw:n1c1w999:k%lldindex1", 1, 256, ""},
    {"max_pool1d:fwd:f32,index=i32:ncw:n1c1w%lld:k1index1", 1, INT32_MAX, ""},
    {"avg_pool1d:fwd:f32:ncw:n1c1w9:k2ceil%lld", 0, 1, "avg_pool: ceil"},
    {"avg_pool1d:fwd:f32:ncw:n1c1w9:k2include_pad%lld", 0, 1, "avg_pool: include_pad"},
    {"avg_pool1d:fwd:f32:ncw:n1c1w%lld:k1", 1, BIG, "avg_pool: input size along w"},
    {"adaptive_avg_pool1d:fwd:f32:ncw:n1c1w%lld:to1", 1, BIG, "adaptive_avg_pool: input size along w"},
    {"adaptive_avg_pool1d:fwd:f32:ncw:n1c1w1:to%lld", 0, BIG, "adaptive_avg_pool: output size along w"},
    {"adaptive_avg_pool1d:fwd:f32:ncw:n1c1w1073741823:to%lld", 0, INT64_C(1) << 31,
     "adaptive_avg_pool: output size along w"},
    {"relu1d:fwd:f32:ncw:n%lldc1w1", 0, BIG, "relu: batch n"},
    {"relu1d:fwd:f32:ncw:n1c%lldw1", 0, BIG, "relu: channels c"},
    {"ncrelu1d:fwd:f32:ncw:n1c%lldw1", 0, BIG, "ncrelu: channels c"},
    {"softmax1d:fwd:f32:ncw:n1c%lldw1", 0, BIG, "softmax: channels c"},
    {"lrn1d:fwd:f32:ncw:n1c%lldw1:size5", 0, BIG, "lrn: channels c"},
    {"lrn1d:fwd:f32:ncw:n1c1w1:size%lld", 1, BIG, "lrn: size"},
    {"cross_entropy1d:fwd:f32:ncw:n1c%lldw1", 1, BIG, "cross_entropy: channels c"},
    {"cross_entropy1d:fwd:f32:ncw:n1c2w1:probs%lld", 0, 1, "cross_entropy: probs"},
    {"cross_entropy1d:fwd:f32:ncw:n1c2w1:weighted%lld", 0, 1, "cross_entropy: weighted"},
    {"cross_entropy1d:fwd:f32:ncw:n1c2w1:reduction%lld", 0, 2, "cross_entropy: reduction"},
    {"cross_entropy1d:fwd:f32:ncw:n1c2w1:smooth%lld", 0, 1, "cross_entropy: smooth"},
    {"batch_norm1d:fwd:f32:ncw:n2c%lldw1:train1", 1, BIG, "batch_norm: channels c"},
    {"batch_norm1d:fwd:f32:ncw:n2c1w1:train%lld", 0, 1, "batch_norm: train"},
    {"batch_norm1d:fwd:f32:ncw:n2c1w1:train1affine%lld", 0, 1, "batch_norm: affine"},
    {"batch_norm1d:fwd:f32:ncw:n2c1w1:train1track%lld", 0, 1, "batch_norm: track"},
    {"batch_norm1d:fwd:f32:ncw:n2c1w1:train0track%lld", 1, 1, "batch_norm: track"},
    {"batch_norm1d:fwd:f32:ncw:n2c1w1:train1eps%lld", 0, ANY, "batch_norm: eps"},
    {"batch_norm1d:fwd:f32:ncw:n1c1w%lld:train1", 2, BIG, ""},
    {"dgmm:fwd:f32:dense:n%lldh1w1:side1", 0, BIG, "dgmm: batch n"},
    {"dgmm:fwd:f32:dense:n1h%lldw1:side1", 0, BIG, "dgmm: rows h"},
    {"dgmm:fwd:f32:dense:n1h1w%lld:side1", 0, BIG, "dgmm: columns w"},
    {"cdgmm:fwd:f32:dense:n1h1w1:side%lld", 0, 1, "cdgmm: side"},
    {"clip1d:fwd:f32:ncw:n1c1w1:lo1hi%lld", 1, ANY, "clip: bounds"},
    {"clip1d:fwd:f32:ncw:n1c1w1:lo%lldhi1", ANY, 1, "clip: bounds"},
    {"causal_conv1d:fwd:f32:ncw:n1c1w1:k%lld", 1, 1 << 20, "causal_conv: kernel size along w"},
    {"causal_conv1d:fwd:f32:ncw:n1c1w1:k4p%lld+0", 3, 3, "causal_conv: low padding along w"},
    {"causal_conv1d:fwd:f32:ncw:n1c1w1:k4p3+%lld", 0, 0, "causal_conv: high padding along w"},
    {"causal_conv1d:fwd:f32:ncw:n1c1w1:k4first%lld", 0, 1, "causal_conv: first"},
    {"causal_conv1d:fwd:f32:ncw:n1c1w1:k4last%lld", 0, 1, "causal_conv: last"},
    {"causal_conv1d:fwd:f32:ncw:n1c1w1:k4seqs%lld", 0, 1, "causal_conv: seqs"},
    {"causal_conv1d:fwd:f32:ncw:n1c1w1:k4seqs1first%lld", ANY, 0, "causal_conv: seqs"},
    {"causal_conv1d:fwd:f32:ncw:n1c1w1:k4seqs1last%lld", ANY, 0, "causal_conv: seqs"},
    {"causal_update1d:fwd:f32:ncw:n1c1w1:k4len%lld", 3, BIG, "causal_update: len"},
    {"causal_update1d:fwd:f32:ncw:n1c1w1:k1len%lldring1", 1, BIG, "causal_update: len"},
    {"causal_update1d:fwd:f32:ncw:n1c1w1:k4len3ring%lld", 0, 1, "causal_update: ring"},
    {"causal_update1d:fwd:f32:ncw:n1c1w1:k4len3index%lld", 0, 1, "causal_update: index"},
    {"causal_update1d:fwd:f32:ncw:n3c1w1:k4len3rows%lld", 3, 3, "causal_update: rows"},
    {"causal_update1d:fwd:f32:ncw:n3c1w1:k4len3index1rows%lld", 0, BIG, "causal_update: rows"},
    {"gru:fwd:f32:dense:t%lldn1c1o1", 1, 1 << 24, "gru: steps t"},
    {"gru:fwd:f32:dense:t1n%lldc1o1", 0, BIG, "gru: batch n"},
    {"gru:fwd:f32:dense:t1n1c%lldo1", 1, BIG, "gru: channels c"},
    {"gru:fwd:f32:dense:t1n1c1o%lld", 1, 1 << 20, "gru: hidden size o"},
    {"gru:fwd:f32:dense:t1n1c1o1:l%lld", 1, 1024, "gru: layers l"},
    {"gru:fwd:f32:dense:t1n1c1o1:both%lld", 0, 1, "gru: both"},
    {"gru:fwd:f32:dense:t1n1c1o1:b%lld", 0, 1, "gru: bias b"},
    {"gru:fwd:f32:dense:t1n1c1o1:state%lld", 0, 1, "gru: state"},
    {"gru:fwd:f32:dense:t1n1c1o1:train%lld", 0, 1, "gru: train"},
    {"gru:bwd:f32:dense:t1n1c1o1:train%lld", 1, 1, "gru: train"},
    {"gru:fwd:f32:dense:t3n2c1o1:rows%lld", 0, 6, "gru: packed rows"},
    {"gru:fwd:f32:dense:t1n1c1o1:proj%lld", 0, 0, "gru: projection proj"},
    {"lstm:fwd:f32:dense:t1n1c1o5:proj%lld", 0, 4, "lstm: projection proj"},
    {"gru:fwd:f32:dense:t1n1c1o1:drop%lld", 0, 1, "gru: drop"},
};

static void try_value(size_t i, int64_t value, bool good) {
    char text[WEFT_TEXT_MAX];
    weft_problem p = WEFT_PROBLEM_INIT;
    const char *place = strstr(ranges[i].text, "%lld");
    snprintf(text, sizeof(text), "%.*s%lld%s", (int)(place - ranges[i].text), ranges[i].text, (long long)value,
             place + 4);
    const weft_status s = weft_problem_parse(&p, text);
    CHECK(s == (good ? WEFT_OK : WEFT_ERR_INVALID), "%s gave %s: %s", text, weft_status_name(s), weft_last_error());
    if (!good)
        CHECK(strstr(weft_last_error(), ranges[i].words), "%s: the error is \"%s\", without \"%s\"", text,
              weft_last_error(), ranges[i].words);
}

TEST(ranges_end_where_they_say) {
    for (size_t i = 0; i < WEFT__COUNT(ranges); i++) {
        if (ranges[i].least != ANY) try_value(i, ranges[i].least, true), try_value(i, ranges[i].least - 1, false);
        if (ranges[i].most != ANY) try_value(i, ranges[i].most, true), try_value(i, ranges[i].most + 1, false);
    }
}

/* ---------------------------------------------------------------- what weft.h says of attributes that are not given */
#define ATTR(member) offsetof(weft_problem, member)
static const struct {
    const char *text; /* without the attribute */
    size_t at;
    double value;
    bool whole;
} defaults[] = {
    {"clip1d:fwd:f32:ncw:n1c1w1:hi6", ATTR(real[WEFT_CLIP_LO]), 0, false},
    {"max_pool1d:fwd:f32:ncw:n1c1w9:k2", ATTR(attr[WEFT_POOL_CEIL]), 0, true},
    {"max_pool1d:fwd:f32:ncw:n1c1w9:k2", ATTR(attr[WEFT_MAX_POOL_INDEX]), 0, true},
    {"avg_pool1d:fwd:f32:ncw:n1c1w9:k2", ATTR(attr[WEFT_POOL_CEIL]), 0, true},
    {"avg_pool1d:fwd:f32:ncw:n1c1w9:k2", ATTR(attr[WEFT_AVG_POOL_INCLUDE_PAD]), 1, true},
    {"avg_pool1d:fwd:f32:ncw:n1c1w9:k2", ATTR(attr[WEFT_AVG_POOL_DIVISOR]), 0, true},
    {"lstm:fwd:f32:dense:t1n1c1o1", ATTR(attr[WEFT_RNN_LAYERS]), 1, true},
    {"lstm:fwd:f32:dense:t1n1c1o1", ATTR(attr[WEFT_RNN_BIDIRECTIONAL]), 0, true},
    {"lstm:fwd:f32:dense:t1n1c1o1", ATTR(attr[WEFT_RNN_PROJECTION]), 0, true},
    {"lstm:fwd:f32:dense:t1n1c1o1", ATTR(attr[WEFT_RNN_BIAS]), 1, true},
    {"lstm:fwd:f32:dense:t1n1c1o1", ATTR(attr[WEFT_RNN_STATE]), 0, true},
    {"lstm:fwd:f32:dense:t1n1c1o1", ATTR(attr[WEFT_RNN_ROWS]), 0, true},
    {"lstm:fwd:f32:dense:t1n1c1o1", ATTR(attr[WEFT_RNN_TRAIN]), 0, true},
    {"lstm:fwd:f32:dense:t1n1c1o1", ATTR(real[WEFT_RNN_DROPOUT]), 0, false},
    {"cross_entropy1d:fwd:f32:ncw:n1c2w1", ATTR(attr[WEFT_CE_PROBABILITIES]), 0, true},
    {"cross_entropy1d:fwd:f32:ncw:n1c2w1", ATTR(attr[WEFT_CE_WEIGHTED]), 0, true},
    {"cross_entropy1d:fwd:f32:ncw:n1c2w1", ATTR(attr[WEFT_CE_IGNORE]), -100, true},
    {"cross_entropy1d:fwd:f32:ncw:n1c2w1", ATTR(attr[WEFT_CE_REDUCTION]), WEFT_CE_MEAN, true},
    {"cross_entropy1d:fwd:f32:ncw:n1c2w1", ATTR(real[WEFT_CE_SMOOTHING]), 0, false},
    {"batch_norm1d:fwd:f32:ncw:n2c1w1:train1", ATTR(attr[WEFT_BN_AFFINE]), 1, true},
    {"batch_norm1d:fwd:f32:ncw:n2c1w1:train1", ATTR(attr[WEFT_BN_TRACK]), 1, true},
    {"batch_norm1d:fwd:f32:ncw:n2c1w1:train1", ATTR(real[WEFT_BN_EPS]), 1e-5, false},
    {"batch_norm1d:fwd:f32:ncw:n2c1w1:train1", ATTR(real[WEFT_BN_MOMENTUM]), 0.1, false},
    {"lrn1d:fwd:f32:ncw:n1c4w1:size5", ATTR(real[WEFT_LRN_ALPHA]), 1e-4, false},
    {"lrn1d:fwd:f32:ncw:n1c4w1:size5", ATTR(real[WEFT_LRN_BETA]), 0.75, false},
    {"lrn1d:fwd:f32:ncw:n1c4w1:size5", ATTR(real[WEFT_LRN_K]), 1, false},
    {"partial_conv1d:fwd:f32:ncw:n1c1w9:o1k1", ATTR(attr[WEFT_PARTIAL_SHARED]), 0, true},
    {"partial_conv1d:fwd:f32:ncw:n1c1w9:o1k1", ATTR(attr[WEFT_PARTIAL_TRANSPOSED]), 0, true},
    {"sparse_conv1d:fwd:f32:ncw:n1c1w9:o1k1nnz1", ATTR(attr[WEFT_SPARSE_STRETCHED]), 0, true},
    {"causal_update1d:fwd:f32:ncw:n7c1w1:k4len3", ATTR(attr[WEFT_CAUSAL_ROWS]), 7, true},
};

/* In the text and in the struct: weft_problem_init leaves what the text leaves out. */
TEST(defaults_are_those_of_the_header) {
    for (size_t i = 0; i < WEFT__COUNT(defaults); i++) {
        weft_problem p = test_problem(defaults[i].text), q = WEFT_PROBLEM_INIT;
        const void *read = (const char *)&p + defaults[i].at, *made = (const char *)&q + defaults[i].at;
        OK(weft_problem_init(&q, (weft_op)p.op, (weft_pass)p.pass, p.rank));
        const double value = defaults[i].whole ? (double)*(const int64_t *)read : *(const double *)read;
        CHECK(value == defaults[i].value, "%s: the value at %zu is %g, not %g", defaults[i].text, defaults[i].at, value,
              defaults[i].value);
        CHECK(p.op == WEFT_OP_CAUSAL_UPDATE || memcmp(read, made, sizeof(double)) == 0,
              "%s: weft_problem_init has another value at %zu", defaults[i].text, defaults[i].at);
    }
    weft_problem p = WEFT_PROBLEM_INIT;
    OK(weft_problem_init(&p, WEFT_OP_BATCH_NORM, WEFT_PASS_FWD, 1));
    CHECK(p.attr[WEFT_BN_TRAIN] == 1, "train is %lld", (long long)p.attr[WEFT_BN_TRAIN]);
    OK(weft_problem_init(&p, WEFT_OP_CLIP, WEFT_PASS_FWD, 1));
    CHECK(p.real[WEFT_CLIP_HI] == 6, "hi is %g", p.real[WEFT_CLIP_HI]);
}
