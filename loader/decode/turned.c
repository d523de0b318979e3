#include "decode/turned.h"

#include <string.h>

#define MARKER_SOS 0xDA
#define MARKER_APP1 0xE1
#define EXIF_NAME_BYTES 6
#define TAG_ORIENTATION 0x0112
#define TYPE_SHORT 3
#define ENTRY_BYTES 12
#define INLINE_BYTES 4
#define PNG_SIGNATURE_BYTES 8
#define PNG_CHUNK_BYTES 12 /* length, type and checksum */
#define PNG_KEYWORD_BYTES 79
#define RIFF_BYTES 12
#define WEBP_CHUNK_BYTES 8

typedef enum turn { NOT_TOLD, UPRIGHT, MAY_BE_TURNED } turn;

static uint32_t number(const uint8_t *bytes, size_t n, bool little_endian) {
    uint32_t value = 0;
    for (size_t i = 0; i < n; i++) value = value << 8 | bytes[little_endian ? n - 1 - i : i];
    return value;
}

static bool starts_with(const uint8_t *bytes, size_t n_bytes, const char *text, size_t n) {
    return n_bytes >= n && memcmp(bytes, text, n) == 0;
}

/* ---- JPEG ------------------------------------------------------------------------------------ */

/* Bytes of a value of each type of an entry; 0: Pillow does not know the type. */
static const uint8_t type_bytes[] = {0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4, 0, 0, 8};

/* Whether Pillow can read the values of all entries of a directory. At a value beyond the end it
   stops and ignores the entries behind it, or this entry, if the values together are larger than
   the structure. */
static bool are_values_inside(const uint8_t *entries, size_t n_entries, size_t n_bytes,
                              bool little_endian) {
    uint64_t total = 0;
    for (size_t i = 0; i < n_entries; i++) {
        const uint8_t *const entry = entries + ENTRY_BYTES * i;
        const uint32_t type = number(entry + 2, 2, little_endian);
        if (type >= sizeof(type_bytes)) continue;
        const uint64_t size = (uint64_t)number(entry + 4, 4, little_endian) * type_bytes[type];
        if (size <= INLINE_BYTES) continue; /* the value is in the entry itself */
        total += size;
        const uint64_t end = number(entry + 8, 4, little_endian) + size;
        if (end > n_bytes || total > n_bytes) return false;
    }
    return true;
}

/* What the first directory of a TIFF structure says. */
static turn turn_of_tiff(const uint8_t *tiff, size_t n_bytes) {
    const bool little_endian = starts_with(tiff, n_bytes, "II*\0", 4);
    if (n_bytes < 8 || (!little_endian && !starts_with(tiff, n_bytes, "MM\0*", 4)))
        return MAY_BE_TURNED;
    const size_t at = number(tiff + 4, 4, little_endian);
    if (at > n_bytes || n_bytes - at < 2) return MAY_BE_TURNED;
    const size_t n_entries = number(tiff + at, 2, little_endian);
    if ((n_bytes - at - 2) / ENTRY_BYTES < n_entries) return MAY_BE_TURNED;
    const uint8_t *const entries = tiff + at + 2;
    if (!are_values_inside(entries, n_entries, n_bytes, little_endian)) return MAY_BE_TURNED;
    turn found = NOT_TOLD;
    for (size_t i = 0; i < n_entries; i++) {
        const uint8_t *const entry = entries + ENTRY_BYTES * i;
        if (number(entry, 2, little_endian) != TAG_ORIENTATION) continue;
        const bool is_one = number(entry + 2, 2, little_endian) == TYPE_SHORT &&
                            number(entry + 4, 4, little_endian) == 1 &&
                            number(entry + 8, 2, little_endian) == 1;
        if (!is_one) return MAY_BE_TURNED;
        found = UPRIGHT;
    }
    return found;
}

/* What an APP1 segment says. Sets *is_xmp if it is none of EXIF. */
static turn turn_of_app1(const uint8_t *body, size_t n_bytes, bool *is_xmp) {
    if (!starts_with(body, n_bytes, "Exif", 4)) {
        *is_xmp = true; /* or something unknown */
        return NOT_TOLD;
    }
    if (!starts_with(body, n_bytes, "Exif\0", EXIF_NAME_BYTES)) return MAY_BE_TURNED;
    return turn_of_tiff(body + EXIF_NAME_BYTES, n_bytes - EXIF_NAME_BYTES);
}

static bool jpeg_may_be_turned(const uint8_t *bytes, size_t n_bytes) {
    bool has_exif = false, is_upright = false, has_xmp = false;
    for (size_t at = 2;;) { /* after SOI */
        if (at >= n_bytes || bytes[at] != 0xFF) return true;
        while (at < n_bytes && bytes[at] == 0xFF) at++; /* fill bytes */
        if (at == n_bytes) return true;
        const uint8_t marker = bytes[at++];
        if (marker == MARKER_SOS) return has_xmp && !is_upright;
        const size_t length = n_bytes - at < 2 ? 0 : number(bytes + at, 2, false);
        if (length < 2 || length > n_bytes - at) return true;
        if (marker == MARKER_APP1) {
            bool is_xmp = false;
            const turn told = turn_of_app1(bytes + at + 2, length - 2, &is_xmp);
            /* Several EXIF segments may be parts of one. */
            if (told == MAY_BE_TURNED || (has_exif && !is_xmp)) return true;
            has_exif = has_exif || !is_xmp;
            is_upright = is_upright || told == UPRIGHT;
            has_xmp = has_xmp || is_xmp;
        }
        at += length;
    }
}

/* ---- PNG and WebP ---------------------------------------------------------------------------- */

/* Whether a text chunk's keyword is one of those for EXIF and XMP, or nearly. */
static bool is_metadata(const uint8_t *text, size_t n_bytes) {
    const size_t n = n_bytes < PNG_KEYWORD_BYTES ? n_bytes : PNG_KEYWORD_BYTES;
    for (size_t i = 0; i + 3 <= n && text[i]; i++) {
        const char name[] = {(char)(text[i] | 0x20), (char)(text[i + 1] | 0x20),
                             (char)(text[i + 2] | 0x20)};
        if (!memcmp(name, "xif", 3) || !memcmp(name, "xmp", 3)) return true;
    }
    return false;
}

static bool png_may_be_turned(const uint8_t *bytes, size_t n_bytes) {
    for (size_t at = PNG_SIGNATURE_BYTES;;) {
        if (at > n_bytes || n_bytes - at < PNG_CHUNK_BYTES) return true;
        const size_t n = number(bytes + at, 4, false);
        if (n > n_bytes - at - PNG_CHUNK_BYTES) return true;
        const uint8_t *const name = bytes + at + 4;
        if (!memcmp(name, "IEND", 4)) return false;
        if (!memcmp(name, "eXIf", 4)) return true;
        const bool is_text =
            !memcmp(name, "tEXt", 4) || !memcmp(name, "zTXt", 4) || !memcmp(name, "iTXt", 4);
        if (is_text && is_metadata(name + 4, n)) return true;
        at += PNG_CHUNK_BYTES + n;
    }
}

static bool webp_may_be_turned(const uint8_t *bytes, size_t n_bytes) {
    for (size_t at = RIFF_BYTES; at < n_bytes;) {
        if (n_bytes - at < WEBP_CHUNK_BYTES) return true;
        const size_t n = number(bytes + at + 4, 4, true), n_padded = n + (n & 1);
        if (n_padded > n_bytes - at - WEBP_CHUNK_BYTES) return true;
        if (!memcmp(bytes + at, "EXIF", 4) || !memcmp(bytes + at, "XMP ", 4)) return true;
        at += WEBP_CHUNK_BYTES + n_padded;
    }
    return false;
}

bool fm_may_be_turned(fm_format format, const uint8_t *bytes, size_t n_bytes) {
    switch (format) {
    case FM_FORMAT_JPEG:
        return jpeg_may_be_turned(bytes, n_bytes);
    case FM_FORMAT_PNG:
        return png_may_be_turned(bytes, n_bytes);
    case FM_FORMAT_WEBP:
        return webp_may_be_turned(bytes, n_bytes);
    }
    return true;
}
