/* The problem: its text in both directions, the column of every syntax error, the normal form, and what is refused. */
#include <limits.h>
#include <locale.h>
#include <math.h>

#include "test.h"

/* ---------------------------------------------------------------- the text */
/* Read, then written: NULL means as it was. */
static const struct {
    const char *text, *normal;
} texts[] = {
    {"conv2d:fwd:f32:nchw:n64c128h56w56:o128k3p1g128@cpu", NULL},
    {"conv2d:fwd:f32:nchw:n64c128h56w56:o128k3p1g128", "conv2d:fwd:f32:nchw:n64c128h56w56:o128k3p1g128@cpu"},
    {"conv2d:fwd:f32:nchw:w56h56n64c128:g128p1o128k3@cpu", "conv2d:fwd:f32:nchw:n64c128h56w56:o128k3p1g128@cpu"},
    {"conv2d:fwd:f32:nchw:n1c8h9w9:o8k3x3s1d1p1+1x1+1g1:fast@cpu", "conv2d:fwd:f32:nchw:n1c8h9w9:o8k3p1@cpu"},
    {"conv2d:fwd:bf16,bias=f32:nhwc:n8c64h112w112:o64k3s2p1g64:bias+relu@cpu", NULL},
    {"conv2d:fwd:f32:nchw,src=[602112.4704.56.1],dst=nhwc/4:n1c8h56w56:o8k3p1g8@cpu",
     "conv2d:fwd:f32:nchw,src=[0.4704.56.1],dst=nhwc/4:n1c8h56w56:o8k3p1g8@cpu"},
    {"conv2d:bwd_data:f32:nchw:n1c8h56w56:o16k3x5p1+0x2:strict@cuda", NULL},
    {"conv3d:bwd:f32:ncdhw:n1c64d50h50w50:o64k3g64:bias@cpu", NULL},
    {"conv1d:fwd:f16:nwc:n16c80w3000:o384k3p1@cuda1", NULL},
    {"conv2d:fwd:f32,src=f32:nchw,dst=nchw:n1c2h9w9:o2k3@cpu", "conv2d:fwd:f32:nchw:n1c2h9w9:o2k3@cpu"},
    {"conv2d:fwd:f32:nchw,src=[162.81.9.1]:n2c2h9w9:o2k3@cpu", "conv2d:fwd:f32:nchw:n2c2h9w9:o2k3@cpu"},
    {"conv2d:fwd:f32:nchw,src=[162.1.18.2]:n2c2h9w9:o2k3@cpu", "conv2d:fwd:f32:nhwc,dst=nchw:n2c2h9w9:o2k3@cpu"},
    {"conv2d:fwd:f32:nchw,bias=[3]:n1c2h9w9:o2k3:bias@cpu", NULL},
    {"conv2d:fwd:f32:nchw,bias=[1]/4:n1c2h9w9:o2k3:bias@cpu",
     "conv2d:fwd:f32:nchw,bias=dense/4:n1c2h9w9:o2k3:bias@cpu"},
    {"conv2d:fwd:f32:nhwc,weights=ohwi:n1c2h9w9:o2k3@cpu", NULL},
    {"conv2d:fwd:f32:nchw:n1c2h9w9:o2k3:clip-0.5_6:tf32@cpu", NULL},
    {"conv2d:fwd:f32:nchw:n1c2h9w9:o2k3:clip0.1_0.3@cpu", NULL},
    {"conv2d:fwd:f32:nchw:n0c2h9w9:o2k3@cpu", NULL},
    {"conv2d:fwd:f64,dst=f32:nchw:n1c2h9w9:o2k1x3s2x1d1x2p0x1+2@cpu",
     "conv2d:fwd:f64,dst=f32:nchw:n1c2h9w9:o2k1x3s2x1p0x1+2d1x2@cpu"},
};

TEST(round_trip) {
    char text[WEFT_TEXT_MAX], why[WEFT_TEXT_MAX * 3];
    for (size_t i = 0; i < WEFT__COUNT(texts); i++) {
        weft_problem p = test_problem(texts[i].text);
        size_t length = 0;
        const char *normal = texts[i].normal ? texts[i].normal : texts[i].text;
        OK(weft_problem_format(&p, text, sizeof(text), &length));
        CHECK(strcmp(text, normal) == 0 && length == strlen(text), "'%s' is written as '%s'", texts[i].text, text);
        CHECK(harness_round_trip(&p, why, sizeof(why)), "%s", why);
    }
    for (uint64_t seed = 0; seed < 20000; seed++) {
        weft_problem p = WEFT_PROBLEM_INIT;
        CHECK(harness_random(&p, seed, seed % 3 ? WEFT_DEVICE_CPU : WEFT_DEVICE_CUDA), "seed %llu: %s",
              (unsigned long long)seed, weft_last_error());
        CHECK(harness_round_trip(&p, why, sizeof(why)), "seed %llu: %s", (unsigned long long)seed, why);
    }
}

TEST(any_locale) {
    static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "fr_FR.utf8"};
    size_t i = 0;
    while (i < WEFT__COUNT(names) && !setlocale(LC_ALL, names[i])) i++;
    if (i == WEFT__COUNT(names)) SKIP("no locale with a decimal comma is installed");
    char text[WEFT_TEXT_MAX];
    weft_problem p = test_problem("conv2d:fwd:f32:nchw:n1c2h9w9:o2k3:clip-0.5_1.25@cpu");
    OK(weft_problem_format(&p, text, sizeof(text), NULL));
    setlocale(LC_ALL, "C");
    CHECK(strstr(text, "clip-0.5_1.25"), "%s", text);
}

TEST(capacity) {
    weft_problem p = test_problem("conv2d:fwd:f32:nchw:n1c2h9w9:o2k3@cpu");
    char text[64];
    size_t length = 0;
    OK(weft_problem_format(&p, NULL, 0, &length));
    CHECK(length == strlen("conv2d:fwd:f32:nchw:n1c2h9w9:o2k3@cpu"), "%zu", length);
    for (size_t capacity = 1; capacity <= length; capacity++) {
        memset(text, '!', sizeof(text));
        FAILS(weft_problem_format(&p, text, capacity, &length), WEFT_ERR_INVALID, "capacity");
        CHECK(strlen(text) == capacity - 1 && text[capacity] == '!', "capacity %zu", capacity);
    }
    OK(weft_problem_format(&p, text, length + 1, NULL));
}

/* ---------------------------------------------------------------- syntax errors: the column, and what was expected */
static const struct {
    const char *text;
    int column;
    const char *expected;
} errors[] = {
    {"", 1, "an operator"},
    {"conf2d:fwd:f32:nchw:n1c8h9w9:o8k3", 1, "conv2d"},
    {"conv4d:fwd:f32:nchw:n1c8h9w9:o8k3", 1, "conv3d"},
    {"conv:fwd:f32:nchw:n1c8h9w9:o8k3", 1, "conv1d"},
    {"conv2d", 7, "':'"},
    {"conv2d:", 8, "a pass: fwd bwd_data bwd_weights bwd_bias bwd"},
    {"conv2d:forward:f32:nchw:n1c8h9w9:o8k3", 8, "a pass"},
    {"conv2d:fwd", 11, "':'"},
    {"conv2d:fwd:f33:nchw:n1c8h9w9:o8k3", 12, "a data type: f32"},
    {"conv2d:fwd:none:nchw:n1c8h9w9:o8k3", 12, "a data type"},
    {"conv2d:fwd:f32,:nchw:n1c8h9w9:o8k3", 16, "a tensor: src"},
    {"conv2d:fwd:f32,source=f16:nchw:n1c8h9w9:o8k3", 16, "a tensor"},
    {"conv2d:fwd:f32,src:nchw:n1c8h9w9:o8k3", 19, "'='"},
    {"conv2d:fwd:f32,src=x:nchw:n1c8h9w9:o8k3", 20, "a data type"},
    {"conv2d:fwd:f32,src=none:nchw:n1c8h9w9:o8k3", 20, "a data type"},
    {"conv2d:fwd:f32", 15, "':' and a layout"},
    {"conv2d:fwd:f32:ncw:n1c8h9w9:o8k3", 16, "a layout: nchw nhwc"},
    {"conv2d:fwd:f32:nchw,weights=nchw:n1c8h9w9:o8k3", 29, "a layout: oihw ohwi"},
    {"conv2d:fwd:f32:nchw,bias=nchw:n1c8h9w9:o8k3:bias", 26, "a layout: dense"},
    {"conv2d:fwd:f32:nchw,src=[1.2.3]:n1c8h9w9:o8k3", 25, "4 strides"},
    {"conv2d:fwd:f32:nchw,src=[1.2.3.4.5]:n1c8h9w9:o8k3", 25, "4 strides"},
    {"conv2d:fwd:f32:nchw,src=[1.a.3.4]:n1c8h9w9:o8k3", 28, "a number"},
    {"conv2d:fwd:f32:nchw,src=nchw/:n1c8h9w9:o8k3", 30, "a number"},
    {"conv2d:fwd:f32:nchw", 20, "':' and sizes"},
    {"conv2d:fwd:f32:nchw:n1c8h56:o8k3", 28, "'w' and a number"},
    {"conv2d:fwd:f32:nchw:n1c8d2h9w9:o8k3", 25, "a size: n c h w"},
    {"conv2d:fwd:f32:nchw:n1n1c8h9w9:o8k3", 23, "each letter once"},
    {"conv2d:fwd:f32:nchw:n1cxh9w9:o8k3", 23, "a size"},
    {"conv2d:fwd:f32:nchw:nc8h9w9:o8k3", 21, "a size"},
    {"conv2d:fwd:f32:nchw:n1c9223372036854775808h9w9:o8k3", 24, "below 2^63"},
    {"conv2d:fwd:f32:nchw:n1c8h9w9", 29, "':' and attributes"},
    {"conv2d:fwd:f32:nchw:n1c8h9w9:", 30, "'o' and a number"},
    {"conv2d:fwd:f32:nchw:n1c8h9w9:o8", 32, "'k' and a number"},
    {"conv2d:fwd:f32:nchw:n1c8h9w9:o8k3x3x3", 37, "one value per axis"},
    {"conv3d:fwd:f32:ncdhw:n1c8d9h9w9:o8k3x3", 39, "'x' and the next axis"},
    {"conv2d:fwd:f32:nchw:n1c8h9w9:o8k3q1", 34, "an attribute: o k s p d g"},
    {"conv2d:fwd:f32:nchw:n1c8h9w9:o8k3p1+", 37, "a number"},
    {"conv2d:fwd:f32:nchw:n1c8h9w9:o8k3s1+1", 36, "the end"},
    {"conv2d:fwd:f32:nchw:n1c8h9w9:o8k3:", 35, "an epilogue step"},
    {"conv2d:fwd:f32:nchw:n1c8h9w9:o8k3:gelu", 35, "bias, relu, clipLO_HI"},
    {"conv2d:fwd:f32:nchw:n1c8h9w9:o8k3:relu+", 40, "an epilogue step"},
    {"conv2d:fwd:f32:nchw:n1c8h9w9:o8k3:clip", 39, "a number"},
    {"conv2d:fwd:f32:nchw:n1c8h9w9:o8k3:clip1", 40, "'_'"},
    {"conv2d:fwd:f32:nchw:n1c8h9w9:o8k3:clip1_x", 41, "a number"},
    {"conv2d:fwd:f32:nchw:n1c8h9w9:o8k3:relu+relu+relu+relu+relu", 55, "at most 4"},
    {"conv2d:fwd:f32:nchw:n1c8h9w9:o8k3:strict:fast", 42, "the end"},
    {"conv2d:fwd:f32:nchw:n1c8h9w9:o8k3:strict:relu", 42, "the end"},
    {"conv2d:fwd:f32:nchw:n1c8h9w9:o8k3@tpu", 35, "a device: cpu cuda"},
    {"conv2d:fwd:f32:nchw:n1c8h9w9:o8k3@cpu1", 38, "the end"},
    {"conv2d:fwd:f32:nchw:n1c8h9w9:o8k3@cpu ", 38, "the end"},
    {" conv2d:fwd:f32:nchw:n1c8h9w9:o8k3", 1, "an operator"},
};

TEST(syntax_errors) {
    for (size_t i = 0; i < WEFT__COUNT(errors); i++) {
        weft_problem p, before;
        memset(&before, 0x33, sizeof(before));
        before.size = sizeof(before);
        p = before;
        weft_status s = weft_problem_parse(&p, errors[i].text);
        char column[32];
        snprintf(column, sizeof(column), "column %d:", errors[i].column);
        CHECK(s == WEFT_ERR_SYNTAX, "'%s' gave %s: %s", errors[i].text, weft_status_name(s),
              s == WEFT_OK ? "" : weft_last_error());
        CHECK(strstr(weft_last_error(), column) && strstr(weft_last_error(), errors[i].expected),
              "'%s': %s; wanted %s %s", errors[i].text, weft_last_error(), column, errors[i].expected);
        CHECK(memcmp(&p, &before, sizeof(p)) == 0, "'%s' failed and wrote the problem", errors[i].text);
    }
    char *longer = malloc(5000);
    memset(longer, 'a', 4999);
    longer[4999] = 0;
    weft_problem p = WEFT_PROBLEM_INIT;
    FAILS(weft_problem_parse(&p, longer), WEFT_ERR_SYNTAX, "column");
    free(longer);
}

/* ---------------------------------------------------------------- what is read but refused */
static const struct {
    const char *text, *words;
} refused[] = {
    {"conv2d:fwd:f32:nchw:n-1c8h9w9:o8k3", "batch n is -1"},
    {"conv2d:fwd:f32:nchw:n1c0h9w9:o8k3", "channels c is 0"},
    {"conv2d:fwd:f32:nchw:n1c8h9w9:o-8k3", "output channels o is -8"},
    {"conv2d:fwd:f32:nchw:n1c8h-9w9:o8k3", "input size along h is -9"},
    {"conv2d:fwd:f32:nchw:n1c8h9w9:o8k0", "kernel size along"},
    {"conv2d:fwd:f32:nchw:n1c8h9w9:o8k3s0", "stride along"},
    {"conv2d:fwd:f32:nchw:n1c8h9w9:o8k3d0", "dilation along"},
    {"conv2d:fwd:f32:nchw:n1c8h9w9:o8k3p-1", "padding along"},
    {"conv2d:fwd:f32:nchw:n1c8h9w9:o8k3p0+-1", "high padding along"},
    {"conv2d:fwd:f32:nchw:n1c8h9w9:o8k3g3", "groups is 3|divisor"},
    {"conv2d:fwd:f32:nchw:n1c8h9w9:o8k3g0", "groups is 0"},
    {"conv2d:fwd:f32:nchw:n1c8h9w9:o8k3g-8", "groups is -8"},
    {"conv2d:fwd:f32:nchw:n1c8h2w9:o8k3", "window along h is 3"},
    {"conv2d:fwd:f32:nchw:n1c8h9w9:o8k3d5", "window along"},
    {"conv2d:fwd:f32:nchw:n1099511627776c1099511627776h9w9:o8k3", "overflow"},
    {"conv2d:fwd:f32:nchw:n1099511627777c8h9w9:o8k3", "batch n"},
    {"conv2d:fwd:u8:nchw:n1c8h9w9:o8k3", "u8"},
    {"conv2d:fwd:f32,weights=i64:nchw:n1c8h9w9:o8k3", "weights|i64"},
    {"conv2d:fwd:c64:nchw:n1c8h9w9:o8k3", "c64"},
    {"conv2d:fwd:f32,bias=f32:nchw:n1c8h9w9:o8k3", "bias"},
    {"conv2d:fwd:f32,diff_src=f32:nchw:n1c8h9w9:o8k3", "diff_src takes no part"},
    {"conv2d:fwd:f32:nchw,src=nchw/3:n1c8h9w9:o8k3", "src: alignment"},
    {"conv2d:fwd:f32:nchw,src=nchw/2:n1c8h9w9:o8k3", "src: alignment is 2"},
    {"conv2d:fwd:f64:nchw,src=nchw/4:n1c8h9w9:o8k3", "src: alignment is 4"},
    {"conv2d:fwd:f32:nchw,src=nchw/8192:n1c8h9w9:o8k3", "src: alignment"},
    {"conv2d:fwd:f32:nchw,src=[1.1.-9.1]:n1c8h9w9:o8k3", "src: stride"},
    {"conv2d:fwd:f32:nchw,dst=[392.49.7.0]:n1c8h9w9:o8k3", "dst|overlap"},
    {"conv2d:fwd:f32:nchw,dst=[392.49.6.1]:n1c8h9w9:o8k3", "dst|overlap"},
    {"conv2d:fwd:f32:nchw,src=[1.9223372036854775807.9.1]:n1c8h9w9:o8k3", "src|overflow"},
    {"partial_conv1d:fwd:f32,mask=u8,new_mask=u8:ncw,new_mask=[9223372036854775807.1.1]:n2c2w1:o2k1",
     "new_mask|overflow"},
    {"conv2d:bwd_weights:f32:nchw:n1c8h9w9:o8k3:relu", "relu|pass bwd_weights of conv does not take"},
    {"conv2d:bwd_bias:f32:nchw:n1c8h9w9:o8k3:bias", "bias"},
    {"conv2d:fwd:f32:nchw:n1c8h9w9:o8k3:bias+bias", "bias"},
    {"conv2d:fwd:f32:nchw:n1c8h9w9:o8k3:clip6_0", "clips to 6..0"},
    {"conv2d:fwd:f32:nchw:n1c8h9w9:o8k3:clipnan_0", ""},
    {"conv2d:fwd:f32:nchw:n1c8h9w9:o8k3@cuda4000", "ordinal"},
    {"conv2d:fwd:f32:nchw:n1c8h9w9:o8k3@cuda1025", "ordinal"},
    {"conv2d:fwd:f32:nchw:n1c8h9w9:o8k3@cuda4294967296", "ordinal"},
    {"conv2d:bwd_data:f32:nchw:n1c8h9w9:o8k3:acc1_inf", "step 0 accumulates with factors 1 and inf"},
    {"conv2d:bwd_data:f32:nchw:n1c8h9w9:o8k3:acc1_nan", "accumulates with factors 1 and nan"},
    {"conv2d:bwd_data:f32:nchw:n1c8h9w9:o8k3:acc1_1+relu", "step 0 accumulates|in the last step"},
    {"causal_conv1d:fwd:f32:ncw:n1c4w9:k3:silu+bias", "step 1 comes after silu"},
    {"causal_conv1d:bwd_data:f32:ncw:n1c4w9:k3:silu+bias+acc1_1", "step 1 comes after silu"},
    {"causal_conv1d:fwd:f32:ncw:n1c4w9:k3:bias+silu+silu", "step 2 comes after silu"},
    {"causal_update1d:fwd:f32:ncw:n1c4w1:k3len2:silu+bias", "step 1 comes after silu"},
    {"lstm:fwd:f32:dense:t1n1c1099511627776o1048576:l1024", "weights or states overflow"},
};

TEST(refused) {
    for (size_t i = 0; i < WEFT__COUNT(refused); i++) {
        weft_problem p = WEFT_PROBLEM_INIT;
        weft_status s = weft_problem_parse(&p, refused[i].text);
        CHECK(s == WEFT_ERR_INVALID || (s == WEFT_ERR_SYNTAX && !refused[i].words[0]), "'%s' gave %s: %s",
              refused[i].text, weft_status_name(s), weft_last_error());
        test_fails(s, s, refused[i].words, refused[i].text, __LINE__);
    }
}

/* Gaps between the elements of an output are allowed, down to the least that keeps them apart. */
TEST(gapped_outputs) {
    static const char *const taken[] = {"[392.49.7.1]",   "[400.50.7.1]",  "[1000.100.13.2]", "[1000.92.13.2]",
                                        "[1000.91.13.2]", "[800.1.80.11]", "[56.1.392.8]",    "[1.49.7.1]"};
    for (size_t i = 0; i < WEFT__COUNT(taken); i++) {
        char text[256];
        snprintf(text, sizeof(text), "conv2d:fwd:f32:nchw,dst=%s:n%dc8h9w9:o8k3", taken[i],
                 taken[i][1] == '1' && taken[i][2] == '.' ? 1 : 2);
        weft_problem p = WEFT_PROBLEM_INIT;
        CHECK(weft_problem_parse(&p, text) == WEFT_OK, "%s: %s", text, weft_last_error());
    }
    static const char *const refused_ones[] = {"[392.49.6.1]", "[1000.90.13.2]", "[1000.91.12.2]", "[391.49.7.1]"};
    for (size_t i = 0; i < WEFT__COUNT(refused_ones); i++) {
        char text[256];
        weft_problem p = WEFT_PROBLEM_INIT;
        snprintf(text, sizeof(text), "conv2d:fwd:f32:nchw,dst=%s:n2c8h9w9:o8k3", refused_ones[i]);
        FAILS(weft_problem_parse(&p, text), WEFT_ERR_INVALID, "dst|overlap");
    }
}

/* ---------------------------------------------------------------- the struct */
TEST(completes_from_the_struct) {
    weft_problem p = WEFT_PROBLEM_INIT;
    char text[WEFT_TEXT_MAX];
    OK(weft_problem_init(&p, WEFT_OP_CONV, WEFT_PASS_FWD, 2));
    p.n = 8;
    p.c = p.o = p.groups = 64;
    p.in[1] = p.in[2] = 56;
    p.kernel[1] = p.kernel[2] = 3;
    p.pad_lo[1] = p.pad_hi[1] = p.pad_lo[2] = p.pad_hi[2] = 1;
    weft_problem_tensor(&p, WEFT_ROLE_SRC)->dtype = WEFT_DTYPE_BF16;
    OK(weft_problem_complete(&p));
    CHECK(p.ntensors == 3 && p.out[0] == 1 && p.out[1] == 56 && p.out[2] == 56, "%d tensors, out %lld %lld", p.ntensors,
          (long long)p.out[1], (long long)p.out[2]);
    const weft_tensor *dst = weft__tensor(&p, WEFT_ROLE_DST), *weights = weft__tensor(&p, WEFT_ROLE_WEIGHTS);
    CHECK(dst->dtype == WEFT_DTYPE_BF16 && dst->layout == WEFT_LAYOUT_FIRST && dst->align == 16 && dst->rank == 5,
          "dst %d %d %d", dst->dtype, dst->layout, dst->align);
    CHECK(dst->strides[1] == 56 * 56 && dst->strides[3] == 56 && dst->strides[4] == 1, "dst strides");
    CHECK(weights->dims[0] == 64 && weights->dims[1] == 1 && weights->dims[3] == 3, "weights dims");
    OK(weft_problem_format(&p, text, sizeof(text), NULL));
    CHECK(strcmp(text, "conv2d:fwd:bf16:nchw:n8c64h56w56:o64k3p1g64@cpu") == 0, "%s", text);
}

TEST(complete_is_idempotent) {
    for (uint64_t seed = 0; seed < 5000; seed++) {
        weft_problem p, q;
        CHECK(harness_random(&p, seed, WEFT_DEVICE_CPU), "%s", weft_last_error());
        q = p;
        OK(weft_problem_complete(&q));
        CHECK(memcmp(&p, &q, sizeof(p)) == 0, "seed %llu", (unsigned long long)seed);
    }
}

/* From the size of an element to a page. */
TEST(every_alignment) {
    static const int16_t dtypes[] = {WEFT_DTYPE_F16, WEFT_DTYPE_BF16, WEFT_DTYPE_F32, WEFT_DTYPE_F64};
    for (size_t i = 0; i < WEFT__COUNT(dtypes); i++)
        for (int32_t align = 1; align <= 8192; align *= 2) {
            weft_problem p = test_problem("relu2d:fwd:f32:nchw:n1c2h9w9");
            for (int k = 0; k < p.ntensors; k++) p.tensor[k].dtype = dtypes[i], p.tensor[k].align = 0;
            p.tensor[0].align = align;
            const bool good = align >= (int32_t)weft__dtype_size(dtypes[i]) && align <= 4096;
            CHECK((weft_problem_complete(&p) == WEFT_OK) == good, "alignment %d of %s", align,
                  weft__dtype_name(dtypes[i]));
        }
}

/* Data follow the first tensor that has a layout; weights, whose own is channels-first by default, do not give one. */
TEST(the_layout_that_data_follow) {
    static const int layouts[] = {WEFT_LAYOUT_NONE, WEFT_LAYOUT_FIRST, WEFT_LAYOUT_LAST};
    for (size_t w = 0; w < WEFT__COUNT(layouts); w++)
        for (size_t d = 0; d < WEFT__COUNT(layouts); d++) {
            weft_problem p = WEFT_PROBLEM_INIT;
            OK(weft_problem_init(&p, WEFT_OP_CONV, WEFT_PASS_FWD, 2));
            p.c = p.o = 4, p.in[1] = p.in[2] = 9, p.kernel[1] = p.kernel[2] = 3;
            weft_problem_tensor(&p, WEFT_ROLE_WEIGHTS)->layout = (int16_t)layouts[w];
            weft_problem_tensor(&p, WEFT_ROLE_DST)->layout = (int16_t)layouts[d];
            OK(weft_problem_complete(&p));
            const int data = layouts[d] ? layouts[d] : WEFT_LAYOUT_FIRST;
            CHECK(weft_problem_find(&p, WEFT_ROLE_SRC)->layout == data &&
                      weft_problem_find(&p, WEFT_ROLE_DST)->layout == data &&
                      weft_problem_find(&p, WEFT_ROLE_WEIGHTS)->layout == (layouts[w] ? layouts[w] : WEFT_LAYOUT_FIRST),
                  "weights %d and dst %d", layouts[w], layouts[d]);
        }
}

TEST(given_shapes_are_checked) {
    weft_problem p = WEFT_PROBLEM_INIT;
    OK(weft_problem_init(&p, WEFT_OP_CONV, WEFT_PASS_FWD, 1));
    p.in[2] = 9;
    weft_tensor *src = weft_problem_tensor(&p, WEFT_ROLE_SRC);
    src->rank = 5;
    src->dims[0] = src->dims[1] = src->dims[2] = src->dims[3] = 1;
    src->dims[4] = 9;
    weft_problem good = p;
    OK(weft_problem_complete(&good));
    src->dims[4] = 8;
    FAILS(weft_problem_complete(&p), WEFT_ERR_INVALID, "src|8|9");
    src->rank = 7;
    FAILS(weft_problem_complete(&p), WEFT_ERR_INVALID, "src");
}

static void with_wrong_tensor(weft_problem p, const char *words) {
    weft_problem before = p;
    FAILS(weft_problem_complete(&p), WEFT_ERR_INVALID, words);
    CHECK(p.ntensors == before.ntensors, "a refused problem changed");
}

TEST(wrong_fields) {
    weft_problem p, good = test_problem("conv2d:fwd:f32:nchw:n1c2h9w9:o2k3");
    p = good, p.op = 99, with_wrong_tensor(p, "op is 99");
    p = good, p.op = -1, with_wrong_tensor(p, "op is -1");
    p = good, p.pass = 77, with_wrong_tensor(p, "pass is 77");
    p = good, p.pass = 0, with_wrong_tensor(p, "pass");
    p = good, p.rank = 4, with_wrong_tensor(p, "rank is 4");
    p = good, p.rank = 0, with_wrong_tensor(p, "rank is 0");
    p = good, p.rank = 1, with_wrong_tensor(p, "axis h");
    p = good, p.device = 9, with_wrong_tensor(p, "device is 9");
    p = good, p.ordinal = 1, with_wrong_tensor(p, "ordinal is 1");
    p = good, p.math = 9, with_wrong_tensor(p, "math is 9");
    p = good, p.math = -2, with_wrong_tensor(p, "math is -2");
    p = good, p.nsteps = 5, with_wrong_tensor(p, "5 steps");
    p = good, p.nsteps = -1, with_wrong_tensor(p, "-1 steps");
    p = good, p.nsteps = 1, p.step[0].kind = 9, with_wrong_tensor(p, "step 0 is 9");
    p = good, p.nsteps = 1, p.step[0] = (weft_step){.kind = WEFT_STEP_CLIP, .lo = NAN, .hi = 1},
    with_wrong_tensor(p, "clips");
    p = good, p.ntensors = 17, with_wrong_tensor(p, "17 tensors");
    p = good, p.ntensors = -1, with_wrong_tensor(p, "-1 tensors");
    p = good, p.tensor[0].role = 99, with_wrong_tensor(p, "role is 99");
    p = good, p.tensor[1].role = WEFT_ROLE_SRC, with_wrong_tensor(p, "src is given twice");
    p = good, p.tensor[0].dtype = 99, with_wrong_tensor(p, "src: data type");
    p = good, p.tensor[0].layout = 9, with_wrong_tensor(p, "src: layout is 9");
    p = good, p.tensor[0].align = -4, with_wrong_tensor(p, "src: alignment is -4");
    p = good, p.tensor[0].align = 24, with_wrong_tensor(p, "src: alignment is 24");
    p = good, p.size = 8, with_wrong_tensor(p, "problem.size is 8");
    p = good, p.n = INT64_MAX, with_wrong_tensor(p, "batch n");
    p = good, p.in[2] = INT64_MAX, with_wrong_tensor(p, "input size along w");
    p = good, p.pad_lo[1] = INT64_MAX, with_wrong_tensor(p, "low padding along h");
    p = good, p.kernel[1] = INT64_MAX, with_wrong_tensor(p, "kernel size along h");
    p = good, p.stride[1] = INT64_MIN, with_wrong_tensor(p, "stride along h");
    p = good, p.dilation[1] = INT64_MAX, with_wrong_tensor(p, "dilation along h");
}

TEST(infinite_bounds) {
    static const double bounds[][2] = {{-(double)INFINITY, 6},
                                       {0, (double)INFINITY},
                                       {(double)INFINITY, (double)INFINITY},
                                       {-0.0, 0x1.fffffffffffffp1023},
                                       {0x1p-1074, 1}};
    char why[WEFT_TEXT_MAX * 3];
    for (size_t i = 0; i < WEFT__COUNT(bounds); i++) {
        weft_problem p = test_problem("conv2d:fwd:f32:nchw:n1c2h9w9:o2k3");
        p.nsteps = 1;
        p.step[0] = (weft_step){.kind = WEFT_STEP_CLIP, .lo = bounds[i][0], .hi = bounds[i][1]};
        OK(weft_problem_complete(&p));
        CHECK(harness_round_trip(&p, why, sizeof(why)), "%s", why);
    }
}

/* The key tells problems apart and nothing else. */
TEST(keys) {
    weft_problem a = test_problem("conv2d:fwd:f32:nchw:n1c2h9w9:o2k3:clip0_6"),
                 b = test_problem("conv2d:fwd:f32:nchw:n1c2h9w9:o2k3:clip0_5");
    weft_problem c = test_problem("conv2d:fwd:f32:nchw:n1c2h9w9:o2k3x3:clip0_6:fast@cpu"),
                 d = test_problem("conv2d:fwd:f32:nchw,src=nchw/4:n1c2h9w9:o2k3:clip0_6");
    CHECK(!harness_same_problem(&a, &b), "clip bounds are not in the key");
    CHECK(harness_same_problem(&a, &c), "two spellings, two keys");
    CHECK(!harness_same_problem(&a, &d), "alignment is not in the key");
}

/* Other text, other key; the same text, the same key. Everything a problem says is changed in turn. */
static void changed(const weft_problem *p, weft_problem q, const char *what) {
    char text[WEFT_TEXT_MAX], other[WEFT_TEXT_MAX];
    if (weft_problem_complete(&q) != WEFT_OK) return; /* not a problem any more */
    harness_text(p, text);
    harness_text(&q, other);
    CHECK((strcmp(text, other) == 0) == harness_same_problem(p, &q), "%s: '%s' and '%s' %s", what, text, other,
          harness_same_problem(p, &q) ? "have one key" : "have two keys");
}

TEST(keys_follow_the_text) {
    for (uint64_t seed = 0; seed < 3000; seed++) {
        weft_problem p, q;
        CHECK(harness_random(&p, seed, seed % 3 ? WEFT_DEVICE_CPU : WEFT_DEVICE_CUDA), "%s", weft_last_error());
        const weft__op *op = weft__op_of(p.op);
        for (size_t i = 0; i < op->nfields; i++) {
            const weft__field *f = &op->fields[i];
            for (int a = 0; a < (f->kind == WEFT__FIELD_AXES ? 3 : f->kind == WEFT__FIELD_PADS ? 6 : 1); a++) {
                void *at = (char *)(q = p, &q) + f->offset;
                if (f->kind == WEFT__FIELD_REAL)
                    *(double *)at += 0.5;
                else
                    ((int64_t *)at)[a] += 1;
                for (int t = 0; t < q.ntensors; t++) /* shapes follow; strides would not */
                    if (q.tensor[t].layout == WEFT_LAYOUT_STRIDED) q.tensor[t].layout = WEFT_LAYOUT_FIRST;
                changed(&p, q, f->key);
            }
        }
        for (int math = WEFT_MATH_FAST; math <= WEFT_MATH_TF32; math++) q = p, q.math = math, changed(&p, q, "math");
        q = p, q.device = p.device == WEFT_DEVICE_CPU ? WEFT_DEVICE_CUDA : WEFT_DEVICE_CPU, changed(&p, q, "device");
        q = p, q.ordinal++, changed(&p, q, "ordinal");
        q = p, q.nsteps = WEFT__MAX(0, p.nsteps - 1), changed(&p, q, "one step less");
        for (int i = 0; i < p.nsteps; i++) {
            q = p, q.step[i].hi += 1, changed(&p, q, "hi of a step");
            q = p, q.step[i].lo -= 1, changed(&p, q, "lo of a step");
            for (int kind = WEFT_STEP_BIAS; kind < WEFT_STEP_ACC; kind++)
                q = p, q.step[i].kind = kind, changed(&p, q, "kind of a step");
        }
        for (int i = 0; i < p.ntensors; i++) {
            q = p, q.tensor[i].align = p.tensor[i].align * 2, changed(&p, q, "alignment");
            for (int dtype = 1; dtype < WEFT_DTYPE_COUNT; dtype++)
                q = p, q.tensor[i].dtype = (int16_t)dtype, changed(&p, q, "data type");
            for (int layout = WEFT_LAYOUT_FIRST; layout <= WEFT_LAYOUT_LAST; layout++)
                q = p, q.tensor[i].layout = (int16_t)layout, changed(&p, q, "layout");
            for (int a = 0; a < p.tensor[i].rank && p.tensor[i].layout == WEFT_LAYOUT_STRIDED; a++)
                q = p, q.tensor[i].strides[a] += 3, changed(&p, q, "stride");
        }
    }
}

/* ---------------------------------------------------------------- callers of another version, and of none */
TEST(older_and_newer_callers) {
    struct {
        weft_problem p;
        char more[64];
    } newer = {0};
    newer.p = test_problem("conv2d:fwd:f32:nchw:n1c2h9w9:o2k3");
    newer.p.size = sizeof(newer);
    OK(weft_problem_complete(&newer.p));
    CHECK(newer.p.size == sizeof(newer), "the caller's size changed");
    newer.more[40] = 1;
    FAILS(weft_problem_complete(&newer.p), WEFT_ERR_INVALID, "problem.size");
    size_t *shorter = malloc(sizeof(size_t)); /* nothing may be read behind it */
    *shorter = sizeof(size_t);
    weft_ctx *ctx = NULL;
    weft_plan *plan = NULL;
    FAILS(weft_problem_complete((weft_problem *)(void *)shorter), WEFT_ERR_INVALID, "problem.size is 8");
    FAILS(weft_problem_parse((weft_problem *)(void *)shorter, "conv2d:fwd:f32:nchw:n1c2h9w9:o2k3"), WEFT_ERR_INVALID,
          "problem.size is 8|WEFT_PROBLEM_INIT");
    FAILS(weft_problem_init((weft_problem *)(void *)shorter, WEFT_OP_CONV, WEFT_PASS_FWD, 2), WEFT_ERR_INVALID,
          "problem.size is 8|WEFT_PROBLEM_INIT");
    CHECK(*shorter == sizeof(size_t), "its size changed");
    FAILS(weft_ctx_create(&ctx, (weft_ctx_opts *)(void *)shorter), WEFT_ERR_INVALID, "opts.size is 8");
    OK(weft_ctx_create(&ctx, NULL));
    FAILS(weft_plan_create(&plan, ctx, (weft_problem *)(void *)shorter, NULL), WEFT_ERR_INVALID, "problem.size is 8");
    OK(weft_problem_parse(&newer.p, "conv2d:fwd:f32:nchw:n1c2h9w9:o2k3")); /* sets all of it */
    CHECK(newer.p.size == sizeof(newer) && newer.more[40] == 0, "size %zu, then %d", newer.p.size, newer.more[40]);
    newer.more[40] = 1;
    OK(weft_problem_init(&newer.p, WEFT_OP_CONV, WEFT_PASS_FWD, 2));
    CHECK(newer.p.size == sizeof(newer) && newer.more[40] == 0, "size %zu, then %d", newer.p.size, newer.more[40]);
    newer.p.size = (size_t)-1;
    FAILS(weft_problem_parse(&newer.p, "conv2d:fwd:f32:nchw:n1c2h9w9:o2k3"), WEFT_ERR_INVALID, "problem.size is");
    newer.p.size = 0;
    FAILS(weft_problem_parse(&newer.p, "conv2d:fwd:f32:nchw:n1c2h9w9:o2k3"), WEFT_ERR_INVALID, "problem.size is 0");
    newer.p.size = sizeof(newer);
    FAILS(weft_plan_create(&plan, ctx, &newer.p, (weft_plan_opts *)(void *)shorter), WEFT_ERR_INVALID,
          "opts.size is 8");
    free(shorter);
    weft_ctx_release(ctx);
}

TEST(garbage_is_refused_and_nothing_written) {
    weft_problem p = WEFT_PROBLEM_INIT, before;
    OK(weft_problem_init(&p, WEFT_OP_MAX_POOL, WEFT_PASS_FWD, 2));
    p.ntensors = 1 << 28;
    FAILS(weft_problem_complete(&p), WEFT_ERR_INVALID, "268435456 tensors");
    OK(weft_problem_init(&p, WEFT_OP_CONV, WEFT_PASS_FWD, 2));
    weft_problem_tensor(&p, WEFT_ROLE_DST)->dtype = 200;
    FAILS(weft_problem_complete(&p), WEFT_ERR_INVALID, "dst: data type is 200");
    p = test_problem("conv2d:fwd:f32:nchw:n1c8h9w9:o8k3:relu");
    p.groups = 5, p.device = 0, p.math = 0, p.step[0].lo = 3;
    before = p;
    FAILS(weft_problem_complete(&p), WEFT_ERR_INVALID, "groups is 5");
    CHECK(memcmp(&p, &before, sizeof(p)) == 0, "a refused problem changed");
}

TEST(a_completed_problem_can_be_changed) {
    weft_problem p = test_problem("conv2d:fwd:f32:nhwc:n1c8h9w9:o8k3g8"),
                 q = test_problem("conv2d:fwd:f32:nhwc:n4c8h20w9:o8k3g8");
    p.n = 4, p.in[1] = 20;
    OK(weft_problem_complete(&p));
    CHECK(memcmp(&p, &q, sizeof(p)) == 0, "not the problem of the new sizes");
    weft_problem_tensor(&p, WEFT_ROLE_SRC)->derived = 0; /* dims of the caller's own are checked */
    p.n = 5;
    FAILS(weft_problem_complete(&p), WEFT_ERR_INVALID, "src: shape is (4");
}

TEST(unused_fields_do_not_count) {
    weft_problem p = test_problem("relu2d:fwd:f32:nchw:n1c8h9w9"), q = p;
    q.kernel[2] = -77, q.groups = -3, q.attr[7] = 5, q.real[3] = 0.5;
    OK(weft_problem_complete(&q));
    CHECK(memcmp(&p, &q, sizeof(p)) == 0, "fields that relu does not use are part of the problem");
}

TEST(infinite_fields_read_back) {
    weft_problem p = test_problem("clip2d:fwd:f32:nchw:n1c8h9w9:lo-infhiinf"), q = WEFT_PROBLEM_INIT;
    char text[WEFT_TEXT_MAX];
    OK(weft_problem_format(&p, text, sizeof(text), NULL));
    OK(weft_problem_parse(&q, text));
    CHECK(memcmp(&p, &q, sizeof(p)) == 0, "'%s' reads back as another problem", text);
}

TEST(empty_tensors_have_one_form) {
    weft_problem p = test_problem("tanh1d:fwd:f32:ncw,dst=nwc:n1c0w5"), q = p;
    OK(weft_problem_complete(&q));
    CHECK(memcmp(&p, &q, sizeof(p)) == 0, "completing twice changes it");
}

/* ---------------------------------------------------------------- docs/problem.md */
static void put_fields(weft__text *t, const weft__op *op, int section) {
    size_t n = 0;
    for (size_t i = 0; i < op->nfields; i++) {
        const weft__field *f = &op->fields[i];
        if (f->section != section || (op->max_rank && f->min_rank > 2)) continue;
        weft__put(t, f->always ? "%s**%s**" : "%s%s", n++ ? " " : "", f->key);
    }
    weft__put(t, "%s | ", n ? "" : "-");
}

/* What the page says of lengths, words and fields is what the parser does. */
TEST(the_page_agrees_with_the_parser) {
    static char page[1 << 16], row[1024];
    FILE *f = fopen(WEFT_SOURCE "/docs/problem.md", "r");
    CHECK(f, "no docs/problem.md");
    page[fread(page, 1, sizeof(page) - 1, f)] = 0;
    fclose(f);
    snprintf(row, sizeof(row), "%d characters (`WEFT_TEXT_MAX`)", WEFT_TEXT_MAX);
    CHECK(strstr(page, row), "the page does not say: %s", row);
    weft__text words = {row, sizeof(row), 0};
    weft__put(&words, "dtype      = ");
    for (int i = 1; i < WEFT_DTYPE_COUNT; i++) weft__put(&words, "%s\"%s\"", i > 1 ? " | " : "", weft__dtype_name(i));
    CHECK(strstr(page, row), "the page does not have: %s", row);
    for (int op = 1; op < WEFT_OP_COUNT; op++) {
        weft__text t = {row, sizeof(row), 0};
        weft__put(&t, "| %s | ", weft__op_of(op)->name);
        put_fields(&t, weft__op_of(op), 0);
        put_fields(&t, weft__op_of(op), 1);
        CHECK(strstr(page, row), "the page has no row: %s", row);
    }
}

TEST(attributes_may_be_left_out) {
    static const char *const same[][2] = {
        {"lstm:fwd:f32:dense:t5n3c4o6", "lstm:fwd:f32:dense:t5n3c4o6:@cpu"},
        {"cross_entropy1d:fwd:f32:ncw:n2c8w9@cpu", "cross_entropy1d:fwd:f32:ncw:n2c8w9:@cpu"},
        {"gru:fwd:f32:dense:t5n3c4o6::strict", "gru:fwd:f32:dense:t5n3c4o6::strict@cpu"},
    };
    for (size_t i = 0; i < WEFT__COUNT(same); i++) {
        weft_problem p = test_problem(same[i][0]);
        char text[WEFT_TEXT_MAX];
        OK(weft_problem_format(&p, text, sizeof(text), NULL));
        CHECK(strcmp(text, same[i][1]) == 0, "%s became %s", same[i][0], text);
    }
}
