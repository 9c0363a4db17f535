/* The CUDA engine as far as it goes without a GPU: every embedded source through NVRTC, one problem for each kernel and
 * one generation, or with WEFT_SLOW=1 (make slow) every problem here, every variant and three generations; and the
 * files that keep compiled code. WEFT_NVRTC may name the library; WEFT_COMPILE=NAME compiles only the kernels with NAME
 * in theirs. */
#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cuda/driver.h"
#include "test.h"

enum { HOPPER = 1 };
static const weft__gpu generations[] = {
    /* as the driver describes such devices */
    {0, 75, 40, (size_t)4 << 20, 64 << 10, 300, 8000, "fake Turing"},
    {0, 90, 132, (size_t)50 << 20, 227 << 10, 4300, 60000, "fake Hopper"},
    {0, 100, 148, (size_t)126 << 20, 227 << 10, 7000, 70000, "fake Blackwell"},
};

static const char *const problems[] = {
    /* what changes defines: passes, data types, epilogues, layouts */
    "conv2d:fwd:f32:nchw:n64c128h56w56:o128k3p1g128@cuda",
    "conv2d:fwd:f32:nchw:n2c3h17w9:o3k3p0+2x2+0g3:bias+relu@cuda",
    "conv2d:fwd:f32:nchw:n2c3h300w401:o3k3p1g3:clip-1_6+bias@cuda",
    "conv2d:fwd:f32:nhwc:n64c128h56w56:o128k3p1g128@cuda",
    "conv2d:fwd:f32:nhwc:n2c7h17w9:o7k3p2g7:bias+relu@cuda",
    "conv3d:bwd:bf16:ncdhw:n1c4d5h6w7:o8k3s2p1g2:bias@cuda",
    "conv2d:bwd:bf16:nhwc:n2c8h14w14:o8k7p3g8:bias@cuda",
    "conv2d:fwd:f16:nhwc:n2c16h14w14:o16k5p2g16:bias@cuda",
    "conv2d:fwd:bf16:nchw:n2c3h32w32:o20k8s8@cuda",
    "conv2d:bwd_weights:f16:nchw:n2c3h32w32:o20k8s8:bias@cuda",
    "conv2d:bwd:bf16:nchw:n2c3h32w32:o20k8s8:bias@cuda",
    "relu2d:fwd:f32:nchw:n2c3h9w9@cuda",
    "clip2d:bwd:f16:nhwc:n2c3h9w9:hi6@cuda",
    "tanh1d:fwd:f64:ncw:n2c3w9@cuda",
    "sigmoid3d:bwd:bf16:ncdhw:n2c3d4h9w9@cuda",
    "ncrelu2d:fwd:f32:nchw:n2c3h9w9@cuda",
    "max_pool2d:bwd:f32:nchw:n2c3h9w9:k3s2p1@cuda",
    "avg_pool2d:fwd:f16:nhwc:n2c3h9w9:k3s2p1@cuda",
    "adaptive_avg_pool3d:fwd:f32:ncdhw:n2c3d4h9w9:to2@cuda",
    "im2col2d:fwd:bf16:nchw:n2c3h9w9:k3@cuda",
    "col2im1d:fwd:f32:ncw:n2c3w9:k3@cuda",
    "dgmm:bwd:f32:dense:n2h3w4:side1@cuda",
    "cdgmm:bwd:f64:dense:n2h3w4:side0@cuda",
    "softmax2d:fwd:f32:nchw:n2c19h8w8@cuda",
    "log_softmax1d:bwd:f16:nwc:n2c19w8@cuda",
    "cross_entropy2d:fwd:f32:nchw:n2c19h8w8:weighted1smooth0.1@cuda",
    "batch_norm2d:fwd:bf16,weights=f32,bias=f32:nhwc:n8c64h7w7:train1@cuda",
    "lrn2d:bwd:f32:nchw:n2c96h5w5:size5@cuda",
    "partial_conv2d:fwd:f16,mask=u8:nchw:n2c4h7w9:o6k3p1g2mask2:bias+relu@cuda",
    "sparse_conv2d:bwd:f32:nhwc:n2c4h7w9:o6k3p1g2nnz20stretched1:bias@cuda",
};

static char text_log[4096];
static void keep_log(void *user, int topic, const char *line) {
    (void)user, (void)topic;
    snprintf(text_log, sizeof(text_log), "%s", line);
}

static char folder[64];
static weft_ctx *context(const char *cache_dir, const char *nvrtc) {
    weft_ctx *ctx;
    weft_ctx_opts opts = WEFT_CTX_OPTS_INIT;
    opts.threads = 1;
    opts.verbose = WEFT_LOG_TUNE;
    opts.log = keep_log;
    opts.cache_dir = cache_dir;
    opts.nvrtc = nvrtc;
    OK(weft_ctx_create(&ctx, &opts));
    return ctx;
}

/* A context with NVRTC at hand and an empty folder for its code; ends the test where there is no NVRTC. */
static weft_ctx *open_compiler(void) {
    snprintf(folder, sizeof(folder), "/tmp/weft-cuda-XXXXXX");
    CHECK(mkdtemp(folder), "%s", folder);
    weft_ctx *ctx = context(folder, NULL);
    weft__nvrtc nvrtc;
    if (weft__nvrtc_open(ctx, &nvrtc) == WEFT_OK) return ctx;
    weft_ctx_release(ctx);
    rmdir(folder);
    SKIP("NO CUDA SOURCE WAS COMPILED: %s", weft_last_error());
}

/* Calls visit on every file of the folder; how many there were. */
static int each_file(void (*visit)(const char *path)) {
    DIR *d = opendir(folder);
    CHECK(d, "%s", folder);
    int n = 0;
    for (struct dirent *e; (e = readdir(d));) {
        char path[400];
        if (e->d_name[0] == '.') continue;
        snprintf(path, sizeof(path), "%s/%s", folder, e->d_name);
        visit(path);
        n++;
    }
    closedir(d);
    return n;
}

static void drop(const char *path) { unlink(path); }
static void leave(const char *path) { (void)path; }
static void empty(const char *path) { CHECK(truncate(path, 0) == 0, "%s", path); }
static void halve(const char *path) {
    struct stat s;
    CHECK(stat(path, &s) == 0 && truncate(path, s.st_size / 2) == 0, "%s", path);
}
static void lengthen(const char *path) {
    FILE *f = fopen(path, "ab");
    CHECK(f, "%s", path);
    fputc(0, f);
    fclose(f);
}
static void flip(const char *path) { /* one bit of the code */
    FILE *f = fopen(path, "r+b");
    CHECK(f && fseek(f, -100, SEEK_END) == 0, "%s", path);
    int c = fgetc(f);
    fseek(f, -1, SEEK_CUR);
    fputc(c ^ 4, f);
    fclose(f);
}

static void close_compiler(weft_ctx *ctx) {
    weft_ctx_release(ctx);
    each_file(drop);
    rmdir(folder);
}

static const char tiny[] = "extern \"C\" __global__ void k(float *p) { p[0] = SCALE; }\n";

/* Whether an embedded file, or an embedded header that it includes, has `entry` in its text. */
static bool has_entry(const weft__embedded *file, const char *entry) {
    if (memmem(file->text, file->bytes, entry, strlen(entry))) return true;
    for (size_t i = 0; i < weft__embedded_count; i++) {
        char include[128];
        int n = snprintf(include, sizeof(include), "#include \"%s\"", weft__embedded_files[i].name);
        const weft__embedded *header = &weft__embedded_files[i];
        if (memmem(file->text, file->bytes, include, (size_t)n) && has_entry(header, entry)) return true;
    }
    return false;
}

static void compile_part(weft_ctx *ctx, const weft__kernel *k, const weft__part *part, const weft__hw *hw,
                         const weft_problem *p, const void *params) {
    char arch[16], defines[2048] = "";
    weft__text t = {defines, sizeof(defines), 0};
    if (part->defines) part->defines(p, hw, params, &t);
    snprintf(arch, sizeof(arch), "sm_%d%s", hw->gpu->cc, part->arch_specific && hw->gpu->cc >= 90 ? "a" : "");
    size_t size = 0;
    const weft__embedded *source = weft__embedded_find(part->source);
    CHECK(source, "%s: its source is %s, allowed: a file of src/cuda/kernels", k->name, part->source);
    CHECK(has_entry(source, part->entry), "%s: %s does not define %s", k->name, part->source, part->entry);
    OK(weft__cuda_compile(ctx, part->source, defines, arch, &size));
    CHECK(size > 1000, "%s %s: %zu bytes", k->name, arch, size);
}

/* false: the kernel does not take that problem on that GPU. */
static bool compile_for(weft_ctx *ctx, const weft__kernel *k, const weft__gpu *gpu, const weft_problem *p) {
    char text[WEFT_TEXT_MAX];
    weft__hw hw = {.threads = 1, .gpu = gpu};
    weft__decision d;
    bool taken = false;
    for (int v = 0; v < weft__kernel_variants(k) && (!taken || test_slow()); v++) {
        if (weft__kernel_plan(ctx, k, v, p, &hw, &d)) continue;
        harness_text(p, text);
        CHECK(d.ns > 0, "%s on %s", k->name, text);
        for (int i = 0; k->parts[i].source; i++) compile_part(ctx, k, &k->parts[i], &hw, p, d.params);
        taken = true;
    }
    return taken;
}

/* The problems above that it takes, the first alone unless slow; where there is none, the first random one: a new
 * kernel needs no new line here. */
static int compile_kernel(weft_ctx *ctx, const weft__kernel *k, const weft__gpu *gpu) {
    int taken = 0;
    weft_problem p;
    for (size_t i = 0; i < WEFT__COUNT(problems) && (!taken || test_slow()); i++) {
        p = test_problem(problems[i]);
        taken += compile_for(ctx, k, gpu, &p);
    }
    for (uint64_t seed = 0; !taken && seed < 200000; seed++)
        if (harness_random(&p, seed, WEFT_DEVICE_CUDA)) taken += compile_for(ctx, k, gpu, &p);
    return taken;
}

TEST(every_kernel_compiles) {
    weft_ctx *ctx = open_compiler();
    const weft__kernel *const *list;
    size_t n = weft__kernels(0, &list), cuda = 0;
    const char *only = getenv("WEFT_COMPILE");
    for (size_t i = 0; i < n; i++) {
        if (list[i]->engine != WEFT_ENGINE_CUDA || (only && !strstr(list[i]->name, only))) continue;
        cuda++;
        int taken = compile_kernel(ctx, list[i], &generations[HOPPER]);
        for (size_t g = 0; g < WEFT__COUNT(generations) && (test_slow() || !taken); g++)
            if (g != HOPPER) taken += compile_kernel(ctx, list[i], &generations[g]);
        CHECK(taken, "%s: neither a problem here nor a random one is for it", list[i]->name);
    }
    CHECK(cuda || !only, "WEFT_COMPILE is '%s', allowed: a part of the name of a kernel that `weft list` shows", only);
    CHECK(cuda >= 2 || only, "%zu CUDA kernels", cuda);
    close_compiler(ctx);
}

TEST(a_wrong_source_gives_its_first_errors) {
    weft_ctx *ctx = open_compiler();
    size_t size = 1;
    FAILS(weft__cuda_compile(ctx, "this is no program;\n", "", "sm_90", &size), WEFT_ERR_INTERNAL,
          "nvrtc|source(1)|error|sm_90");
    CHECK(size == 0, "%zu", size);
    close_compiler(ctx);
}

TEST(a_wrong_architecture_is_an_error) {
    weft_ctx *ctx = open_compiler();
    size_t size;
    FAILS(weft__cuda_compile(ctx, tiny, "-DSCALE=1", "sm_12345", &size), WEFT_ERR_DEVICE, "sm_12345");
    close_compiler(ctx);
}

TEST(no_nvrtc_has_a_reason) {
    weft_ctx *ctx = context("", "/nowhere/libnvrtc.so");
    size_t size;
    FAILS(weft__cuda_compile(ctx, tiny, "-DSCALE=1", "sm_90", &size), WEFT_ERR_UNSUPPORTED, "libnvrtc|/nowhere");
    weft_ctx_release(ctx);
}

static void expect(weft_ctx *ctx, const char *defines, const char *arch, const char *how) {
    size_t size;
    OK(weft__cuda_compile(ctx, tiny, defines, arch, &size));
    CHECK(strstr(text_log, how), "%s %s: wanted \"%s\", the log says \"%.1000s\"", defines, arch, how, text_log);
}

TEST(code_is_kept_by_source_options_and_architecture) {
    weft_ctx *ctx = open_compiler();
    expect(ctx, "-DSCALE=1", "sm_90", "compiled");
    expect(ctx, "-DSCALE=1", "sm_90", "found");
    expect(ctx, "-DSCALE=2", "sm_90", "compiled");
    expect(ctx, "-DSCALE=1", "sm_75", "compiled");
    expect(ctx, "-DSCALE=1", "sm_90", "found");
    CHECK(each_file(leave) == 3, "%d files", each_file(leave));
    weft_ctx *other = context(folder, NULL);
    expect(other, "-DSCALE=2", "sm_90", "found");
    weft_ctx_release(other);
    close_compiler(ctx);
}

TEST(a_damaged_file_is_compiled_again) {
    static const struct {
        const char *name;
        void (*damage)(const char *);
    } ways[] = {
        {"empty", empty},
        {"cut", halve},
        {"longer", lengthen},
        {"a bit flipped", flip},
    };
    weft_ctx *ctx = open_compiler();
    expect(ctx, "-DSCALE=1", "sm_90", "compiled");
    for (size_t i = 0; i < WEFT__COUNT(ways); i++) {
        expect(ctx, "-DSCALE=1", "sm_90", "found");
        CHECK(each_file(ways[i].damage) == 1, "%s", ways[i].name);
        expect(ctx, "-DSCALE=1", "sm_90", "compiled");
    }
    expect(ctx, "-DSCALE=1", "sm_90", "found");
    close_compiler(ctx);
}

TEST(a_folder_that_takes_no_files_is_not_fatal) {
    weft_ctx *ctx = open_compiler();
    char path[128];
    snprintf(path, sizeof(path), "%s/file", folder);
    FILE *f = fopen(path, "w");
    CHECK(f, "%s", path);
    fclose(f);
    snprintf(path, sizeof(path), "%s/file/sub", folder);
    weft_ctx *other = context(path, NULL), *none = context("", NULL);
    for (int i = 0; i < 2; i++) {
        expect(other, "-DSCALE=1", "sm_90", "could not be kept");
        expect(none, "-DSCALE=1", "sm_90", "not kept");
    }
    weft_ctx_release(none);
    weft_ctx_release(other);
    close_compiler(ctx);
}

TEST(the_folder_follows_the_environment) {
    static const struct {
        const char *opts, *weft, *xdg, *home, *want;
    } cases[] = {
        {"/a", "/b", "/c", "/d", "/a"},
        {"", "/b", "/c", "/d", NULL},
        {NULL, "/b", "/c", "/d", "/b"},
        {NULL, "", "/c", "/d", NULL},
        {NULL, NULL, "/c", "/d", "/c/weft"},
        {NULL, NULL, "relative", "/d", "/d/.cache/weft"},
        {NULL, NULL, NULL, "/d", "/d/.cache/weft"},
        {NULL, NULL, NULL, NULL, NULL},
    };
    static const char *const names[] = {"WEFT_CACHE_DIR", "XDG_CACHE_HOME", "HOME"};
    char *before[WEFT__COUNT(names)];
    for (size_t i = 0; i < WEFT__COUNT(names); i++) before[i] = getenv(names[i]) ? strdup(getenv(names[i])) : NULL;
    for (size_t i = 0; i < WEFT__COUNT(cases); i++) {
        const char *values[] = {cases[i].weft, cases[i].xdg, cases[i].home};
        for (size_t v = 0; v < WEFT__COUNT(names); v++) values[v] ? setenv(names[v], values[v], 1) : unsetenv(names[v]);
        weft_ctx *ctx = context(cases[i].opts, NULL);
        char dir[128] = "";
        bool wanted = weft__store_dir(ctx, dir, sizeof(dir));
        weft_ctx_release(ctx);
        CHECK(wanted == !!cases[i].want && (!wanted || strcmp(dir, cases[i].want) == 0), "case %zu: %s", i, dir);
    }
    for (size_t i = 0; i < WEFT__COUNT(names); i++) {
        before[i] ? setenv(names[i], before[i], 1) : unsetenv(names[i]);
        free(before[i]);
    }
}

TEST(without_a_gpu_the_reason_is_given) {
    weft_ctx *ctx = context("", NULL);
    const char *why = NULL;
    char text[8192];
    weft_plan *plan = NULL;
    weft_problem p = test_problem(problems[0]);
    OK(weft_ctx_describe(ctx, text, sizeof(text), NULL));
    CHECK(strstr(text, "\ncuda: ") && strstr(text, "\nnvrtc: "), "%.1000s", text);
    bool here = weft__ctx_cuda(ctx, &why) != NULL;
    if (!here) FAILS(weft_plan_create(&plan, ctx, &p, NULL), WEFT_ERR_UNSUPPORTED, why);
    weft_ctx_release(ctx);
    if (here) SKIP("this machine has a GPU");
}
