/* The settings of a call of an operator with a seat, read from its key, where each is a word that says what it is and
 * its values. */
#include <string.h>

#include "entry.h"

typedef struct cursor {
    const int64_t *at, *end;
} cursor;

static bool next_int(cursor *c, int64_t *to) {
    if (c->end - c->at < 2 || c->at[0] != ENTRY_IS_INT) return false;
    *to = c->at[1];
    c->at += 2;
    return true;
}

static bool next_real(cursor *c, double *to) {
    if (c->end - c->at < 2 || c->at[0] != ENTRY_IS_FLOAT) return false;
    memcpy(to, &c->at[1], sizeof(*to));
    c->at += 2;
    return true;
}

static bool next_bool(cursor *c, int64_t *to) {
    if (c->at == c->end || (*c->at != ENTRY_IS_FALSE && *c->at != ENTRY_IS_TRUE)) return false;
    *to = *c->at++ == ENTRY_IS_TRUE;
    return true;
}

static bool next_int_or_none(cursor *c, int64_t *to, int64_t *given) {
    *given = c->at != c->end && *c->at != ENTRY_IS_NONE;
    *to = 0;
    if (*given) return next_int(c, to);
    return c->at++ != c->end;
}

/* One value for every axis, or one for each; none only where that is allowed. */
static bool next_axes(cursor *c, int rank, bool may_lack, wt_list *to) {
    int64_t one;
    to->size = (size_t)rank;
    if (next_int(c, &one)) {
        for (int a = 0; a < rank; a++) to->item[a] = one;
        return true;
    }
    if (c->at == c->end || (*c->at & 0xff) != ENTRY_IS_INTS) return false;
    const int64_t n = *c->at++ >> 8;
    for (int a = 0; a < rank && n; a++) to->item[a] = c->at[n == 1 ? 0 : a];
    c->at += n;
    if (!n) to->size = 0;
    return n == rank || n == 1 || (may_lack && !n);
}

/* 'valid', or 'same' where both sides get as much; *same: it is to be computed. */
static bool next_padding(cursor *c, int rank, wt_list *to, bool *same) {
    char word[9] = "";
    *same = false;
    if (c->end - c->at < 2 || (*c->at & 0xff) != ENTRY_IS_TEXT) return next_axes(c, rank, false, to);
    memcpy(word, c->at + 1, 8);
    c->at += 2;
    *same = !strcmp(word, "same");
    memset(to, 0, sizeof(*to));
    to->size = (size_t)rank;
    return *same || !strcmp(word, "valid");
}

static bool pad_same(const wt_tensor *w, entry_record *r) {
    for (int a = 0; a < (int)w->rank - 2; a++) {
        const int64_t total = r->list[SEAT_DILATION].item[a] * (w->sizes[2 + a] - 1);
        if (r->list[SEAT_STRIDE].item[a] != 1 || total & 1) return false;
        r->list[SEAT_PADDING].item[a] = total / 2;
    }
    return true;
}

/* The arguments one after the other; no stride of pooling is that of the kernel. */
#define NEXT_TENSOR(at) (void)0
#define NEXT_OPTIONAL(at) (void)0
#define NEXT_LIST(at) ok = ok && next_axes(&c, rank, !conv && SEAT_##at == SEAT_STRIDE, &r->list[SEAT_##at])
#define NEXT_PADS(at) ok = ok && next_padding(&c, rank, &r->list[SEAT_##at], &same)
#define NEXT_BOOL(at) ok = ok && next_bool(&c, &r->value[SEAT_##at])
#define NEXT_INT(at) ok = ok && next_int(&c, &r->value[SEAT_##at])
#define NEXT_SYM(at) NEXT_INT(at)
#define NEXT_MAYBE(at) ok = ok && next_int_or_none(&c, &r->value[SEAT_##at], &r->value[SEAT_##at + 1])
#define NEXT_NO_TYPE() (void)0
#define NEXT_REAL(at) ok = ok && next_real(&c, &r->real[SEAT_##at])

bool entry_read_settings(const entry_call *k, entry_record *r) {
    cursor c = {k->word + k->settings, k->word + k->words};
    const int rank = k->front->rank;
    const bool conv = k->front->kind == ENTRY_CONV || k->front->kind == ENTRY_CONV_TRANSPOSE;
    bool ok = k->in[0].handle && (!conv || (k->in[1].handle && k->in[1].rank == rank + 2)), same = false;
    if (conv) {
        r->value[SEAT_TRANSPOSED] = k->front->kind == ENTRY_CONV_TRANSPOSE;
        r->list[SEAT_EXTRA] = (wt_list){.size = (size_t)rank};
    }
    switch (k->front->kind) {
#define X(kind, args) \
    case kind:        \
        args(NEXT);   \
        break;
        ENTRY_SETTINGS(X)
#undef X
    case ENTRY_UNARY:
    case ENTRY_OTHER:
        return false;
    }
    return ok && (!same || pad_same(&k->in[1], r)) && c.at == c.end;
}
