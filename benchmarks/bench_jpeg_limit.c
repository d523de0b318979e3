/*
 * The speed of libjpeg-turbo alone, the limit for every loader that uses it: the files of a list
 * are in memory, and each thread decodes one after another with its own decoder.
 *
 *     bench_jpeg_limit LIST --mode full|crop [--threads 2] [--samples 4032] [--epochs 3] [--serve]
 *
 * LIST names a file on each line; the list is repeated until an epoch has that many samples.
 * full: the whole image. crop: only the rows and columns of RandomResizedCrop's box, as feedmill
 * does it: one more column on each side, rows above skipped, rows below not decoded. Both: the
 * accurate DCT and fancy upsampling, as Pillow; rows are written to the same few KB, at 16 bytes
 * after a multiple of 32, where libjpeg-turbo does not bypass the cache. Boxes have feedmill's
 * distribution and are drawn with its generator, outside the timed part.
 *
 * Each epoch prints a line of JSON. With --serve an epoch runs for each line on stdin that says
 * "epoch" or "warm"; other lines get the version. Every file must decode without an error or a
 * warning.
 */
#define _GNU_SOURCE
#include <getopt.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <jpeglib.h>

#include "base/types.h"
#include "transform/geometry.h"

#define TEXT(macro) TEXT_OF(macro)
#define TEXT_OF(tokens) #tokens

/* Rows that are asked for at once; the most that libjpeg gives in one call is 4. */
enum { BLOCK_ROWS = 16, MOST_THREADS = 256, SIZE = 224 };

typedef struct photo {
    uint8_t *bytes;
    size_t n_bytes;
    int32_t width, height;
} photo;

static struct {
    photo *photos;
    size_t n_photos, n_samples;
    fm_box *boxes; /* [n_samples]; of the epoch */
    int32_t widest;
    int n_threads, n_epochs;
    bool crop, serve;
    atomic_size_t next; /* sample to decode */
} bench = {.n_samples = 4032, .n_threads = 2, .n_epochs = 3};

static void die(const char *what, const char *detail) {
    fprintf(stderr, "bench_jpeg_limit: %s: %s\n", what, detail);
    exit(1);
}

static void *allocate(size_t n_bytes) {
    void *const memory = aligned_alloc(64, (n_bytes + 63) / 64 * 64);
    if (!memory) die("allocate", "out of memory");
    return memory;
}

static double seconds(clockid_t id) {
    struct timespec now;
    clock_gettime(id, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* A file with warnings would distort the measured speed, so it ends the program. */
static void on_message(j_common_ptr codec, int level) {
    char text[JMSG_LENGTH_MAX];
    if (level >= 0) return;
    codec->err->format_message(codec, text);
    die("libjpeg", text);
}

static void on_error(j_common_ptr codec) { on_message(codec, -1); }

static void open_codec(struct jpeg_decompress_struct *codec, struct jpeg_error_mgr *errors) {
    codec->err = jpeg_std_error(errors);
    errors->error_exit = on_error;
    errors->emit_message = on_message;
    jpeg_create_decompress(codec);
}

/* ---- one image ------------------------------------------------------------------------------- */

static void start(struct jpeg_decompress_struct *codec, const photo *p) {
    jpeg_mem_src(codec, p->bytes, p->n_bytes);
    jpeg_read_header(codec, TRUE);
    codec->out_color_space = JCS_RGB;
    codec->dct_method = JDCT_ISLOW;
    codec->do_fancy_upsampling = TRUE;
    jpeg_start_decompress(codec);
}

static void read_rows(struct jpeg_decompress_struct *codec, JSAMPARRAY rows, int32_t n_rows) {
    for (int32_t left = n_rows; left > 0;)
        left -= (int32_t)jpeg_read_scanlines(codec, rows,
                                             (JDIMENSION)(left < BLOCK_ROWS ? left : BLOCK_ROWS));
    jpeg_abort_decompress(codec);
}

static void decode_full(struct jpeg_decompress_struct *codec, const photo *p, JSAMPARRAY rows) {
    start(codec, p);
    read_rows(codec, rows, p->height);
}

static void decode_crop(struct jpeg_decompress_struct *codec, const photo *p, const fm_box *box,
                        JSAMPARRAY rows) {
    start(codec, p);
    const int32_t from = box->left > 0 ? box->left - 1 : 0;
    const int32_t right = box->left + box->width;
    const int32_t to = right < p->width ? right + 1 : p->width;
    JDIMENSION left = (JDIMENSION)from, width = (JDIMENSION)(to - from);
    jpeg_crop_scanline(codec, &left, &width);
    if (box->top > 0) jpeg_skip_scanlines(codec, (JDIMENSION)box->top);
    read_rows(codec, rows, box->height);
}

/* ---- an epoch -------------------------------------------------------------------------------- */

static void draw_boxes(uint32_t epoch) {
    const fm_op op = {.kind = FM_OP_RANDOM_RESIZED_CROP,
                      .height = SIZE,
                      .width = SIZE,
                      .scale = {0.08, 1},
                      .ratio = {3.0 / 4, 4.0 / 3}};
    for (size_t i = 0; i < bench.n_samples; i++) {
        const photo *const p = &bench.photos[i % bench.n_photos];
        const fm_draw_key key = {.seed = 1, .epoch = epoch, .index = (int64_t)i};
        fm_geometry geometry;
        fm_error error;
        if (fm_geometry_locate(&op, 1, 1, &key, p->width, p->height, &geometry, NULL, &error))
            die("crop", error.message);
        bench.boxes[i] = geometry.source;
    }
}

static void *work(void *unused) {
    (void)unused;
    struct jpeg_decompress_struct codec;
    struct jpeg_error_mgr errors;
    open_codec(&codec, &errors);
    const size_t stride = ((size_t)bench.widest * 3 + 63) / 32 * 32;
    uint8_t *const memory = allocate(BLOCK_ROWS * stride + 32);
    JSAMPROW rows[BLOCK_ROWS];
    for (int i = 0; i < BLOCK_ROWS; i++) rows[i] = memory + 16 + (size_t)i * stride;
    for (size_t i; (i = atomic_fetch_add(&bench.next, 1)) < bench.n_samples;) {
        const photo *const p = &bench.photos[i % bench.n_photos];
        if (bench.crop)
            decode_crop(&codec, p, &bench.boxes[i], rows);
        else
            decode_full(&codec, p, rows);
    }
    jpeg_destroy_decompress(&codec);
    free(memory);
    return NULL;
}

static void run_epoch(uint32_t number) {
    draw_boxes(number);
    atomic_store(&bench.next, 0);
    const double wall = seconds(CLOCK_MONOTONIC), cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
    pthread_t threads[MOST_THREADS];
    for (int i = 0; i < bench.n_threads; i++)
        if (pthread_create(&threads[i], NULL, work, NULL)) die("thread", "can't be started");
    for (int i = 0; i < bench.n_threads; i++) pthread_join(threads[i], NULL);
    printf("{\"n\": %zu, \"wall_s\": %.6f, \"cpu_s\": %.6f}\n", bench.n_samples,
           seconds(CLOCK_MONOTONIC) - wall, seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu);
    fflush(stdout);
}

static void serve(void) {
    char line[4096];
    printf("{}\n");
    fflush(stdout);
    for (uint32_t epoch = 0; fgets(line, sizeof(line), stdin);) {
        if (strcmp(line, "epoch\n") == 0 || strcmp(line, "warm\n") == 0) {
            run_epoch(epoch++);
        } else {
            printf("{\"versions\": {\"libjpeg-turbo\": \"%s\"}}\n", TEXT(LIBJPEG_TURBO_VERSION));
            fflush(stdout);
        }
    }
}

/* ---- files and options ----------------------------------------------------------------------- */

static photo read_photo(const char *path) {
    FILE *const file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END)) die("can't read", path);
    const long n_bytes = ftell(file);
    if (n_bytes <= 0) die("empty", path);
    rewind(file);
    photo p = {.bytes = allocate((size_t)n_bytes), .n_bytes = (size_t)n_bytes};
    if (fread(p.bytes, 1, p.n_bytes, file) != p.n_bytes) die("can't read", path);
    fclose(file);
    struct jpeg_decompress_struct codec;
    struct jpeg_error_mgr errors;
    open_codec(&codec, &errors);
    jpeg_mem_src(&codec, p.bytes, p.n_bytes);
    jpeg_read_header(&codec, TRUE);
    p.width = (int32_t)codec.image_width;
    p.height = (int32_t)codec.image_height;
    jpeg_destroy_decompress(&codec);
    return p;
}

static void read_list(const char *path) {
    FILE *const list = fopen(path, "r");
    if (!list) die("can't read", path);
    char line[4096];
    size_t room = 0;
    while (fgets(line, sizeof(line), list)) {
        line[strcspn(line, "\n")] = 0;
        if (bench.n_photos == room) {
            room = room ? 2 * room : 256;
            bench.photos = realloc(bench.photos, room * sizeof(photo));
            if (!bench.photos) die("allocate", "out of memory");
        }
        const photo p = read_photo(line);
        if (p.width > bench.widest) bench.widest = p.width;
        bench.photos[bench.n_photos++] = p;
    }
    fclose(list);
    if (bench.n_photos == 0) die("no files in", path);
}

static long parse_number(const char *text, long high) {
    char *end;
    const long value = strtol(text, &end, 10);
    if (end == text || *end || value < 1 || value > high) die("not a number in range", text);
    return value;
}

int main(int argc, char **argv) {
    static const struct option options[] = {
        {"mode", required_argument, NULL, 'm'},    {"threads", required_argument, NULL, 't'},
        {"samples", required_argument, NULL, 'n'}, {"epochs", required_argument, NULL, 'e'},
        {"serve", no_argument, NULL, 's'},         {NULL, 0, NULL, 0}};
    const char *mode = "";
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (c == 'm')
            mode = optarg;
        else if (c == 't')
            bench.n_threads = (int)parse_number(optarg, MOST_THREADS);
        else if (c == 'n')
            bench.n_samples = (size_t)parse_number(optarg, 1L << 32);
        else if (c == 'e')
            bench.n_epochs = (int)parse_number(optarg, 1000000);
        else if (c == 's')
            bench.serve = true;
    }
    bench.crop = strcmp(mode, "crop") == 0;
    if (optind + 1 != argc || (!bench.crop && strcmp(mode, "full") != 0))
        die("usage", "bench_jpeg_limit LIST --mode full|crop [--threads N] [--samples N] "
                     "[--epochs N] [--serve]");
    read_list(argv[optind]);
    bench.boxes = allocate(bench.n_samples * sizeof(*bench.boxes));
    if (bench.serve)
        serve();
    else
        for (int e = 0; e < bench.n_epochs; e++) run_epoch((uint32_t)e);
    return 0;
}
