/*
 * Writes a test JPEG of a chosen kind; the pixels (gradients, noise, hard edges) follow from a
 * seed.
 *
 *     mkjpeg [option=value ...] FILE
 *
 *     size=WxH        default 64x48            quality=1..100     default 85
 *     seed=N          of the pixels            noise=0..255       amplitude, default 24
 *     sampling=S      444 422 420 440 411 410, or factors for each component as 2x2,1x1,1x1
 *     space=S         ycc (default), rgb (Adobe transform 0), grey, cmyk, ycck
 *     progressive=1   standard script          scans=split        one scan for each component
 *     restart=N       MCUs an interval         arithmetic=1       optimize=1
 *     orientation=N   an EXIF segment          apps=N             N APPn segments, and a comment
 *
 * Exits with 2 and a message where libjpeg does not write such a file.
 */
#define _GNU_SOURCE
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

typedef struct options {
    int width, height, quality, noise, orientation, n_apps;
    uint32_t seed;
    const char *sampling, *space, *path;
    bool progressive, split, arithmetic, optimize;
    unsigned restart;
} options;

static void die(const char *what, const char *value) {
    fprintf(stderr, "mkjpeg: %s: %s\n", what, value);
    exit(2);
}

/* ---- options --------------------------------------------------------------------------------- */

static void parse_option(options *o, const char *key, const char *value) {
    const int number = atoi(value);
    if (!strcmp(key, "size")) {
        if (sscanf(value, "%dx%d", &o->width, &o->height) != 2) die("bad size", value);
    } else if (!strcmp(key, "quality")) {
        o->quality = number;
    } else if (!strcmp(key, "noise")) {
        o->noise = number;
    } else if (!strcmp(key, "seed")) {
        o->seed = (uint32_t)strtoul(value, NULL, 10);
    } else if (!strcmp(key, "sampling")) {
        o->sampling = value;
    } else if (!strcmp(key, "space")) {
        o->space = value;
    } else if (!strcmp(key, "progressive")) {
        o->progressive = number != 0;
    } else if (!strcmp(key, "scans")) {
        o->split = !strcmp(value, "split");
    } else if (!strcmp(key, "restart")) {
        o->restart = (unsigned)number;
    } else if (!strcmp(key, "arithmetic")) {
        o->arithmetic = number != 0;
    } else if (!strcmp(key, "optimize")) {
        o->optimize = number != 0;
    } else if (!strcmp(key, "orientation")) {
        o->orientation = number;
    } else if (!strcmp(key, "apps")) {
        o->n_apps = number;
    } else {
        die("unknown option", key);
    }
}

static options parse(int n_args, char **args) {
    options o = {.width = 64,
                 .height = 48,
                 .quality = 85,
                 .noise = 24,
                 .seed = 1,
                 .sampling = "420",
                 .space = "ycc"};
    for (int i = 1; i < n_args; i++) {
        char *const equals = strchr(args[i], '=');
        if (!equals) {
            o.path = args[i];
            continue;
        }
        *equals = '\0';
        parse_option(&o, args[i], equals + 1);
    }
    if (!o.path) die("no file given", "usage: mkjpeg [option=value ...] FILE");
    return o;
}

/* ---- pixels ---------------------------------------------------------------------------------- */

static uint32_t hash(uint32_t x) {
    x ^= x >> 16;
    x *= 0x7FEB352Du;
    x ^= x >> 15;
    x *= 0x846CA68Bu;
    return x ^ x >> 16;
}

/* One sample: a gradient, squares of random colour with hard edges on it, and noise. */
static JSAMPLE sample(const options *o, int x, int y, int c) {
    const uint32_t seed = hash(o->seed * 4 + (uint32_t)c);
    const int step = 3 + (int)(seed % 23);
    int value = (x * (int)(seed >> 8 & 7) + y * (int)(seed >> 11 & 7)) / 2 + (int)(seed >> 24);
    const uint32_t square = hash((uint32_t)(x / step) * 7919 + (uint32_t)(y / step) + seed);
    if (square & 1) value = (int)(square >> 8);
    value &= 255;
    if (o->noise > 0) {
        const uint32_t r = hash((uint32_t)x * 65537u + (uint32_t)y * 257u + seed);
        value += (int)(r % (uint32_t)(2 * o->noise + 1)) - o->noise;
    }
    return (JSAMPLE)(value < 0 ? 0 : value > 255 ? 255 : value);
}

/* ---- codec ----------------------------------------------------------------------------------- */

static void set_space(struct jpeg_compress_struct *codec, const options *o) {
    static const struct {
        const char *name;
        J_COLOR_SPACE input, file;
        int n;
    } spaces[] = {{"ycc", JCS_RGB, JCS_YCbCr, 3},
                  {"rgb", JCS_RGB, JCS_RGB, 3},
                  {"grey", JCS_GRAYSCALE, JCS_GRAYSCALE, 1},
                  {"cmyk", JCS_CMYK, JCS_CMYK, 4},
                  {"ycck", JCS_CMYK, JCS_YCCK, 4}};
    for (size_t i = 0; i < sizeof(spaces) / sizeof(spaces[0]); i++) {
        if (strcmp(spaces[i].name, o->space)) continue;
        codec->input_components = spaces[i].n;
        codec->in_color_space = spaces[i].input;
        jpeg_set_defaults(codec);
        jpeg_set_colorspace(codec, spaces[i].file);
        return;
    }
    die("unknown space", o->space);
}

static void set_sampling(struct jpeg_compress_struct *codec, const char *sampling) {
    static const char *const named[][2] = {{"444", "1x1"}, {"422", "2x1"}, {"420", "2x2"},
                                           {"440", "1x2"}, {"411", "4x1"}, {"410", "4x2"}};
    for (size_t i = 0; i < sizeof(named) / sizeof(named[0]); i++)
        if (!strcmp(named[i][0], sampling)) sampling = named[i][1];
    for (int c = 0; c < codec->num_components; c++) {
        codec->comp_info[c].h_samp_factor = codec->comp_info[c].v_samp_factor = 1;
        if (!sampling) continue;
        if (sscanf(sampling, "%dx%d", &codec->comp_info[c].h_samp_factor,
                   &codec->comp_info[c].v_samp_factor) != 2)
            die("bad sampling", sampling);
        sampling = strchr(sampling, ',');
        if (sampling) sampling++;
    }
}

/* A baseline image with a scan of its own for each component. `scans` outlives the codec. */
static void set_split(struct jpeg_compress_struct *codec, jpeg_scan_info *scans) {
    for (int c = 0; c < codec->num_components; c++)
        scans[c] = (jpeg_scan_info){
            .comps_in_scan = 1, .component_index = {c}, .Ss = 0, .Se = DCTSIZE2 - 1};
    codec->scan_info = scans;
    codec->num_scans = codec->num_components;
}

static void write_markers(struct jpeg_compress_struct *codec, const options *o) {
    if (o->orientation) {
        JOCTET exif[] = {'E', 'x',  'i', 'f', 0, 0, 'M', 'M', 0, 42, 0, 0, 0, 8, 0, 1,
                         1,   0x12, 0,   3,   0, 0, 0,   1,   0, 0,  0, 0, 0, 0, 0, 0};
        exif[25] = (JOCTET)o->orientation;
        jpeg_write_marker(codec, JPEG_APP0 + 1, exif, sizeof(exif));
    }
    static JOCTET filler[40000];
    memset(filler, 0xFF, sizeof(filler)); /* looks like markers */
    filler[1] = 0xD9;
    for (int i = 0; i < o->n_apps; i++)
        jpeg_write_marker(codec, JPEG_APP0 + 3 + i % 10, filler, (unsigned)(7 + i * 3001 % 39000));
    if (o->n_apps) jpeg_write_marker(codec, JPEG_COM, (const JOCTET *)"a comment", 9);
}

static void write_rows(struct jpeg_compress_struct *codec, const options *o) {
    const int n = codec->input_components;
    JSAMPLE *const row = malloc((size_t)o->width * (size_t)n);
    if (!row) die("out of memory", o->path);
    for (int y = 0; y < o->height; y++) {
        for (int x = 0; x < o->width; x++)
            for (int c = 0; c < n; c++) row[x * n + c] = sample(o, x, y, c);
        JSAMPROW rows[1] = {row};
        jpeg_write_scanlines(codec, rows, 1);
    }
    free(row);
}

static void on_error(j_common_ptr codec) {
    char text[JMSG_LENGTH_MAX];
    codec->err->format_message(codec, text);
    die("libjpeg", text);
}

int main(int n_args, char **args) {
    const options o = parse(n_args, args);
    struct jpeg_error_mgr errors;
    struct jpeg_compress_struct codec = {.err = jpeg_std_error(&errors)};
    errors.error_exit = on_error;
    jpeg_create_compress(&codec);
    FILE *const file = fopen(o.path, "wb");
    if (!file) die("cannot write", o.path);
    jpeg_stdio_dest(&codec, file);
    codec.image_width = (JDIMENSION)o.width;
    codec.image_height = (JDIMENSION)o.height;
    set_space(&codec, &o);
    set_sampling(&codec, o.sampling);
    jpeg_set_quality(&codec, o.quality, TRUE);
    codec.restart_interval = o.restart;
    codec.arith_code = o.arithmetic;
    codec.optimize_coding = o.optimize;
    jpeg_scan_info scans[MAX_COMPONENTS];
    if (o.progressive)
        jpeg_simple_progression(&codec);
    else if (o.split)
        set_split(&codec, scans);
    jpeg_start_compress(&codec, TRUE);
    write_markers(&codec, &o);
    write_rows(&codec, &o);
    jpeg_finish_compress(&codec);
    jpeg_destroy_compress(&codec);
    if (fclose(file)) die("cannot write", o.path);
    return 0;
}
