/* The machine, as estimates see it. Rates are rough on purpose: only ratios between kernels matter. */
#include <ctype.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "core/internal.h"

/* Sets of features, and by these names what each row of cpu/isa.h needs. */
#define FEATURE_BIT(ID, ...) ID = 1u << WEFT__FEATURE_##ID,
#define ISA_FEATURES(arg, ID, name, vectors, files, gflops, features) [WEFT__##ID] = features,
#define ISA_GFLOPS(arg, ID, name, vectors, files, gflops, features) [WEFT__##ID] = gflops,
enum { WEFT__FEATURE_LIST(FEATURE_BIT) NO_FEATURES = 0 };
static const uint32_t needed[WEFT__ISA_COUNT] = {WEFT__ISA_LIST(ISA_FEATURES, )};
static const double nominal_gflops[WEFT__ISA_COUNT] = {WEFT__ISA_LIST(ISA_GFLOPS, )};

#if defined(__x86_64__) && !defined(WEFT__ONLY_SCALAR)
/* By its bit: clang's builtin does not know the name. */
static bool has_f16c(void) {
    unsigned a, b, c = 0, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

static uint32_t cpu_features(void) {
    uint32_t set = NO_FEATURES;
#if defined(__x86_64__)
    __builtin_cpu_init();
#endif
#define FEATURE_TEST(ID, name, supported) set |= supported ? ID : 0;
    WEFT__FEATURE_LIST(FEATURE_TEST)
    return set;
}

bool weft__hw_runs(const weft__hw *hw, weft__isa isa) { return !(needed[isa] & ~hw->features); }

static void set_features(weft__hw *hw, uint32_t features) {
    hw->features = features;
    for (int i = 0; i < WEFT__ISA_COUNT; i++)
        if (weft__hw_runs(hw, (weft__isa)i)) hw->isa = (weft__isa)i;
}

void weft__hw_limit(weft__hw *hw, weft__isa isa) { set_features(hw, hw->features & needed[isa]); }

static size_t cache_size(int name, size_t fallback) {
    long v = sysconf(name);
    return v > 0 ? (size_t)v : fallback;
}

/* The last level as one core sees it: sysconf sums the parts of some CPUs, ten times too much on a slice of a large
 * one. */
static size_t last_level(size_t fallback) {
    size_t kb = 0;
    FILE *f = fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "r");
    if (!f) return fallback;
    if (fscanf(f, "%zuK", &kb) != 1) kb = 0;
    fclose(f);
    return kb ? kb << 10 : fallback;
}

void weft__hw_detect(weft__hw *hw) {
    memset(hw, 0, sizeof(*hw));
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
#ifdef CPU_COUNT
    cpu_set_t allowed; /* a container or taskset may give fewer than there are */
    if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0) cores = CPU_COUNT(&allowed);
#endif
    set_features(hw, cpu_features());
    hw->threads = hw->cores = cores > 0 ? (int)WEFT__MIN(cores, 1024) : 1;
#ifdef _SC_LEVEL1_DCACHE_SIZE
    hw->l1 = cache_size(_SC_LEVEL1_DCACHE_SIZE, 32u << 10);
    hw->l2 = cache_size(_SC_LEVEL2_CACHE_SIZE, 1u << 20);
    hw->l3 = last_level(cache_size(_SC_LEVEL3_CACHE_SIZE, 32u << 20));
#else
    (void)cache_size;
    hw->l1 = 32u << 10, hw->l2 = 1u << 20, hw->l3 = last_level(32u << 20);
#endif
    const int threads = hw->threads;
    weft__hw_nominal(hw);
    hw->threads = threads;
    hw->gbs = WEFT__MIN(hw->gbs * threads, 200.0);
}

void weft__hw_nominal(weft__hw *hw) {
    hw->threads = 1;
    hw->gbs = 12;
    memcpy(hw->gflops, nominal_gflops, sizeof(hw->gflops));
}

/* The model's name from the system, in letters, digits and dashes. */
static char model[80] = "unknown";
static pthread_once_t model_once = PTHREAD_ONCE_INIT;
static void read_model(void) {
    char *text = model;
    size_t capacity = sizeof(model);
    FILE *f = fopen("/proc/cpuinfo", "r");
    if (!f) return;
    char line[256];
    while (fgets(line, sizeof(line), f)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) || !colon) continue;
        size_t n = 0;
        for (char *c = colon + 1; *c && n + 1 < capacity; c++)
            if (isalnum((unsigned char)*c))
                text[n++] = *c;
            else if (n && text[n - 1] != '-')
                text[n++] = '-';
        while (n && text[n - 1] == '-') n--;
        text[n] = 0;
        break;
    }
    fclose(f);
}

void weft__device_name(const weft__hw *hw, int device, char *text, size_t capacity) {
    if (device == WEFT_DEVICE_CUDA && hw->gpu) {
        snprintf(text, capacity, "cuda:%s:cc%d", hw->gpu->name, hw->gpu->cc);
        for (char *c = text; *c; c++)
            if (isspace((unsigned char)*c)) *c = '-';
        return;
    }
    pthread_once(&model_once, read_model);
    snprintf(text, capacity, "cpu:%s:%s", model, weft__isa_names[hw->isa]);
}
