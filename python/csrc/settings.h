/* What weft.backends sets, for every call of the process: as torch.backends does. */
#ifndef WEFT_TORCH_SETTINGS_H
#define WEFT_TORCH_SETTINGS_H

#include "binding.h"

typedef struct wt_config {
    int32_t mode;           /* weft_mode, for a problem that is not known yet */
    int32_t delegate;       /* PyTorch's own code is a candidate */
    int32_t math;           /* weft_math; 0: the default, and PyTorch's flags for its code */
    uint32_t verbose;       /* WEFT_LOG_* */
    size_t workspace_limit; /* bytes; 0: the default, WEFT_NO_LIMIT: none */
    double measure_seconds; /* time limit of one measurement; 0: the default */
    char pin[128];          /* a kernel's name, used where it applies; "": none */
} wt_config;

const wt_config *wt_settings(void);
/* The plan by the settings, among these engines; once: nothing is measured. NULL: see weft_last_error. */
weft_plan *wt_plan_by(weft_problem *p, bool once, uint32_t engines);
/* The same for a call, without PyTorch's code unless `external`. */
weft_plan *wt_plan_among(wt_call *call, bool external);
extern const weft_external wt_external;
void wt_torch_rates(void *user, const weft_problem *p, weft_rates *rates); /* torch_rates.c */
/* torch_conv.c: PyTorch's convolution on the CPU. way: through its code; ns of a call; operations
 * at the peak, beside those that the problem asks for. */
typedef struct wt_conv_work {
    int way;
    double ns, flops, asked;
} wt_conv_work;
wt_conv_work wt_torch_conv(const weft_problem *p, bool last);
int wt_threads(void); /* of PyTorch */
void wt_follow_threads(void);
/* Until the next one, PyTorch's code takes part in this thread's plans: run(state) runs it once. NULL: no more. */
typedef bool (*wt_rehearsal)(const void *state);
void wt_rehearse(wt_rehearsal run, const void *state);
bool wt_never(const void *state);             /* of NULL: nothing is run for an estimate */
double wt_external_ns(const weft_problem *p); /* estimate of PyTorch's code, in that state */

#endif
