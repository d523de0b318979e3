#include "decode/png_scan.h"

#include <string.h>

#define SIGNATURE_BYTES 8
/* A chunk's length, type and checksum. */
#define CHUNK_BYTES 12
/* The limit of fm_image_info. */
#define MAX_SIDE 65535
/* Pillow's limit for a decompressed text or profile is 1 MiB, and one deflated byte gives at most
 * 1032, so this many can't exceed it. */
#define TINY_DEFLATED_BYTES 1016
/* All texts together; Pillow's limit is 64 MiB. */
#define MAX_TEXT_BYTES (16u << 20)

#define TYPE(a, b, c, d) \
    ((uint32_t)(a) << 24 | (uint32_t)(b) << 16 | (uint32_t)(c) << 8 | (uint32_t)(d))

enum {
    T_IHDR = TYPE('I', 'H', 'D', 'R'),
    T_PLTE = TYPE('P', 'L', 'T', 'E'),
    T_IDAT = TYPE('I', 'D', 'A', 'T'),
    T_IEND = TYPE('I', 'E', 'N', 'D'),
    T_TRNS = TYPE('t', 'R', 'N', 'S'),
    T_GAMA = TYPE('g', 'A', 'M', 'A'),
    T_CHRM = TYPE('c', 'H', 'R', 'M'),
    T_SRGB = TYPE('s', 'R', 'G', 'B'),
    T_PHYS = TYPE('p', 'H', 'Y', 's'),
    T_ICCP = TYPE('i', 'C', 'C', 'P'),
    T_TEXT = TYPE('t', 'E', 'X', 't'),
    T_ZTXT = TYPE('z', 'T', 'X', 't'),
    T_ITXT = TYPE('i', 'T', 'X', 't'),
    T_ACTL = TYPE('a', 'c', 'T', 'L'),
    T_FCTL = TYPE('f', 'c', 'T', 'L'),
    T_FDAT = TYPE('f', 'd', 'A', 'T')
};

typedef struct chunk {
    uint32_t type, n_bytes;
    const uint8_t *bytes;
} chunk;

/* The state of parsing. */
typedef struct walk {
    const uint8_t *bytes;
    size_t n_bytes, at;
    fm_error *error;
    fm_png_scan *out;
    uint64_t text_bytes;
    bool has_data, data_ended;
    bool has_transparency, has_profile;
} walk;

static uint32_t u32(const uint8_t *bytes) {
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

static int damaged(const walk *w, const char *what) {
    return fm_error_set(w->error, FM_ERR_DAMAGED, "%s at byte %zu", what, w->at);
}

/* ---- the header ------------------------------------------------------------------------------ */

static int check_size(const walk *w, uint32_t width, uint32_t height, const fm_limits *limits) {
    if (width == 0 || height == 0) return damaged(w, "image without pixels");
    if (width > MAX_SIDE || height > MAX_SIDE)
        return fm_error_set(w->error, FM_ERR_LIMIT, "%u x %u pixels; a side may have at most %d",
                            width, height, MAX_SIDE);
    if ((uint64_t)width * height > limits->max_image_pixels)
        return fm_error_set(w->error, FM_ERR_LIMIT, "%u x %u pixels; max_image_pixels allows %llu",
                            width, height, (unsigned long long)limits->max_image_pixels);
    return FM_OK;
}

/* Samples per pixel; 0 if there is no such color type with so many bits. */
static int32_t count_components(uint32_t color, uint32_t bits) {
    const bool is_small = bits == 1 || bits == 2 || bits == 4;
    if (!is_small && bits != 8 && bits != 16) return 0;
    switch (color) {
    case FM_PNG_GRAY:
        return 1;
    case FM_PNG_PALETTE:
        return bits == 16 ? 0 : 3;
    case FM_PNG_RGB:
        return is_small ? 0 : 3;
    case FM_PNG_GRAY_ALPHA:
        return is_small ? 0 : 2;
    case FM_PNG_RGB_ALPHA:
        return is_small ? 0 : 4;
    default:
        return 0;
    }
}

static int read_header(walk *w, const chunk *c, const fm_limits *limits) {
    if (c->type != T_IHDR || c->n_bytes != 13) return damaged(w, "no PNG header");
    const uint32_t width = u32(c->bytes), height = u32(c->bytes + 4);
    const uint8_t bits = c->bytes[8], color = c->bytes[9];
    const int status = check_size(w, width, height, limits);
    if (status) return status;
    const int32_t n_components = count_components(color, bits);
    if (n_components == 0 || c->bytes[10] != 0 || c->bytes[11] != 0 || c->bytes[12] > 1)
        return damaged(w, "bad PNG header");
    /* The result of convert("RGB") on Pillow's mode I;16 depends on Pillow's version. */
    if (color == FM_PNG_GRAY && bits == 16)
        return fm_error_set(w->error, FM_ERR_KIND, "a grayscale PNG with 16 bits per sample");
    w->out->info = (fm_image_info){.width = (int32_t)width,
                                   .height = (int32_t)height,
                                   .n_components = n_components,
                                   .progressive = c->bytes[12] == 1};
    w->out->color = (fm_png_color)color;
    w->out->bits = bits;
    return FM_OK;
}

/* ---- chunks ---------------------------------------------------------------------------------- */

static int read_palette(walk *w, const chunk *c) {
    const fm_png_color color = w->out->color;
    if (w->has_data || w->out->palette || w->has_transparency || color == FM_PNG_GRAY ||
        color == FM_PNG_GRAY_ALPHA || c->n_bytes == 0 || c->n_bytes > 768 || c->n_bytes % 3)
        return damaged(w, "bad palette");
    if (color == FM_PNG_PALETTE && c->n_bytes / 3 > 1u << w->out->bits)
        return damaged(w, "palette with too many colors");
    w->out->palette = c->bytes;
    w->out->n_palette = (int32_t)(c->n_bytes / 3);
    return FM_OK;
}

/* tRNS: only checked, as convert("RGB") ignores alpha. */
static int read_transparency(walk *w, const chunk *c) {
    bool is_sane = !w->has_data && !w->has_transparency;
    switch (w->out->color) {
    case FM_PNG_GRAY:
        is_sane = is_sane && c->n_bytes == 2;
        break;
    case FM_PNG_RGB:
        is_sane = is_sane && c->n_bytes == 6;
        break;
    case FM_PNG_PALETTE:
        is_sane = is_sane && w->out->palette && c->n_bytes > 0 &&
                  c->n_bytes <= (uint32_t)w->out->n_palette;
        break;
    default:
        is_sane = false;
    }
    w->has_transparency = true;
    return is_sane ? FM_OK : damaged(w, "bad transparency chunk");
}

/* The position after the first zero byte, or 0 if there is none. */
static uint32_t after_zero(const chunk *c, uint32_t from) {
    for (uint32_t i = from; i < c->n_bytes; i++)
        if (c->bytes[i] == 0) return i + 1;
    return 0;
}

/* The chunk holds a name, a zero, the method 0 and the deflated profile. */
static int read_profile(walk *w, const chunk *c) {
    const uint32_t at = after_zero(c, 0);
    if (w->has_data || w->has_profile || at == 0 || at >= c->n_bytes || c->bytes[at] != 0)
        return damaged(w, "bad color profile");
    w->has_profile = true;
    w->out->has_large_profile = c->n_bytes > TINY_DEFLATED_BYTES;
    return FM_OK;
}

/* Deflated texts must be too short to exceed Pillow's limit. Long texts are usually not deflated.
 */
static int read_text(walk *w, const chunk *c) {
    const uint32_t at = after_zero(c, 0);
    bool is_deflated = c->type == T_ZTXT;
    if (c->type == T_ZTXT && (at == 0 || at >= c->n_bytes || c->bytes[at] != 0))
        return damaged(w, "bad text");
    if (c->type == T_ITXT) is_deflated = at != 0 && at < c->n_bytes && c->bytes[at] != 0;
    if (is_deflated && c->n_bytes > TINY_DEFLATED_BYTES)
        return fm_error_set(w->error, FM_ERR_KIND, "a PNG with a long compressed text");
    w->text_bytes += is_deflated ? TINY_DEFLATED_BYTES * 1032u : c->n_bytes;
    return w->text_bytes > MAX_TEXT_BYTES
               ? fm_error_set(w->error, FM_ERR_LIMIT, "a PNG with more than %u bytes of texts",
                              MAX_TEXT_BYTES)
               : FM_OK;
}

static int require_bytes(const walk *w, const chunk *c, uint32_t n_bytes) {
    return c->n_bytes == n_bytes ? FM_OK : damaged(w, "chunk of a wrong length");
}

static int read_data(walk *w) {
    if (w->data_ended) return damaged(w, "image data in two places");
    if (w->out->color == FM_PNG_PALETTE && !w->out->palette)
        return damaged(w, "image data without its palette");
    w->has_data = true;
    return FM_OK;
}

static bool is_known_text(uint32_t type) {
    return type == T_TEXT || type == T_ZTXT || type == T_ITXT;
}

/* Accepts ancillary chunks of other types, which neither Pillow nor libspng reads. */
static int check_unknown(const walk *w, const chunk *c) {
    for (int shift = 0; shift < 32; shift += 8) {
        const uint8_t letter = (uint8_t)((c->type >> shift) | 0x20);
        if (letter < 'a' || letter > 'z') return damaged(w, "bad chunk type");
    }
    return c->type >> 24 & 0x20 ? FM_OK : damaged(w, "unknown critical chunk");
}

static int read_chunk(walk *w, const chunk *c) {
    if (c->type == T_IDAT) return read_data(w);
    w->data_ended = w->has_data;
    if (is_known_text(c->type)) return read_text(w, c);
    switch (c->type) {
    case T_PLTE:
        return read_palette(w, c);
    case T_TRNS:
        return read_transparency(w, c);
    case T_ICCP:
        return read_profile(w, c);
    case T_GAMA:
        return require_bytes(w, c, 4);
    case T_CHRM:
        return require_bytes(w, c, 32);
    case T_SRGB:
        return require_bytes(w, c, 1);
    case T_PHYS:
        return require_bytes(w, c, 9);
    case T_ACTL:
    case T_FCTL:
    case T_FDAT:
        return fm_error_set(w->error, FM_ERR_KIND, "an animated PNG");
    default:
        return check_unknown(w, c);
    }
}

/* ---- the file -------------------------------------------------------------------------------- */

static int next_chunk(walk *w, chunk *c) {
    if (w->n_bytes - w->at < CHUNK_BYTES) return damaged(w, "the file ends before its end chunk");
    const uint8_t *const bytes = w->bytes + w->at;
    *c = (chunk){.n_bytes = u32(bytes), .type = u32(bytes + 4), .bytes = bytes + 8};
    if (c->n_bytes > w->n_bytes - w->at - CHUNK_BYTES)
        return damaged(w, "the file ends within a chunk");
    w->at += CHUNK_BYTES + (size_t)c->n_bytes;
    return FM_OK;
}

bool fm_png_is_one(const uint8_t *bytes, size_t n_bytes) {
    return n_bytes >= SIGNATURE_BYTES && !memcmp(bytes, "\x89PNG\r\n\x1a\n", SIGNATURE_BYTES);
}

int fm_png_scan_file(fm_png_scan *out, const uint8_t *bytes, size_t n_bytes,
                     const fm_limits *limits, fm_error *error) {
    *out = (fm_png_scan){0};
    if (!fm_png_is_one(bytes, n_bytes)) return fm_error_set(error, FM_ERR_FORMAT, "not a PNG");
    walk w = {
        .bytes = bytes, .n_bytes = n_bytes, .at = SIGNATURE_BYTES, .error = error, .out = out};
    chunk c = {0};
    int status = next_chunk(&w, &c);
    if (!status) status = read_header(&w, &c, limits);
    while (!status) {
        status = next_chunk(&w, &c);
        if (!status && c.type == T_IEND) {
            if (c.n_bytes) return damaged(&w, "bad end chunk");
            return w.has_data ? FM_OK : damaged(&w, "no image data");
        }
        if (!status) status = read_chunk(&w, &c);
    }
    return status;
}
