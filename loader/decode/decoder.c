#include "decode/decoder.h"

#include "decode/jpeg.h"

/* CMake says which libraries there are; who compiles this file alone does without. */
#ifndef FM_HAVE_SPNG
#define FM_HAVE_SPNG 0
#endif
#ifndef FM_HAVE_WEBP
#define FM_HAVE_WEBP 0
#endif
#if FM_HAVE_SPNG
#include "decode/png.h"
#endif
#if FM_HAVE_WEBP
#include "decode/webp.h"
#endif

/* What a format's decoder can do; `self` is its object. */
typedef struct methods {
    fm_format format;
    const char *name;
    bool (*is_mine)(const uint8_t *bytes, size_t n_bytes);
    int (*open)(void **out, const fm_limits *limits, fm_mem_counter *counter, fm_error *error);
    void (*watch)(void *self, const _Atomic bool *cancelled);
    int (*begin)(void *self, const uint8_t *bytes, size_t n_bytes, fm_image_info *info,
                 fm_error *error);
    int (*start)(void *self, const fm_box *box, int32_t *skip_px, int32_t *row_px, fm_error *error);
    int (*read)(void *self, uint8_t *const *rows, int32_t n_rows, fm_error *error);
    void (*end)(void *self);
    bool (*is_large)(const void *self);
    void (*trim)(void *self);
    void (*close)(void **self);
} methods;

/* The functions fm_NAME_*() as methods. */
#define FM_METHODS(name, format, format_name, is_mine_function)                                    \
    static int name##_open(void **out, const fm_limits *limits, fm_mem_counter *counter,           \
                           fm_error *error) {                                                      \
        fm_##name *self = NULL;                                                                    \
        const int status = fm_##name##_open(&self, limits, counter, error);                        \
        *out = self;                                                                               \
        return status;                                                                             \
    }                                                                                              \
    static void name##_watch(void *self, const _Atomic bool *cancelled) {                          \
        fm_##name##_watch(self, cancelled);                                                        \
    }                                                                                              \
    static int name##_begin(void *self, const uint8_t *bytes, size_t n_bytes, fm_image_info *info, \
                            fm_error *error) {                                                     \
        return fm_##name##_begin(self, bytes, n_bytes, info, error);                               \
    }                                                                                              \
    static int name##_start(void *self, const fm_box *box, int32_t *skip_px, int32_t *row_px,      \
                            fm_error *error) {                                                     \
        return fm_##name##_start(self, box, skip_px, row_px, error);                               \
    }                                                                                              \
    static int name##_read(void *self, uint8_t *const *rows, int32_t n_rows, fm_error *error) {    \
        return fm_##name##_read(self, rows, n_rows, error);                                        \
    }                                                                                              \
    static void name##_end(void *self) { fm_##name##_end(self); }                                  \
    static bool name##_is_large(const void *self) { return fm_##name##_is_large(self); }           \
    static void name##_trim(void *self) { fm_##name##_trim(self); }                                \
    static void name##_close(void **self) {                                                        \
        fm_##name *mine = *self;                                                                   \
        fm_##name##_close(&mine);                                                                  \
        *self = NULL;                                                                              \
    }                                                                                              \
    static const methods name##_methods = {                                                        \
        format,       format_name, is_mine_function, name##_open,     name##_watch, name##_begin,  \
        name##_start, name##_read, name##_end,       name##_is_large, name##_trim,  name##_close};

/* It comes last: its decoder names what it does not take. */
static bool is_anything(const uint8_t *bytes, size_t n_bytes) {
    (void)bytes;
    (void)n_bytes;
    return true;
}

#if FM_HAVE_SPNG
FM_METHODS(png, FM_FORMAT_PNG, "PNG", fm_png_is_one)
#endif
#if FM_HAVE_WEBP
FM_METHODS(webp, FM_FORMAT_WEBP, "WebP", fm_webp_is_one)
#endif
FM_METHODS(jpeg, FM_FORMAT_JPEG, "JPEG", is_anything)

static const methods *const formats[] = {
#if FM_HAVE_SPNG
    &png_methods,
#endif
#if FM_HAVE_WEBP
    &webp_methods,
#endif
    &jpeg_methods,
};

enum { N_FORMATS = sizeof(formats) / sizeof(formats[0]) };

struct fm_decoder {
    void *objects[N_FORMATS];
    int current; /* which format the image has that was begun */
    uint32_t rejected_formats;
};

const char *fm_formats(void) {
    return "JPEG"
#if FM_HAVE_SPNG
           ", PNG"
#endif
#if FM_HAVE_WEBP
           ", WebP"
#endif
        ;
}

int fm_decoder_open(fm_decoder **out, const fm_limits *limits, fm_mem_counter *counter,
                    fm_error *error) {
    fm_decoder *const decoder = fm_mem_zalloc(counter, 1, sizeof(*decoder));
    *out = decoder;
    if (!decoder) return fm_error_set(error, FM_ERR_NOMEM, "no memory for a decoder");
    decoder->current = N_FORMATS - 1;
    decoder->rejected_formats = limits->rejected_formats;
    for (int i = 0; i < N_FORMATS; i++) {
        const int status = formats[i]->open(&decoder->objects[i], limits, counter, error);
        if (status) {
            fm_decoder_close(out);
            return status;
        }
    }
    return FM_OK;
}

void fm_decoder_watch(fm_decoder *decoder, const _Atomic bool *cancelled) {
    for (int i = 0; i < N_FORMATS; i++) formats[i]->watch(decoder->objects[i], cancelled);
}

void fm_decoder_set_leaps(fm_decoder *decoder, bool leaps, bool is_cut) {
    fm_jpeg_set_leaps(decoder->objects[N_FORMATS - 1], leaps, is_cut);
}

int fm_decoder_begin(fm_decoder *decoder, const uint8_t *bytes, size_t n_bytes, fm_image_info *info,
                     fm_error *error) {
    decoder->current = 0;
    while (!formats[decoder->current]->is_mine(bytes, n_bytes)) decoder->current++;
    if (decoder->rejected_formats & (uint32_t)formats[decoder->current]->format)
        return fm_error_set(error, FM_ERR_KIND, "a %s, which the caller decodes himself",
                            formats[decoder->current]->name);
    return formats[decoder->current]->begin(decoder->objects[decoder->current], bytes, n_bytes,
                                            info, error);
}

fm_format fm_decoder_format(const fm_decoder *decoder) { return formats[decoder->current]->format; }

int fm_decoder_start(fm_decoder *decoder, const fm_box *box, int32_t *skip_px, int32_t *row_px,
                     fm_error *error) {
    return formats[decoder->current]->start(decoder->objects[decoder->current], box, skip_px,
                                            row_px, error);
}

int fm_decoder_read(fm_decoder *decoder, uint8_t *const *rows, int32_t n_rows, fm_error *error) {
    return formats[decoder->current]->read(decoder->objects[decoder->current], rows, n_rows, error);
}

void fm_decoder_end(fm_decoder *decoder) {
    formats[decoder->current]->end(decoder->objects[decoder->current]);
}

bool fm_decoder_is_large(const fm_decoder *decoder) {
    for (int i = 0; i < N_FORMATS; i++)
        if (formats[i]->is_large(decoder->objects[i])) return true;
    return false;
}

void fm_decoder_trim(fm_decoder *decoder) {
    for (int i = 0; i < N_FORMATS; i++)
        if (formats[i]->is_large(decoder->objects[i])) formats[i]->trim(decoder->objects[i]);
}

void fm_decoder_close(fm_decoder **decoder) {
    if (!decoder || !*decoder) return;
    for (int i = 0; i < N_FORMATS; i++)
        if ((*decoder)->objects[i]) formats[i]->close(&(*decoder)->objects[i]);
    fm_mem_free(*decoder);
    *decoder = NULL;
}
