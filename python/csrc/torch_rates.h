/* What the guesses of PyTorch's time have in common: torch_rates.c asks torch_cpu.c and torch_cuda.c. */
#ifndef WEFT_TORCH_RATES_H
#define WEFT_TORCH_RATES_H

#include <math.h>

#include "core/internal.h"
#include "settings.h"

weft_rates wt_guess_cpu(const weft_problem *p);
weft_rates wt_guess_cuda(const weft_problem *p);

/* Of the data, not of the weights, which are channels-first by default. */
static inline bool wt_rates_last(const weft_problem *p) {
    for (int i = 0; i < p->ntensors; i++) {
        int role = p->tensor[i].role;
        if (role == WEFT_ROLE_SRC || role == WEFT_ROLE_DIFF_DST) return p->tensor[i].layout == WEFT_LAYOUT_LAST;
    }
    return false;
}

#endif
