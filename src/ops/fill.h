/* Data that means something, for measurements, benchmarks and tests: offsets that rise, columns and labels that exist,
 * variances above 0. An operator's record has a fill for such inputs; of any other input any value will do. */
#ifndef WEFT_OPS_FILL_H
#define WEFT_OPS_FILL_H

#include "ref/item.h"

/* The next random number of a seed: a counter through a mixer. */
static inline uint64_t weft__draw(uint64_t *seed) {
    uint64_t x = *seed += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}
/* 0 .. n - 1; 0 if there is none. */
static inline int64_t weft__draw_below(uint64_t *seed, int64_t n) {
    return n > 0 ? (int64_t)(weft__draw(seed) % (uint64_t)n) : 0;
}
static inline bool weft__draw_chance(uint64_t *seed, int percent) { return weft__draw_below(seed, 100) < percent; }

/* Every element i of the tensor t in canonical order, its place `at` and its coordinates. */
#define WEFT__EACH(t, i, at, coord)                         \
    for (int64_t i = 0, at = 0, coord[WEFT_MAX_RANK] = {0}; \
         i < item_numel(t) && ((at = item_at((t), i, coord)), true); i++)

#endif
