#include "decode/exif.h"

#include <stdbool.h>

#define MARKER_SOI 0xD8
#define MARKER_SOS 0xDA
#define MARKER_APP1 0xE1
/* "Exif\0\0", which OpenCV skips without checking it. */
#define NAME_BYTES 6
#define ENTRY_BYTES 12
#define TAG_ORIENTATION 0x0112
#define TIFF_MARK 0x002A
/* A string of at most this many bytes is stored in its entry. */
#define INLINE_BYTES 4

/* A TIFF header and the data after it. */
typedef struct tiff {
    const uint8_t *bytes;
    size_t n_bytes;
    bool little_endian;
    bool failed; /* a read beyond the end was tried */
} tiff;

static uint32_t read_u16(tiff *data, uint64_t offset) {
    if (offset + 1 >= data->n_bytes) {
        data->failed = true;
        return 0;
    }
    const uint32_t first = data->bytes[offset], second = data->bytes[offset + 1];
    return data->little_endian ? first | second << 8 : first << 8 | second;
}

static uint32_t read_u32(tiff *data, uint64_t offset) {
    const uint32_t first = read_u16(data, offset), second = read_u16(data, offset + 2);
    return data->little_endian ? first | second << 16 : first << 16 | second;
}

/* How many rational numbers OpenCV reads for a tag; 0 for other tags. */
static uint32_t n_rationals(uint32_t tag) {
    switch (tag) {
    case 0x011A: /* XResolution */
    case 0x011B: /* YResolution */
        return 1;
    case 0x013E: /* WhitePoint */
        return 2;
    case 0x0211: /* YCbCrCoefficients */
        return 3;
    case 0x013F: /* PrimaryChromaticities */
    case 0x0214: /* ReferenceBlackWhite */
        return 6;
    default:
        return 0;
    }
}

static bool is_string(uint32_t tag) {
    /* ImageDescription, Make, Model, Software, DateTime, Copyright */
    return tag == 0x010E || tag == 0x010F || tag == 0x0110 || tag == 0x0131 || tag == 0x0132 ||
           tag == 0x8298;
}

/* Sets data->failed where OpenCV fails: at an entry that it reads whose value is out of bounds. */
static void check_entry(tiff *data, uint64_t offset, uint32_t tag) {
    if (is_string(tag)) {
        const uint64_t n_bytes = read_u32(data, offset + 4);
        const uint64_t begin = n_bytes > INLINE_BYTES ? read_u32(data, offset + 8) : 8;
        if (begin + n_bytes > data->n_bytes) data->failed = true;
        return;
    }
    if (tag == 0x0128 || tag == 0x0213) read_u16(data, offset + 8); /* ResolutionUnit, positions */
    const uint32_t n = n_rationals(tag);
    if (n == 0) return;
    const uint64_t begin = read_u32(data, offset + 8);
    for (uint32_t i = 0; i < 2 * n; i++) read_u32(data, begin + 4 * i);
}

static int orientation_of(tiff *data) {
    /* OpenCV takes everything that does not begin with "II" for big-endian, not only "MM". */
    data->little_endian = data->n_bytes > 1 && data->bytes[0] == 'I' && data->bytes[1] == 'I';
    if (read_u16(data, 2) != TIFF_MARK) return 1;
    uint64_t offset = read_u32(data, 4);
    const uint32_t n_entries = read_u16(data, offset);
    offset += 2;
    for (uint32_t i = 0; i < n_entries && !data->failed; i++, offset += ENTRY_BYTES) {
        const uint32_t tag = read_u16(data, offset);
        if (tag == TAG_ORIENTATION) {
            const uint32_t value = read_u16(data, offset + 8);
            return !data->failed && value >= 1 && value <= 8 ? (int)value : 1;
        }
        check_entry(data, offset, tag);
    }
    return 1;
}

int fm_exif_orientation(const uint8_t *bytes, size_t n_bytes) {
    size_t i = 0;
    while (i + 4 <= n_bytes && bytes[i] == 0xFF) {
        const uint8_t marker = bytes[i + 1];
        if (marker == 0xFF || marker == MARKER_SOI) {
            i += marker == 0xFF ? 1 : 2; /* a fill byte, or a marker without a length */
            continue;
        }
        const size_t length = (size_t)bytes[i + 2] << 8 | bytes[i + 3];
        if (marker == MARKER_SOS || length > n_bytes - i - 2) return 1;
        if (marker == MARKER_APP1) {
            tiff data = {.bytes = bytes + i + 4 + NAME_BYTES};
            if (length < 2 + NAME_BYTES + 1) return 1;
            data.n_bytes = length - 2 - NAME_BYTES;
            return orientation_of(&data);
        }
        i += 2 + length;
    }
    return 1;
}
