#define _GNU_SOURCE
#include "decode/jpeg_scan.h"

#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

/* libjpeg's own limit of width and height (JPEG_MAX_DIMENSION). */
#define MAX_SIDE 65500
/* A progressive scan of some ten bytes makes libjpeg process the whole image, so their number is
 * limited. Encoders write about ten. */
#define MAX_SCANS 200
#define MAX_COMPONENTS 4
#define N_TABLES 4

enum marker {
    M_SOF0 = 0xC0, /* baseline */
    M_SOF1 = 0xC1, /* extended sequential, Huffman */
    M_SOF2 = 0xC2, /* progressive, Huffman */
    M_SOF3 = 0xC3,
    M_DHT = 0xC4,
    M_SOF9 = 0xC9,
    M_DAC = 0xCC,
    M_SOF15 = 0xCF,
    M_RST0 = 0xD0,
    M_SOI = 0xD8,
    M_EOI = 0xD9,
    M_SOS = 0xDA,
    M_DQT = 0xDB,
    M_DNL = 0xDC,
    M_DRI = 0xDD,
    M_DHP = 0xDE,
    M_EXP = 0xDF,
    M_APP0 = 0xE0,
    M_APP1 = 0xE1,
    M_APP2 = 0xE2,
    M_APP13 = 0xED,
    M_APP14 = 0xEE,
    M_APP15 = 0xEF,
    M_COM = 0xFE
};

typedef struct component {
    uint8_t id, h, v, quant_table;
    bool seen; /* in a scan */
} component;

/* The state of parsing. */
typedef struct walk {
    const uint8_t *bytes;
    size_t n_bytes, at;
    const fm_limits *limits;
    fm_error *error;
    component components[MAX_COMPONENTS];
    uint32_t quant_defined;      /* bit i: table i */
    uint32_t huffman_defined[2]; /* the same, for DC and AC */
    uint32_t n_scans;
    bool has_frame, has_exif;
    bool header_only; /* ends at the first scan's data */
    fm_jpeg_scan *out;
} walk;

/* The body of a segment: what follows its length field. */
typedef struct segment {
    const uint8_t *bytes;
    size_t n_bytes;
} segment;

static uint32_t u16(const uint8_t *bytes) { return (uint32_t)bytes[0] << 8 | bytes[1]; }

static bool starts_with(const segment *s, const char *text, size_t n) {
    return s->n_bytes >= n && memcmp(s->bytes, text, n) == 0;
}

static int damaged(const walk *w, const char *what) {
    return fm_error_set(w->error, FM_ERR_DAMAGED, "%s at byte %zu", what, w->at);
}

/* ---- names of other formats ------------------------------------------------------------------ */

static const char *format_name(const uint8_t *bytes, size_t n_bytes) {
    static const struct {
        const char *magic;
        size_t n;
        const char *name;
    } formats[] = {
        {"\x89PNG\r\n\x1a\n", 8, "a PNG image"},
        {"GIF8", 4, "a GIF image"},
        {"BM", 2, "a BMP image"},
        {"II*\0", 4, "a TIFF image"},
        {"MM\0*", 4, "a TIFF image"},
        {"\0\0\0\x0cjP  ", 8, "a JPEG 2000 image"},
        {"\xff\x0a", 2, "a JPEG XL image"},
        {"\xff\xd8", 2, "a damaged JPEG image"},
        {"P6", 2, "a PPM image"},
        {"P5", 2, "a PGM image"},
        {"<", 1, "an HTML or XML text"},
    };
    const segment all = {bytes, n_bytes};
    if (n_bytes == 0) return "an empty file";
    if (n_bytes >= 12 && memcmp(bytes, "RIFF", 4) == 0 && memcmp(bytes + 8, "WEBP", 4) == 0)
        return "a WebP image";
    if (n_bytes >= 12 && memcmp(bytes + 4, "ftypavif", 8) == 0) return "an AVIF image";
    for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++)
        if (starts_with(&all, formats[i].magic, formats[i].n)) return formats[i].name;
    return "an unknown format";
}

/* ---- application segments: where Pillow's parser fails and libjpeg's does not ---------------- */

/* Pillow raises an IndexError where a resource ends before the length of its name. */
static bool photoshop_is_sane(const segment *s) {
    size_t at = 14;
    while (at + 4 <= s->n_bytes && memcmp(s->bytes + at, "8BIM", 4) == 0) {
        at += 4;
        if (at + 2 > s->n_bytes) return true; /* Pillow catches this */
        at += 2;
        if (at >= s->n_bytes) return false;
        at += 1 + (size_t)s->bytes[at];
        at += at & 1;
        if (at + 4 > s->n_bytes) return true; /* Pillow catches this */
        const size_t n = (size_t)u16(s->bytes + at) << 16 | u16(s->bytes + at + 2);
        at += 4 + n;
        at += at & 1;
    }
    return true;
}

static uint32_t tiff_number(const uint8_t *bytes, size_t n, bool little_endian) {
    uint32_t value = 0;
    for (size_t i = 0; i < n; i++) value = value << 8 | bytes[little_endian ? n - 1 - i : i];
    return value;
}

/*
 * Pillow reads the resolution from the EXIF data, and refuses the file if it is not a number. All
 * cameras write one number.
 */
static bool exif_is_sane(const segment *s) {
    enum { X_RESOLUTION = 0x011A, SHORT = 3, LONG = 4, RATIONAL = 5 };
    segment tiff = *s;
    while (starts_with(&tiff, "Exif\0", 6)) tiff = (segment){tiff.bytes + 6, tiff.n_bytes - 6};
    const bool little_endian = starts_with(&tiff, "II", 2);
    if (tiff.n_bytes < 8 || (!little_endian && !starts_with(&tiff, "MM", 2))) return true;
    if (tiff.bytes[2] == 43 || tiff.bytes[3] == 43) return false; /* BigTIFF: wider fields */
    const size_t at = tiff_number(tiff.bytes + 4, 4, little_endian);
    if (at > tiff.n_bytes || tiff.n_bytes - at < 2) return true;
    const size_t n_entries = tiff_number(tiff.bytes + at, 2, little_endian);
    for (size_t i = 0; i < n_entries && tiff.n_bytes - at >= 2 + 12 * (i + 1); i++) {
        const uint8_t *const entry = tiff.bytes + at + 2 + 12 * i;
        const uint32_t type = tiff_number(entry + 2, 2, little_endian);
        if (tiff_number(entry, 2, little_endian) == X_RESOLUTION &&
            ((type != SHORT && type != LONG && type != RATIONAL) ||
             tiff_number(entry + 4, 4, little_endian) != 1))
            return false;
    }
    return true;
}

static int read_app(walk *w, uint8_t marker, const segment *s) {
    if (marker == M_APP0 && starts_with(s, "JFIF", 4) && s->n_bytes < 7)
        return damaged(w, "JFIF segment too short");
    if (marker == M_APP1 && starts_with(s, "Exif\0", 6)) {
        /* Pillow concatenates several EXIF segments. */
        if (w->has_exif || !exif_is_sane(s)) return damaged(w, "unusual EXIF segment");
        w->has_exif = true;
    }
    if (marker == M_APP2 && starts_with(s, "ICC_PROFILE", 12) && s->n_bytes < 14)
        return damaged(w, "ICC profile segment too short");
    /* An "MPF" segment (phones, stereo cameras) needs no check: Pillow opens the first picture, at
     * the file's start, and opens a file with a malformed index as an ordinary JPEG. */
    if (marker == M_APP13 && starts_with(s, "Photoshop 3.0", 14) && !photoshop_is_sane(s))
        return damaged(w, "bad Photoshop segment");
    if (marker == M_APP14 && starts_with(s, "Adobe", 5) && s->n_bytes < 7)
        return damaged(w, "Adobe segment too short");
    return FM_OK;
}

/* ---- tables, frame, scan --------------------------------------------------------------------- */

static int read_quant_tables(walk *w, const segment *s) {
    for (size_t at = 0; at < s->n_bytes;) {
        const unsigned precision = s->bytes[at] >> 4, index = s->bytes[at] & 15;
        const size_t n = precision ? 129 : 65;
        if (precision > 1 || index >= N_TABLES || s->n_bytes - at < n)
            return damaged(w, "bad quantization table");
        w->quant_defined |= 1u << index;
        at += n;
    }
    return FM_OK;
}

static int read_huffman_tables(walk *w, const segment *s) {
    for (size_t at = 0; at < s->n_bytes;) {
        const unsigned kind = s->bytes[at] >> 4, index = s->bytes[at] & 15;
        if (kind > 1 || index >= N_TABLES || s->n_bytes - at < 17)
            return damaged(w, "bad Huffman table");
        size_t n = 17;
        for (size_t i = 1; i <= 16; i++) n += s->bytes[at + i];
        if (n > 17 + 256 || s->n_bytes - at < n) return damaged(w, "bad Huffman table");
        w->huffman_defined[kind] |= 1u << index;
        at += n;
    }
    return FM_OK;
}

static int check_size(const walk *w, int32_t width, int32_t height) {
    if (width == 0) return damaged(w, "image of width 0");
    if (height == 0)
        return fm_error_set(w->error, FM_ERR_KIND, "a JPEG whose height is not in its header");
    if (width > MAX_SIDE || height > MAX_SIDE)
        return fm_error_set(w->error, FM_ERR_LIMIT, "%d x %d pixels; a side may have at most %d",
                            width, height, MAX_SIDE);
    if ((uint64_t)width * (uint64_t)height > w->limits->max_image_pixels)
        return fm_error_set(w->error, FM_ERR_LIMIT, "%d x %d pixels; max_image_pixels allows %llu",
                            width, height, (unsigned long long)w->limits->max_image_pixels);
    return FM_OK;
}

static int read_components(walk *w, const uint8_t *bytes, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        const uint8_t *const b = bytes + 3 * i;
        component *const c = &w->components[i];
        *c = (component){.id = b[0], .h = b[1] >> 4, .v = b[1] & 15, .quant_table = b[2]};
        if (c->h < 1 || c->h > 4 || c->v < 1 || c->v > 4 || c->quant_table >= N_TABLES)
            return damaged(w, "bad frame header");
        for (int32_t k = 0; k < i; k++)
            if (w->components[k].id == c->id) return damaged(w, "two components of one number");
        if (c->h > w->out->max_h_factor) w->out->max_h_factor = c->h;
    }
    return FM_OK;
}

static int read_frame(walk *w, uint8_t marker, const segment *s) {
    if (w->has_frame) return damaged(w, "second frame");
    if (s->n_bytes < 6) return damaged(w, "bad frame header");
    const int32_t n = s->bytes[5];
    if (s->bytes[0] != 8)
        return fm_error_set(w->error, FM_ERR_KIND, "a JPEG with %d bits per sample", s->bytes[0]);
    if (n != 1 && n != 3 && n != 4)
        return fm_error_set(w->error, FM_ERR_KIND, "a JPEG with %d components", n);
    if (s->n_bytes != 6 + 3 * (size_t)n) return damaged(w, "bad frame header");
    fm_image_info *const info = &w->out->info;
    info->height = (int32_t)u16(s->bytes + 1);
    info->width = (int32_t)u16(s->bytes + 3);
    info->n_components = n;
    info->progressive = marker == M_SOF2;
    w->has_frame = true;
    const int status = check_size(w, info->width, info->height);
    return status ? status : read_components(w, s->bytes + 6, n);
}

/* Checks one component of a scan: that it exists, appears once, and all its tables are defined. */
static int read_scan_component(walk *w, const segment *s, int32_t i, bool needs_dc, bool needs_ac,
                               uint32_t *in_scan) {
    const uint8_t id = s->bytes[1 + 2 * i], tables = s->bytes[2 + 2 * i];
    int32_t k = 0;
    while (k < w->out->info.n_components && w->components[k].id != id) k++;
    if (k == w->out->info.n_components || *in_scan & 1u << k)
        return damaged(w, "scan of an unknown component");
    *in_scan |= 1u << k;
    component *const c = &w->components[k];
    c->seen = true;
    const unsigned dc = tables >> 4, ac = tables & 15;
    if (dc >= N_TABLES || ac >= N_TABLES) return damaged(w, "bad scan header");
    if (!(w->quant_defined & 1u << c->quant_table))
        return damaged(w, "scan without its quantization table");
    /* Motion JPEG leaves out the standard tables. */
    if ((needs_dc && !(w->huffman_defined[0] & 1u << dc)) ||
        (needs_ac && !(w->huffman_defined[1] & 1u << ac)))
        return fm_error_set(w->error, FM_ERR_KIND, "a JPEG without its Huffman tables");
    return FM_OK;
}

static int read_scan_header(walk *w, const segment *s) {
    if (!w->has_frame) return damaged(w, "scan before the frame header");
    if (s->n_bytes < 6) return damaged(w, "bad scan header");
    const int32_t n = s->bytes[0];
    const fm_image_info *const info = &w->out->info;
    if (n < 1 || n > info->n_components || s->n_bytes != 4 + 2 * (size_t)n)
        return damaged(w, "bad scan header");
    if (w->n_scans++ == 0) {
        w->out->single_pass = n == info->n_components && !info->progressive;
    } else if (w->out->single_pass) {
        return damaged(w, "second scan of complete data");
    }
    if (w->n_scans > MAX_SCANS)
        return fm_error_set(w->error, FM_ERR_LIMIT, "more than %d scans", MAX_SCANS);
    const uint8_t *const spectral = s->bytes + 1 + 2 * n; /* first, last, bits before and now */
    const bool needs_dc = !info->progressive || (spectral[0] == 0 && spectral[2] >> 4 == 0);
    const bool needs_ac = !info->progressive || spectral[0] != 0;
    uint32_t in_scan = 0;
    for (int32_t i = 0; i < n; i++) {
        const int status = read_scan_component(w, s, i, needs_dc, needs_ac, &in_scan);
        if (status) return status;
    }
    return FM_OK;
}

static bool is_restart(uint8_t marker) { return (marker & 0xF8) == M_RST0; }

static void count_restart(fm_jpeg_scan *out, uint8_t marker) {
    out->in_order = out->in_order && (marker & 7) == (out->n_restarts & 7);
    out->n_restarts++;
}

/* Returns the first FF that is not followed by 00 or a restart marker's number, or `end`. Counts
 * the restart markers before it; some files have one every 100 bytes. */
static const uint8_t *find_marker(fm_jpeg_scan *out, const uint8_t *p, const uint8_t *end) {
#if defined(__SSE2__)
    const __m128i ones = _mm_set1_epi8(-1), zeros = _mm_setzero_si128();
    for (; end - p > 16; p += 16) {
        const __m128i bytes = _mm_loadu_si128((const __m128i *)p);
        const __m128i behind = _mm_loadu_si128((const __m128i *)(p + 1));
        const __m128i found =
            _mm_andnot_si128(_mm_cmpeq_epi8(behind, zeros), _mm_cmpeq_epi8(bytes, ones));
        for (int mask = _mm_movemask_epi8(found); mask; mask &= mask - 1) {
            const uint8_t *const marker = p + __builtin_ctz((unsigned)mask);
            if (!is_restart(marker[1])) return marker;
            count_restart(out, marker[1]);
        }
    }
#endif
    for (; p < end; p++) {
        if (*p != 0xFF || (p + 1 < end && p[1] == 0)) continue;
        if (p + 1 == end || !is_restart(p[1])) break;
        count_restart(out, p[1]);
    }
    return p;
}

/*
 * Goes to the marker that ends the entropy-coded data: the first that is neither a restart marker
 * nor FF 00. Like libjpeg, accepts further FF bytes before both as padding. Before a 00,
 * jpeg_huffman.c refuses them.
 */
static int skip_entropy_data(walk *w) {
    const uint8_t *const end = w->bytes + w->n_bytes;
    const uint8_t *p = w->bytes + w->at;
    while ((p = find_marker(w->out, p, end)) != end) {
        const uint8_t *const marker = p;
        while (p < end && *p == 0xFF) p++;
        if (p == end) break;
        if (is_restart(*p)) {
            count_restart(w->out, *p);
        } else if (*p != 0) {
            w->at = (size_t)(marker - w->bytes);
            return FM_OK;
        }
        p++;
    }
    w->at = w->n_bytes;
    return damaged(w, "the file ends within the image data");
}

/* ---- markers --------------------------------------------------------------------------------- */

static int read_marker(walk *w, uint8_t *marker) {
    if (w->at < w->n_bytes && w->bytes[w->at] != 0xFF) return damaged(w, "no marker");
    while (w->at < w->n_bytes && w->bytes[w->at] == 0xFF) w->at++;
    if (w->at == w->n_bytes) return damaged(w, "the file ends before its EOI marker");
    *marker = w->bytes[w->at++];
    return FM_OK;
}

static int read_segment(walk *w, segment *s) {
    if (w->n_bytes - w->at < 2) return damaged(w, "the file ends within a segment");
    const size_t n = u16(w->bytes + w->at);
    if (n < 2) return damaged(w, "bad segment length");
    if (n > w->n_bytes - w->at) return damaged(w, "the file ends within a segment");
    *s = (segment){w->bytes + w->at + 2, n - 2};
    w->at += n;
    return FM_OK;
}

static bool has_segment(uint8_t marker) {
    return marker == M_DHT || marker == M_SOS || marker == M_DQT || marker == M_DRI ||
           marker == M_COM || (marker >= M_APP0 && marker <= M_APP15) ||
           (marker >= M_SOF0 && marker <= M_SOF2);
}

static int refuse_marker(const walk *w, uint8_t marker) {
    if (marker >= M_SOF9 && marker <= M_SOF15)
        return fm_error_set(w->error, FM_ERR_KIND, "a JPEG with arithmetic coding");
    if (marker >= M_SOF3 && marker < M_SOF9)
        return fm_error_set(w->error, FM_ERR_KIND, "a lossless or hierarchical JPEG");
    if (marker == M_DNL || marker == M_DHP || marker == M_EXP)
        return fm_error_set(w->error, FM_ERR_KIND, "a JPEG with marker %02X", marker);
    return fm_error_set(w->error, FM_ERR_DAMAGED, "unexpected marker %02X at byte %zu", marker,
                        w->at);
}

static int read_body(walk *w, uint8_t marker, const segment *s) {
    switch (marker) {
    case M_DQT:
        return read_quant_tables(w, s);
    case M_DHT:
        return read_huffman_tables(w, s);
    case M_SOF0:
    case M_SOF1:
    case M_SOF2:
        return read_frame(w, marker, s);
    case M_SOS: {
        const int status = read_scan_header(w, s);
        return status || w->header_only ? status : skip_entropy_data(w);
    }
    case M_DRI:
        return s->n_bytes == 2 ? FM_OK : damaged(w, "bad restart interval");
    default:
        return marker == M_COM ? FM_OK : read_app(w, marker, s);
    }
}

/* At EOI: checks that all components have data. */
static int check_complete(walk *w) {
    if (w->n_scans == 0) return damaged(w, "no image data before the EOI marker");
    for (int32_t i = 0; i < w->out->info.n_components; i++)
        if (!w->components[i].seen) return damaged(w, "a component without data before the end");
    w->out->n_bytes = w->at;
    return FM_OK;
}

static int read_markers(walk *w) {
    *w->out = (fm_jpeg_scan){.in_order = true};
    if (w->n_bytes < 3 || w->bytes[0] != 0xFF || w->bytes[1] != M_SOI || w->bytes[2] != 0xFF)
        return fm_error_set(w->error, FM_ERR_FORMAT, "%s, not a JPEG",
                            format_name(w->bytes, w->n_bytes));
    w->at = 2;
    while (!w->header_only || w->n_scans == 0) {
        uint8_t marker = 0;
        int status = read_marker(w, &marker);
        if (status) return status;
        if (marker == M_EOI) return check_complete(w);
        if (!has_segment(marker)) return refuse_marker(w, marker);
        /* libjpeg ignores segments after the only scan, but Pillow may read them. */
        if (w->out->single_pass) return damaged(w, "more than one scan's data");
        segment s = {0};
        status = read_segment(w, &s);
        if (!status) status = read_body(w, marker, &s);
        if (status) return status;
    }
    return FM_OK;
}

int fm_jpeg_scan_file(fm_jpeg_scan *out, const uint8_t *bytes, size_t n_bytes,
                      const fm_limits *limits, fm_error *error) {
    walk w = {.bytes = bytes, .n_bytes = n_bytes, .limits = limits, .error = error, .out = out};
    return read_markers(&w);
}

int fm_jpeg_scan_header(fm_image_info *info, const uint8_t *bytes, size_t n_bytes,
                        const fm_limits *limits, fm_error *error) {
    fm_jpeg_scan scan;
    walk w = {.bytes = bytes,
              .n_bytes = n_bytes,
              .header_only = true,
              .limits = limits,
              .error = error,
              .out = &scan};
    const int status = read_markers(&w);
    *info = scan.info;
    return status;
}
