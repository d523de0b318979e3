#include "transform/scaled.h"

int32_t fm_scaled_divisor(const fm_geometry *geometry, fm_filter filter, int32_t most) {
    const fm_box *const source = &geometry->source;
    int32_t divisor = most;
    if (filter == FM_FILTER_NEAREST) return 1;
    while (divisor > 1 && ((int64_t)geometry->resized_width * divisor > source->width ||
                           (int64_t)geometry->resized_height * divisor > source->height))
        divisor /= 2;
    return divisor;
}

/* Reduces the range of *n pixels from *first on. span: the edges of the same part in the new range;
 * 0, 0 if they are the range's own. */
static void reduce(int32_t *first, int32_t *n, int32_t divisor, float span[2]) {
    const int32_t begin = *first, end = *first + *n;
    *first = begin / divisor;
    *n = (end + divisor - 1) / divisor - *first;
    /* Multiples of 1/8 below 2^16: exact. */
    span[0] = (float)(begin - *first * divisor) / (float)divisor;
    span[1] = (float)(end - *first * divisor) / (float)divisor;
    if (span[0] == 0.0f && span[1] == (float)*n) span[1] = 0.0f;
}

void fm_scaled_reduce(fm_geometry *geometry, int32_t divisor) {
    fm_box *const source = &geometry->source;
    float *const columns = geometry->resized_columns;
    if (divisor == 1) return;
    reduce(&source->left, &source->width, divisor, columns);
    reduce(&source->top, &source->height, divisor, geometry->resized_rows);
    if (geometry->mirror_source && columns[1] > 0.0f) {
        const float first = (float)source->width - columns[1];
        columns[1] = (float)source->width - columns[0];
        columns[0] = first;
    }
}
