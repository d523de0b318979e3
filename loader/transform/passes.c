#define _GNU_SOURCE
#include "transform/passes.h"

#include "transform/float_resize.h"

static bool is_same(const fm_pass_key *a, const fm_pass_key *b) {
    return a->filter == b->filter && a->in_size == b->in_size && a->out_size == b->out_size &&
           a->first == b->first && a->n == b->n && a->span[0] == b->span[0] &&
           a->span[1] == b->span[1] && a->short_weights == b->short_weights &&
           a->floats == b->floats && a->mirror_input == b->mirror_input &&
           a->mirror_output == b->mirror_output;
}

static int compute(const fm_passes *passes, fm_pass *pass, fm_error *error) {
    fm_coeffs *const coeffs = &pass->coeffs;
    const fm_pass_key *const key = &pass->key;
    const float whole[2] = {0.0f, (float)key->in_size};
    coeffs->short_weights = key->short_weights;
    const int status =
        key->floats ? fm_float_weights_compute(coeffs, key->in_size, key->out_size, key->first,
                                               key->n, passes->counter, error)
                    : fm_coeffs_compute_part(coeffs, key->filter, key->in_size,
                                             key->span[1] > 0.0f ? key->span : whole, key->out_size,
                                             key->first, key->n, passes->counter, error);
    if (status) return status;
    int32_t end;
    fm_coeffs_span(coeffs, &pass->begin, &end);
    pass->length = end - pass->begin;
    fm_coeffs_shift(coeffs, pass->begin);
    if (key->floats) {
        /* Mirrored weights would change the order of additions; pixels are mirrored instead. */
        if (key->mirror_input) pass->begin = key->in_size - end;
        return FM_OK;
    }
    /* Mirroring the weights instead of the pixels costs nothing per row. */
    if (key->mirror_input) {
        fm_coeffs_mirror_input(coeffs, pass->length);
        pass->begin = key->in_size - end;
    }
    if (passes->evens_taps) fm_coeffs_even_taps(coeffs, pass->length);
    if (key->mirror_output) fm_coeffs_mirror_output(coeffs);
    return passes->prepare(coeffs, passes->counter, error);
}

int fm_passes_init(fm_passes *passes, fm_filter filter, bool evens_taps,
                   int (*prepare)(fm_coeffs *, fm_mem_counter *, fm_error *), int32_t n_kept,
                   int32_t reserve_px, int32_t out_size, fm_mem_counter *counter, fm_error *error) {
    passes->evens_taps = evens_taps;
    passes->prepare = prepare;
    passes->counter = counter;
    passes->n_kept = n_kept;
    fm_pass *const first = &passes->kept[0];
    first->key =
        (fm_pass_key){.filter = filter, .in_size = reserve_px, .out_size = out_size, .n = out_size};
    int status = compute(passes, first, error);
    for (int32_t i = 1; !status && i < n_kept; i++)
        status = fm_coeffs_reserve_as(&passes->kept[i].coeffs, &first->coeffs, counter, error);
    return status;
}

int fm_passes_get(fm_passes *passes, const fm_pass_key *key, const fm_pass **out, fm_error *error) {
    fm_pass *pass = &passes->kept[0];
    const uint64_t now = ++passes->clock;
    for (int32_t i = 0; i < passes->n_kept; i++) {
        fm_pass *const one = &passes->kept[i];
        if (one->found && is_same(&one->key, key)) {
            one->found = now;
            *out = one;
            return FM_OK;
        }
        if (one->found < pass->found) pass = one;
    }
    pass->key = *key;
    pass->found = 0;
    const int status = compute(passes, pass, error);
    if (status) return status;
    pass->found = now;
    *out = pass;
    return FM_OK;
}

void fm_passes_fini(fm_passes *passes) {
    for (int32_t i = 0; i < FM_PASSES_KEPT; i++) fm_coeffs_fini(&passes->kept[i].coeffs);
    *passes = (fm_passes){0};
}
