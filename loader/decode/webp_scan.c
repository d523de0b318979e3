#include "decode/webp_scan.h"

#include <string.h>

#define RIFF_BYTES 12
#define CHUNK_BYTES 8
#define EXTENDED_BYTES 10
#define ANIMATION_FLAG 0x02u
/* Animation, profile, alpha, EXIF and XMP. libwebp's demuxer refuses other flags. */
#define KNOWN_FLAGS 0x3Eu

/* The chunks of a still picture, in the standard's order. */
enum place { PROFILE, ALPHA, PICTURE, EXIF, XMP, N_PLACES };

typedef struct chunk {
    const uint8_t *bytes;
    size_t n_bytes; /* of its content */
} chunk;

static size_t u32(const uint8_t *bytes) {
    return (size_t)bytes[0] | (size_t)bytes[1] << 8 | (size_t)bytes[2] << 16 |
           (size_t)bytes[3] << 24;
}

static bool is_named(const chunk *c, const char *name) { return !memcmp(c->bytes, name, 4); }

static enum place place_of(const chunk *c) {
    if (is_named(c, "ICCP")) return PROFILE;
    if (is_named(c, "ALPH")) return ALPHA;
    if (is_named(c, "VP8 ") || is_named(c, "VP8L")) return PICTURE;
    if (is_named(c, "EXIF")) return EXIF;
    return is_named(c, "XMP ") ? XMP : N_PLACES;
}

/* Reads the chunk at *at, and moves *at to the next one. */
static bool next_chunk(const uint8_t *bytes, size_t n_bytes, size_t *at, chunk *c) {
    if (n_bytes - *at < CHUNK_BYTES) return false;
    *c = (chunk){bytes + *at, u32(bytes + *at + 4)};
    const size_t n_left = n_bytes - *at - CHUNK_BYTES;
    const size_t n_padded = c->n_bytes + (c->n_bytes & 1);
    if (n_padded > n_left) return false;
    *at += CHUNK_BYTES + n_padded;
    return true;
}

bool fm_webp_is_one(const uint8_t *bytes, size_t n_bytes) {
    return n_bytes >= RIFF_BYTES && !memcmp(bytes, "RIFF", 4) && !memcmp(bytes + 8, "WEBP", 4);
}

/* Checks an extended file's chunks after its header. */
static int scan_extended(fm_webp_picture *out, const uint8_t *bytes, size_t n_bytes, size_t at,
                         fm_error *error) {
    bool has_picture = false, has_alpha = false;
    for (enum place next = PROFILE; at < n_bytes;) {
        chunk c;
        if (!next_chunk(bytes, n_bytes, &at, &c))
            return fm_error_set(error, FM_ERR_DAMAGED, "a WebP that ends within a chunk");
        const enum place place = place_of(&c);
        if (place < next || place == N_PLACES)
            return fm_error_set(error, FM_ERR_DAMAGED, "a WebP with an unusual chunk at byte %zu",
                                (size_t)(c.bytes - bytes));
        if (place == ALPHA || (place == PICTURE && !has_alpha)) out->bytes = c.bytes;
        if (place == PICTURE) out->n_bytes = (size_t)(bytes + at - out->bytes);
        has_alpha = has_alpha || place == ALPHA;
        has_picture = has_picture || place == PICTURE;
        if (place == PICTURE && has_alpha && is_named(&c, "VP8L"))
            return fm_error_set(error, FM_ERR_DAMAGED, "a lossless WebP with an alpha chunk");
        next = (enum place)(place + 1);
    }
    return has_picture ? FM_OK : fm_error_set(error, FM_ERR_DAMAGED, "a WebP without a picture");
}

/* After the picture of a file that is not extended, only chunks of unknown types are accepted,
 * which decoders ignore. */
static int scan_after_picture(const uint8_t *bytes, size_t n_bytes, size_t at, fm_error *error) {
    while (at < n_bytes) {
        chunk c;
        if (!next_chunk(bytes, n_bytes, &at, &c) || place_of(&c) != N_PLACES)
            return fm_error_set(error, FM_ERR_DAMAGED,
                                "a WebP with unusual chunks after its picture");
    }
    return FM_OK;
}

int fm_webp_scan_file(fm_webp_picture *out, const uint8_t *bytes, size_t n_bytes, fm_error *error) {
    if (!fm_webp_is_one(bytes, n_bytes)) return fm_error_set(error, FM_ERR_FORMAT, "not a WebP");
    if (u32(bytes + 4) + 8 != n_bytes)
        return fm_error_set(error, FM_ERR_DAMAGED, "a WebP of %zu bytes, not %zu as it says",
                            n_bytes, u32(bytes + 4) + 8);
    size_t at = RIFF_BYTES;
    chunk first;
    if (!next_chunk(bytes, n_bytes, &at, &first))
        return fm_error_set(error, FM_ERR_DAMAGED, "a WebP that ends within a chunk");
    if (place_of(&first) == PICTURE) {
        *out = (fm_webp_picture){first.bytes, at - RIFF_BYTES};
        return scan_after_picture(bytes, n_bytes, at, error);
    }
    if (!is_named(&first, "VP8X") || first.n_bytes != EXTENDED_BYTES)
        return fm_error_set(error, FM_ERR_DAMAGED, "a WebP with a bad header");
    const uint8_t flags = first.bytes[CHUNK_BYTES];
    if (flags & ~KNOWN_FLAGS)
        return fm_error_set(error, FM_ERR_DAMAGED, "a WebP with unknown flags");
    if (flags & ANIMATION_FLAG) return fm_error_set(error, FM_ERR_KIND, "an animated WebP");
    return scan_extended(out, bytes, n_bytes, at, error);
}
