#define _GNU_SOURCE
#include "fault_scenarios.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "feedmill/pack.h"
#include "folder.h"

#if FM_HAVE_SPNG
#include <spng.h>
#endif
#if FM_HAVE_WEBP
#include <webp/encode.h>
#endif

enum { FILES, LIST, SHARDS, MEMORY, ROWS, ROWS_OF_IMAGES, PLAIN };
enum { LEND, HOLD, HAND_OVER, DEVICE, FALLBACK };

#define N_SAMPLES 10
#define N_SHARDS 2
#define N_DAMAGED 1 /* the last one, in the list only */
#define BATCH 3
#define N_BATCHES ((N_SAMPLES + BATCH - 1) / BATCH)
#define N_EPOCHS 4
/* Errors after which no further batch of the epoch is requested. */
#define MOST_TRIES 10
#define N_HELD 4
#define LAST_EPOCH (N_EPOCHS - 1)
#define MOST_FILE_BYTES (1 << 20)
#define BODY_BYTES 600
#define PIXEL_BYTES (16 * 16 * 3)
#define MOST_BATCH_BYTES (BATCH * (TEST_SAMPLE_BYTES * 4 + 64) + 4096)

typedef struct file_bytes {
    size_t n;
    uint8_t bytes[MOST_FILE_BYTES];
} file_bytes;

static test_folder folder;
static char shard_paths[N_SHARDS][128], plain_paths[N_SAMPLES][128];
static fm_sample files[N_SAMPLES + N_DAMAGED], ranges[N_SAMPLES], images[N_SAMPLES],
    plains[N_SAMPLES];
static char paths[N_SAMPLES + N_DAMAGED][128];
static file_bytes contents[N_SAMPLES + N_DAMAGED];
static uint8_t pixels[N_SAMPLES * PIXEL_BYTES];
static int64_t labels[N_SAMPLES];
static fm_output targets[8];

/* What each batch of each epoch holds, by a hash; set while `comparing` is false. */
static bool comparing;
static uint64_t wanted[N_EPOCHS][N_BATCHES];

void fault_complain(fault_board *board, const char *format, ...) {
    va_list args;
    va_start(args, format);
    atomic_store(&board->armed, false);
    vsnprintf(board->message, sizeof(board->message), format, args);
    va_end(args);
    _exit(1);
}

void fault_scenarios_compare(bool compare) { comparing = compare; }

/* ---- files ----------------------------------------------------------------------------------- */

static void write_file(const char *path, const void *bytes, size_t n) {
    FILE *const file = fopen(path, "wb");
    if (!file || fwrite(bytes, 1, n, file) != n || fclose(file)) {
        perror(path);
        exit(1);
    }
}

static void make_jpeg(const char *options, const char *path) {
    char command[512];
    snprintf(command, sizeof(command), "%s %s %s", getenv("FM_MKJPEG"), options, path);
    test_run(command);
}

static void fill(uint8_t *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) bytes[i] = (uint8_t)(i * 2654435761u >> 13);
}

/* Where no encoder is there, a JPEG by another name: what a file is, its bytes tell. */
static void make_png(const char *path) {
#if FM_HAVE_SPNG
    static uint8_t px[50 * 40 * 3];
    fill(px, sizeof(px));
    spng_ctx *const codec = spng_ctx_new(SPNG_CTX_ENCODER);
    struct spng_ihdr header = {.width = 50, .height = 40, .bit_depth = 8, .color_type = 2};
    size_t n = 0;
    int failed = 0;
    if (spng_set_ihdr(codec, &header) || spng_set_option(codec, SPNG_ENCODE_TO_BUFFER, 1) ||
        spng_encode_image(codec, px, sizeof(px), SPNG_FMT_PNG, SPNG_ENCODE_FINALIZE))
        exit(1);
    void *const bytes = spng_get_png_buffer(codec, &n, &failed);
    write_file(path, bytes, n);
    free(bytes);
    spng_ctx_free(codec);
#else
    make_jpeg("size=50x40 seed=31", path);
#endif
}

static void make_webp(const char *path) {
#if FM_HAVE_WEBP
    static uint8_t px[50 * 40 * 3];
    fill(px, sizeof(px));
    uint8_t *bytes = NULL;
    const size_t n = WebPEncodeRGB(px, 50, 40, 150, 80, &bytes);
    write_file(path, bytes, n);
    WebPFree(bytes);
#else
    make_jpeg("size=50x40 seed=32", path);
#endif
}

/* Of many kinds; the last two are larger than what the reader and the decoders have ready. */
static void make_images(void) {
    static const char *const options[] = {"size=50x40 sampling=444",
                                          "size=60x30 sampling=420 restart=4",
                                          "size=40x60 progressive=1",
                                          NULL,
                                          NULL,
                                          "size=33x47 space=grey",
                                          "size=50x50 space=cmyk",
                                          "size=64x64 scans=split",
                                          "size=30x30 apps=9",
                                          "size=420x400 progressive=1 sampling=444 quality=30"};
    for (int i = 0; i < N_SAMPLES; i++) {
        static const char *const endings[] = {[3] = "png", [4] = "webp", [N_SAMPLES - 1] = NULL};
        snprintf(paths[i], sizeof(paths[i]), "%s/images/%s/%02d.%s", folder.dir,
                 i < 5 ? "first" : "second", i, endings[i] ? endings[i] : "jpg");
        if (options[i])
            make_jpeg(options[i], paths[i]);
        else if (i == 3)
            make_png(paths[i]);
        else
            make_webp(paths[i]);
    }
    snprintf(paths[N_SAMPLES], sizeof(paths[0]), "%s/damaged.jpg", folder.dir);
    make_jpeg("size=50x40", paths[N_SAMPLES]);
}

static void read_images(void) {
    for (int i = 0; i < N_SAMPLES + N_DAMAGED; i++) {
        FILE *const file = fopen(paths[i], "rb");
        if (!file) exit(1);
        contents[i].n = fread(contents[i].bytes, 1, MOST_FILE_BYTES, file);
        fclose(file);
        files[i] = (fm_sample){.index = i, .label = i < 5 ? 0 : 1, .path = paths[i]};
        if (i == N_SAMPLES) continue;
        images[i] = files[i];
        images[i].data = contents[i].bytes;
        images[i].data_bytes = contents[i].n;
    }
    contents[N_SAMPLES].n /= 2;
    write_file(paths[N_SAMPLES], contents[N_SAMPLES].bytes, contents[N_SAMPLES].n);
}

static void make_shards(void) {
    FILE *shards[N_SHARDS];
    for (int s = 0; s < N_SHARDS; s++) {
        snprintf(shard_paths[s], sizeof(shard_paths[s]), "%s/shard-%d.tar", folder.dir, s);
        if (!(shards[s] = fopen(shard_paths[s], "wb"))) exit(1);
    }
    for (int i = 0; i < N_SAMPLES; i++) {
        FILE *const shard = shards[i % N_SHARDS];
        ranges[i] = (fm_sample){.index = i,
                                .label = files[i].label,
                                .path = shard_paths[i % N_SHARDS],
                                .offset_bytes = (uint64_t)ftell(shard),
                                .range_bytes = contents[i].n};
        if (fwrite(contents[i].bytes, 1, contents[i].n, shard) != contents[i].n) exit(1);
    }
    for (int s = 0; s < N_SHARDS; s++)
        if (fclose(shards[s])) exit(1);
}

static void make_plain_files(void) {
    uint8_t bytes[8 + BODY_BYTES] = "header";
    for (int i = 0; i < N_SAMPLES; i++) {
        snprintf(plain_paths[i], sizeof(plain_paths[i]), "%s/%02d.npy", folder.dir, i);
        fill(bytes + 8, BODY_BYTES);
        bytes[8] = (uint8_t)i;
        write_file(plain_paths[i], bytes, sizeof(bytes));
        plains[i] = (fm_sample){.index = i, .label = i, .path = plain_paths[i]};
    }
}

void fault_scenarios_open(void) {
    folder = test_folder_open(0);
    char path[128];
    static const char *const below[] = {"images", "images/first", "elsewhere"};
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof(path), "%s/%s", folder.dir, below[i]);
        if (mkdir(path, 0755)) exit(1);
    }
    /* A link needs a look at where it leads. */
    snprintf(path, sizeof(path), "%s/images/second", folder.dir);
    if (symlink("../elsewhere", path)) exit(1);
    make_images();
    read_images();
    make_shards();
    make_plain_files();
    fill(pixels, sizeof(pixels));
    for (int i = 0; i < N_SAMPLES; i++) labels[i] = 100 + i;
    for (size_t i = 0; i < sizeof(targets) / sizeof(*targets); i++)
        targets[i] = (fm_output){.images = aligned_alloc(64, MOST_BATCH_BYTES / 64 * 64),
                                 .image_bytes = MOST_BATCH_BYTES / 64 * 64,
                                 .labels = calloc(BATCH, sizeof(int64_t)),
                                 .label_bytes = BATCH * sizeof(int64_t)};
}

void fault_scenarios_close(void) {
    for (size_t i = 0; i < sizeof(targets) / sizeof(*targets); i++) {
        free(targets[i].images);
        free(targets[i].labels);
    }
    test_folder_close(&folder);
}

bool fault_names_path(const fault_error *error) {
    return strstr(error->error.message, folder.dir) != NULL;
}

/* ---- one loader ------------------------------------------------------------------------------ */

typedef struct run_state {
    const fault_scenario *scenario;
    fault_board *board;
    fault_errors *errors;
    fm_loader *loader;
    uint32_t epoch;
    uint32_t n_added;
} run_state;

static void add_error(fault_errors *errors, const char *step, const fm_error *error) {
    if (errors->n < FAULT_MOST_ERRORS) errors->list[errors->n] = (fault_error){step, *error};
    errors->n++;
}

static int locate(void *user, int64_t index, fm_sample *out) {
    *out = ((const fm_sample *)user)[index];
    return FM_OK;
}

static void *take_memory(void *user, size_t n, void **handle) {
    (void)user;
    return *handle = aligned_alloc(64, (n + 63) / 64 * 64);
}

static void give_memory(void *user, void *memory, void *handle) {
    (void)user, (void)handle;
    free(memory);
}

static void set_source(const fault_scenario *self, const fm_folder *opened, const fm_array *arrays,
                       fm_config *config) {
    fm_sample *const lists[] = {
        [LIST] = files, [SHARDS] = ranges, [MEMORY] = images, [PLAIN] = plains};
    switch (self->source) {
    case FILES:
        config->source = fm_folder_source(opened);
        break;
    case ROWS_OF_IMAGES:
        config->arrays = (fm_arrays){.list = arrays, .n = 2, .images = true};
        config->transform.in_height = config->transform.in_width = 16;
        config->transform.in_channels = 3;
        break;
    case ROWS:
        config->arrays = (fm_arrays){.list = arrays, .n = 2};
        config->transform.n_ops = 0;
        break;
    case PLAIN:
        config->raw =
            (fm_raw_format){.header = "header\0", .header_bytes = 8, .body_bytes = BODY_BYTES};
        config->transform.n_ops = 0;
        config->source = (fm_source){plains, N_SAMPLES, locate};
        break;
    default:
        config->source = (fm_source){lists[self->source], N_SAMPLES, locate};
    }
    if (self->delivery == FALLBACK) config->source.n_samples += N_DAMAGED;
}

/* Two more views: one of the same size as the first, one with operations in scratch memory. */
static void set_views(fm_config *config) {
    static const fm_op small[] = {
        {.kind = FM_OP_RESIZE, .height = 12, .width = 16},
        {.kind = FM_OP_RANDOM_BLUR, .p = 0.5, .values = {0.5, 1}},
        {.kind = FM_OP_COLOR_JITTER, .values = {0.6, 1.4, 0.6, 1.4, 0.8, 1.2, -0.1, 0.1}}};
    static fm_transform views[2];
    views[0] = views[1] = config->transform;
    views[1].ops = small;
    views[1].n_ops = 3;
    config->more_views = views;
    config->n_more_views = 2;
}

static fm_config config_of(const fault_scenario *self, const fm_folder *opened,
                           const fm_array *arrays, fm_cache *cache) {
    fm_config config = test_config((fm_source){0});
    set_source(self, opened, arrays, &config);
    config.reader = self->reader;
    config.read_depth = 4;
    config.read_ahead_bytes = 64 << 10;
    config.batch_size = BATCH;
    config.n_threads = 1;
    config.prefetch_batches = 2;
    config.sample_records = 16;
    config.cache = cache;
    config.fallback = self->delivery == FALLBACK;
    if (self->delivery == HAND_OVER)
        config.allocator = (fm_allocator){NULL, take_memory, give_memory, true};
    if (self->delivery == DEVICE) config.device.kind = FM_DEVICE_HOST;
    if (self->views) set_views(&config);
    return config;
}

/* ---- batches --------------------------------------------------------------------------------- */

static uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t n) {
    const uint8_t *const at = bytes;
    for (size_t i = 0; i < n; i++) hash = (hash ^ at[i]) * 0x100000001b3u;
    return hash;
}

static uint64_t hash_batch(const run_state *run, const fm_batch *batch) {
    uint64_t hash = 0xcbf29ce484222325u;
    size_t offset, row_bytes;
    const uint8_t *const memory = batch->images;
    for (size_t i = 0; fm_loader_section(run->loader, i, &offset, &row_bytes) == FM_OK; i++)
        hash = hash_bytes(hash, memory + offset, batch->n * row_bytes);
    if (run->scenario->source == ROWS || run->scenario->source == ROWS_OF_IMAGES) return hash;
    fm_view view;
    for (size_t i = 0; fm_loader_view(run->loader, i, &view) == FM_OK; i++) {
        const size_t n_values = (size_t)batch->n * view.channels * view.height * view.width;
        const size_t n_bytes = n_values * (batch->dtype == FM_FLOAT32 ? 4 : 1);
        hash = hash_bytes(hash, memory + view.offset, n_bytes);
    }
    return hash_bytes(hash, batch->labels, batch->n * sizeof(int64_t));
}

static void check_batch(const run_state *run, const fm_batch *batch) {
    if (batch->number >= N_BATCHES) fault_complain(run->board, "batch %d", (int)batch->number);
    const uint64_t hash = hash_batch(run, batch);
    uint64_t *const want = &wanted[run->epoch][batch->number];
    if (!comparing) *want = hash;
    if (*want != hash)
        fault_complain(run->board, "epoch %u, batch %d holds something else", run->epoch,
                       (int)batch->number);
}

static void release(const run_state *run, fm_batch *batch) {
    if (run->scenario->delivery == HAND_OVER) give_memory(NULL, batch->images, NULL);
    fm_batch_release(batch);
}

/* The damaged sample is finished here; any other's error becomes its batch's. */
static void finish_sample(run_state *run) {
    fm_fallback asked;
    fm_error error;
    if (fm_loader_fallback(run->loader, &asked)) fault_complain(run->board, "no fallback");
    const bool damaged = asked.index >= N_SAMPLES;
    void *out;
    size_t n_bytes;
    for (size_t i = 0; damaged && !fm_loader_fallback_view(run->loader, i, &out, &n_bytes); i++)
        memset(out, 77, n_bytes);
    if (fm_loader_fallback_done(run->loader, damaged ? FM_OK : asked.cause, &error))
        fault_complain(run->board, "fallback_done: %s", error.message);
}

static int next_batch(run_state *run, fm_batch *batch, fm_error *error) {
    if (run->scenario->delivery == DEVICE && fm_loader_n_outputs(run->loader) == 0) {
        fm_output *const target = &targets[run->n_added++ % 8];
        const int status = fm_loader_add_output(run->loader, target, error);
        if (status) return status;
    }
    int status;
    while ((status = fm_loader_next(run->loader, -1, batch, error)) == FM_FALLBACK)
        finish_sample(run);
    return status;
}

/* Receives batches until the epoch ends, and then releases the held ones. A sample's error is
 * returned in place of its batch; after any other error the same batch is requested again, a few
 * times. */
static void take_batches(run_state *run, int most) {
    fm_batch held[N_HELD] = {{0}};
    int n_held = 0, n_done = 0, n_errors = 0, status = FM_OK;
    const bool hold = run->scenario->delivery == HOLD;
    while (n_done < most) {
        fm_error error = {.message = ""};
        fm_batch batch;
        status = next_batch(run, &batch, &error);
        if (status == FM_END) break;
        if (status > 0) fault_complain(run->board, "next() gave %d", status);
        n_done += !status || error.index >= 0;
        if (status) {
            add_error(run->errors, "next", &error);
            if (++n_errors > MOST_TRIES) break;
            continue;
        }
        check_batch(run, &batch);
        if (hold && n_held < N_HELD)
            held[n_held++] = batch;
        else
            release(run, &batch);
    }
    for (int i = 0; i < n_held; i++) release(run, &held[i]);
    if (status == FM_END && n_done != N_BATCHES)
        fault_complain(run->board, "epoch %u ended with batch %d of %d", run->epoch, n_done,
                       N_BATCHES);
}

static void run_epoch(run_state *run, uint32_t number, int most) {
    int64_t order[N_SAMPLES + N_DAMAGED];
    const bool damaged = run->scenario->delivery == FALLBACK;
    const int n = N_SAMPLES + (damaged ? N_DAMAGED : 0);
    for (int i = 0; i < n; i++) order[i] = (i * 7 + (int)number) % n;
    const fm_epoch epoch = {.seed = 42, .number = number, .order = order, .n_order = (size_t)n};
    fm_error error;
    run->epoch = number;
    if (fm_loader_start(run->loader, &epoch, &error))
        add_error(run->errors, "start", &error);
    else
        take_batches(run, most);
}

/* ---- a loader's life ------------------------------------------------------------------------- */

static void look_at_counters(fm_loader *loader) {
    fm_stats stats;
    fm_slow_sample slow[4];
    fm_sample_record records[4];
    uint64_t first;
    fm_loader_stats(loader, &stats);
    fm_loader_slow_samples(loader, slow, 4);
    fm_loader_sample_records(loader, 0, records, 4, &first);
}

static void run_epochs(run_state *run) {
    run_epoch(run, 0, INT32_MAX);
    run_epoch(run, 1, 1); /* stopped early, by the start of the next */
    run_epoch(run, 2, INT32_MAX);
    look_at_counters(run->loader);
    /* Whatever has failed: from now on nothing does. */
    atomic_store(&run->board->armed, false);
    const int n_before = run->errors->n;
    run_epoch(run, LAST_EPOCH, INT32_MAX);
    if (run->errors->n > n_before)
        fault_complain(run->board, "the next epoch failed: %s",
                       run->errors->list[n_before % FAULT_MOST_ERRORS].error.message);
    atomic_store(&run->board->armed, true);
}

static void run_loader(const fault_scenario *self, fault_board *board, fault_errors *errors) {
    fm_folder *opened = NULL;
    fm_cache *cache = NULL;
    fm_error error;
    run_state run = {.scenario = self, .board = board, .errors = errors};
    const fm_array arrays[2] = {
        {.data = pixels, .n_rows = N_SAMPLES, .row_bytes = PIXEL_BYTES},
        {.data = labels, .n_rows = N_SAMPLES, .row_bytes = sizeof(int64_t)}};
    char dir[128];
    snprintf(dir, sizeof(dir), "%s/images", folder.dir);
    atomic_store(&board->armed, true);
    if (self->source == FILES && fm_folder_open(&opened, dir, &error))
        add_error(errors, "folder", &error);
    else if (opened && fm_folder_source(opened).n_samples != N_SAMPLES)
        fault_complain(board, "the folder has %zu files without an error, not %d",
                       fm_folder_source(opened).n_samples, N_SAMPLES);
    else if (self->cache && fm_cache_open(&cache, 4 << 20, &error))
        add_error(errors, "cache", &error);
    if (!errors->n) {
        const fm_config config = config_of(self, opened, arrays, cache);
        if (fm_loader_open(&run.loader, &config, &error))
            add_error(errors, "open", &error);
        else
            run_epochs(&run);
    }
    fm_loader_close(&run.loader);
    fm_cache_close(&cache);
    fm_folder_close(&opened);
    atomic_store(&board->armed, false);
}

/* ---- without a loader ------------------------------------------------------------------------ */

static void check_hash(fault_board *board, int number, uint64_t hash) {
    uint64_t *const want = &wanted[number / N_BATCHES][number % N_BATCHES];
    if (!comparing) *want = hash;
    if (*want != hash) fault_complain(board, "image %d is another one", number);
}

static void run_imread(const fault_scenario *self, fault_board *board, fault_errors *errors) {
    (void)self;
    static uint8_t out[420 * 400 * 3];
    atomic_store(&board->armed, true);
    for (int i = 0; i < N_SAMPLES; i++) {
        fm_imread *image;
        fm_error error;
        int32_t height, width;
        if (fm_imread_open(&image, &files[i], 0, &error)) {
            add_error(errors, "imread", &error);
            continue;
        }
        fm_imread_size(image, false, &height, &width);
        if (fm_imread_pixels(image, FM_RGB, false, out, &error))
            add_error(errors, "imread", &error);
        else
            check_hash(board, i, hash_bytes(1, out, (size_t)height * (size_t)width * 3));
        fm_imread_close(&image);
    }
    atomic_store(&board->armed, false);
}

static void run_transcoder(const fault_scenario *self, fault_board *board, fault_errors *errors) {
    (void)self;
    fm_transcoder_config config;
    fm_transcoder_config_init(&config);
    fm_transcoder *transcoder;
    fm_error error;
    atomic_store(&board->armed, true);
    if (fm_transcoder_open(&transcoder, &config, &error)) add_error(errors, "transcoder", &error);
    for (int i = 0; transcoder && i < N_SAMPLES; i++) {
        fm_transcoded out;
        if (fm_transcoder_run(transcoder, contents[i].bytes, contents[i].n, &out, &error)) {
            add_error(errors, "transcode", &error);
            continue;
        }
        const uint64_t hash = hash_bytes((uint64_t)out.reason, out.bytes, out.n_bytes);
        check_hash(board, i, hash);
    }
    fm_transcoder_close(&transcoder);
    atomic_store(&board->armed, false);
}

/* ---- all of them ----------------------------------------------------------------------------- */

#define PREAD .reader = FM_READER_PREAD
#define URING .reader = FM_READER_URING, .needs_uring = true

const fault_scenario fault_scenarios[] = {
    {"folder-uring", .run = run_loader, .source = FILES, URING},
    {"folder-pread", .run = run_loader, .source = FILES, PREAD},
    {"folder-auto", .run = run_loader, .source = FILES, .reader = FM_READER_AUTO},
    {"shards-uring", .run = run_loader, .source = SHARDS, URING},
    {"shards-pread", .run = run_loader, .source = SHARDS, PREAD},
    {"cache", .run = run_loader, .source = LIST, PREAD, .cache = true},
    {"memory", .run = run_loader, .source = MEMORY, PREAD},
    {"memory-held", .run = run_loader, .source = MEMORY, PREAD, .delivery = HOLD},
    {"handover", .run = run_loader, .source = LIST, PREAD, .delivery = HAND_OVER},
    {"fallback", .run = run_loader, .source = LIST, PREAD, .delivery = FALLBACK},
    {"device", .run = run_loader, .source = LIST, PREAD, .delivery = DEVICE},
    {"views", .run = run_loader, .source = LIST, PREAD, .delivery = FALLBACK, .views = true},
    {"views-handover", .run = run_loader, .source = LIST, PREAD, .delivery = HAND_OVER,
     .views = true},
    {"views-device", .run = run_loader, .source = LIST, PREAD, .delivery = DEVICE, .views = true},
    {"plain", .run = run_loader, .source = PLAIN, PREAD},
    {"rows", .run = run_loader, .source = ROWS},
    {"rows-of-images", .run = run_loader, .source = ROWS_OF_IMAGES},
    {"imread", .run = run_imread},
    {"transcoder", .run = run_transcoder},
};
const size_t fault_n_scenarios = sizeof(fault_scenarios) / sizeof(*fault_scenarios);
