/* A fuzzer's main for compilers without libFuzzer: deterministic random mutation of a list of seeds.
 *   fuzz_x [--seconds T | --runs N] [--seed S]
 * The same seed gives the same inputs. An input that fails is what the target prints before it aborts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fuzz.h"

enum { ROOM = 4096 };

static uint64_t state;

static uint64_t random_below(uint64_t n) {
    state += 0x9e3779b97f4a7c15u;
    uint64_t x = state;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (x ^ x >> 31) % n;
}

static const char *const pieces[] = {"0",
                                     "1",
                                     "-1",
                                     "9223372036854775807",
                                     "9223372036854775808",
                                     "99999999999999999999",
                                     "1099511627776",
                                     "1e308",
                                     "nan",
                                     "inf",
                                     "-0",
                                     "x",
                                     "+",
                                     ":",
                                     "@",
                                     ",",
                                     "=",
                                     "/",
                                     "[",
                                     "]",
                                     ".",
                                     "_",
                                     "bias",
                                     "relu",
                                     "clip0_6",
                                     "strict",
                                     "tf32",
                                     "f16",
                                     "bf16",
                                     "nhwc",
                                     "nchw",
                                     "src=",
                                     "dst=",
                                     "weights=",
                                     "bwd",
                                     "bwd_data",
                                     "conv1d",
                                     "conv3d",
                                     "cuda",
                                     "cuda1",
                                     "k3x5",
                                     "p1+0x2",
                                     "d2",
                                     "g8",
                                     "\n",
                                     " ",
                                     "\t",
                                     "\r",
                                     "#",
                                     "%s",
                                     "\xff",
                                     "t2",
                                     "v1"};

static size_t splice(uint8_t *data, size_t n, size_t at, size_t cut, const void *with, size_t length) {
    if (n - cut + length > ROOM) return n;
    memmove(data + at + length, data + at + cut, n - at - cut);
    memcpy(data + at, with, length);
    return n - cut + length;
}

static size_t mutate(uint8_t *data, size_t n) {
    size_t at = random_below(n + 1), left = n - at;
    switch (random_below(6)) {
    case 0:
        if (left) data[at] ^= (uint8_t)(1u << random_below(8));
        return n;
    case 1:
        if (left) data[at] = (uint8_t)random_below(256);
        return n;
    case 2:
        return splice(data, n, at, random_below((left < 8 ? left : 8) + 1), "", 0);
    case 3: {
        const char *piece = pieces[random_below(sizeof(pieces) / sizeof(pieces[0]))];
        return splice(data, n, at, random_below((left < 4 ? left : 4) + 1), piece, strlen(piece));
    }
    case 4: { /* repeat a part of itself */
        uint8_t copy[64];
        size_t from = random_below(n + 1), length = random_below((n - from < 64 ? n - from : 64) + 1);
        memcpy(copy, data + from, length);
        return splice(data, n, at, 0, copy, length);
    }
    default: { /* another digit, which stays valid most often */
        size_t i = at;
        while (i < n && (data[i] < '0' || data[i] > '9')) i++;
        if (i < n) data[i] = (uint8_t)('0' + random_below(10));
        return n;
    }
    }
}

static double seconds_since(const struct timespec *start) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - start->tv_sec) + (double)(now.tv_nsec - start->tv_nsec) * 1e-9;
}

int main(int argc, char **argv) {
    double seconds = 0;
    unsigned long long runs = 0, done = 0;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--seconds") == 0)
            seconds = atof(argv[i + 1]);
        else if (strcmp(argv[i], "--runs") == 0)
            runs = strtoull(argv[i + 1], NULL, 10);
        else if (strcmp(argv[i], "--seed") == 0)
            state = strtoull(argv[i + 1], NULL, 10);
        else
            argc = 0;
    }
    if (argc % 2 == 0) {
        fprintf(stderr, "usage: %s [--seconds T | --runs N] [--seed S]\n", argv[0]);
        return 2;
    }
    if (seconds <= 0 && !runs) runs = 200000;
    static uint8_t data[ROOM + 1];
    size_t seeds = 0;
    while (fuzz_seeds[seeds]) seeds++;
    struct timespec start;
    clock_gettime(CLOCK_MONOTONIC, &start);
    while ((runs == 0 || done < runs) && (done % 256 || seconds <= 0 || seconds_since(&start) < seconds)) {
        const char *seed = fuzz_seeds[random_below(seeds)];
        size_t n = strlen(seed);
        memcpy(data, seed, n);
        for (uint64_t k = done < seeds ? 0 : random_below(8); k > 0; k--) n = mutate(data, n);
        LLVMFuzzerTestOneInput(data, n);
        done++;
    }
    printf("%llu inputs, %.1f s\n", done, seconds_since(&start));
    return 0;
}
