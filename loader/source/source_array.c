#include "source/source_array.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

int fm_array_resolve(fm_array *array, size_t number, fm_error *error) {
    if (!array->data || !array->n_rows || !array->row_bytes)
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "array %zu has %zu rows of %zu bytes at %p; it needs memory, and at "
                            "least one row of one byte",
                            number, array->n_rows, array->row_bytes, array->data);
    if (!array->stride_bytes) array->stride_bytes = array->row_bytes;
    if (array->stride_bytes >= array->row_bytes && array->n_rows <= SIZE_MAX / array->stride_bytes)
        return FM_OK;
    return fm_error_set(error, FM_ERR_ARGUMENT,
                        "array %zu: stride_bytes is %zu; it must be at least the %zu bytes of a "
                        "row, and %zu rows must fit into memory",
                        number, array->stride_bytes, array->row_bytes, array->n_rows);
}

bool fm_array_is_mapped(const fm_array *array) {
    FILE *const maps = fopen("/proc/self/maps", "r");
    if (!maps) return false;
    const uintptr_t address = (uintptr_t)array->data;
    char line[512];
    bool mapped = false;
    bool whole = true; /* the previous line was complete: this is not the rest of a long one */
    while (fgets(line, sizeof(line), maps)) {
        uintptr_t first, end;
        unsigned long inode;
        if (whole &&
            sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %*s %*s %*s %lu", &first, &end, &inode) == 3 &&
            address >= first && address < end)
            mapped = inode != 0;
        whole = strchr(line, '\n') != NULL;
    }
    fclose(maps);
    return mapped;
}

/* How many of rows[n] follow each other in the array, from rows[0] on. */
static size_t count_adjacent(const int64_t *rows, size_t n) {
    size_t i = 1;
    while (i < n && rows[i] == rows[i - 1] + 1) i++;
    return i;
}

/* Small rows, such as single numbers, are copied with a constant size, which needs no call. */
#define GATHER(bytes)                                                          \
    case bytes:                                                                \
        for (size_t i = 0; i < n; i++, to += (bytes))                          \
            memcpy(to, from + (size_t)rows[i] * array->stride_bytes, (bytes)); \
        return

/* Shorter copies go through the cache. */
#define MIN_STREAMED ((size_t)32 << 10)

void fm_array_gather(const fm_array *array, const int64_t *rows, size_t n, void *out,
                     void (*stream)(void *out, const void *in, size_t n)) {
    uint8_t *to = out;
    const uint8_t *const from = array->data;
    switch (array->row_bytes) {
        GATHER(1);
        GATHER(2);
        GATHER(4);
        GATHER(8);
        GATHER(16);
    }
    const bool is_contiguous = array->stride_bytes == array->row_bytes;
    for (size_t i = 0; i < n;) {
        const size_t n_rows = is_contiguous ? count_adjacent(rows + i, n - i) : 1;
        const size_t n_bytes = n_rows * array->row_bytes;
        if (stream && n_bytes >= MIN_STREAMED)
            stream(to, fm_array_row(array, rows[i]), n_bytes);
        else
            memcpy(to, fm_array_row(array, rows[i]), n_bytes);
        to += n_bytes;
        i += n_rows;
    }
}

int fm_array_image_init(fm_array_image *image, const fm_arrays *arrays,
                        const fm_transform *transform, fm_error *error) {
    const size_t height = (size_t)transform->in_height, width = (size_t)transform->in_width;
    const size_t channels = transform->in_channels == 1 ? 1 : 3;
    *image = (fm_array_image){transform->in_height,   transform->in_width, (int32_t)channels,
                              arrays->channel_stride, arrays->line_stride, arrays->pixel_stride};
    if (!image->channel_stride && !image->line_stride && !image->pixel_stride) {
        image->channel_stride = 1;
        image->pixel_stride = channels;
        image->line_stride = channels * width;
    }
    if (transform->in_height > 0 && transform->in_width > 0 && height * width <= INT32_MAX / 3) {
        const size_t last = (height - 1) * image->line_stride + (width - 1) * image->pixel_stride +
                            (channels - 1) * image->channel_stride;
        if (last < arrays->list[0].row_bytes) return FM_OK;
    }
    return fm_error_set(error, FM_ERR_ARGUMENT,
                        "images of %d x %d pixels and %zu channels, with strides of %zu, %zu and "
                        "%zu bytes, are not within the %zu bytes of array 0's rows",
                        (int)transform->in_width, (int)transform->in_height, channels,
                        image->channel_stride, image->line_stride, image->pixel_stride,
                        arrays->list[0].row_bytes);
}

bool fm_array_image_is_packed(const fm_array_image *image) {
    return image->channels == 3 && image->channel_stride == 1 && image->pixel_stride == 3 &&
           image->line_stride == 3 * (size_t)image->width;
}

bool fm_array_image_is_planar(const fm_array_image *image) {
    return image->pixel_stride == 1 && image->line_stride == (size_t)image->width;
}

static void copy_pixels(const fm_array_image *image, const uint8_t *from, size_t n, uint8_t *to) {
    const size_t channel = image->channels == 1 ? 0 : image->channel_stride;
    const size_t step = image->pixel_stride;
    if (channel == 1 && step == 3) {
        memcpy(to, from, 3 * n);
        return;
    }
    for (size_t i = 0; i < n; i++, from += step, to += 3) {
        to[0] = from[0];
        to[1] = from[channel];
        to[2] = from[2 * channel];
    }
}

void fm_array_pixels(const fm_array_image *image, const uint8_t *row, fm_box box, uint8_t *out) {
    const uint8_t *line =
        row + (size_t)box.top * image->line_stride + (size_t)box.left * image->pixel_stride;
    for (int32_t y = 0; y < box.height; y++, line += image->line_stride) {
        copy_pixels(image, line, (size_t)box.width, out);
        out += 3 * (size_t)box.width;
    }
}
