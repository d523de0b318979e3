/*
 * Loads millions of small samples in the ways that scripts do: two loaders at once, epochs that end
 * early or are restarted, damaged and missing files, batches held beyond their epoch, loaders
 * closed and opened again. Memory, threads and descriptors must not grow.
 *
 *     soak_loader [SAMPLES [SEED]]
 *
 * The work is done in rounds, between which no loader is open; then the process is measured. The
 * first rounds warm up. Every sample's pixels are compared with those that it had first.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <limits.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "folder.h"

#define N_FILES 200
#define N_DAMAGED 12 /* of these half are cut short, and half are missing */
#define N_ALL (N_FILES + N_DAMAGED)
#define SAMPLE_BYTES (3 * 8 * 8)
#define MOST_BATCH 32
#define MOST_HELD 5
#define N_LOADERS 2
#define WARM_UP_ROUNDS 6
#define ROUND_SAMPLES 50000
/* Limit of the wait for threads and memory that are still being freed. */
#define SETTLE_LIMIT_MS 20000
/* What the allocator and the kernel may keep back for themselves. */
#define RSS_NOISE_KB 16384
#define HEAP_NOISE_BYTES 65536

enum { FILES, RANGES, MEMORY, N_SOURCES };

typedef struct player {
    pthread_t thread;
    uint64_t random;
    int64_t n_wanted; /* samples of a round */
    int64_t n_samples, n_epochs, n_broken, n_errors, n_stuck, n_opened;
} player;

static test_folder folder;
static fm_sample samples[N_SOURCES][N_ALL];
static char paths[N_ALL][96], shard_path[96];
static uint8_t bytes[N_ALL][4096];
static uint64_t wanted[N_ALL]; /* hash of each sample's pixels */
static const fm_op ops[] = {{.kind = FM_OP_RESIZE, .height = 8, .width = 8}};

__attribute__((format(printf, 1, 2), noreturn)) static void die(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "soak: ");
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    va_end(args);
    exit(1);
}

/* splitmix64 */
static uint64_t draw(player *self, uint64_t below) {
    uint64_t z = self->random += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (z ^ z >> 31) % below;
}

/* ---- the data set ---------------------------------------------------------------------------- */

static bool is_damaged(int64_t index) { return index >= N_FILES; }

static void make_files(void) {
    folder = test_folder_open(0);
    snprintf(shard_path, sizeof(shard_path), "%s/shard.tar", folder.dir);
    FILE *const shard = fopen(shard_path, "wb");
    if (!shard) die("can't write %s", shard_path);
    for (int i = 0; i < N_ALL; i++) {
        char command[512];
        snprintf(paths[i], sizeof(paths[i]), "%s/%04d.jpg", folder.dir, i);
        snprintf(command, sizeof(command), "%s size=8x8 seed=%d %s %.95s", getenv("FM_MKJPEG"), i,
                 i % 5 ? "sampling=420" : "progressive=1", paths[i]);
        test_run(command);
        FILE *const file = fopen(paths[i], "rb");
        size_t n = file ? fread(bytes[i], 1, sizeof(bytes[i]), file) : 0;
        if (!file || fclose(file) || n < 100) die("can't read %s", paths[i]);
        if (is_damaged(i)) n /= 2;
        if (is_damaged(i) && i % 2 && truncate(paths[i], (off_t)n)) die("can't cut %s", paths[i]);
        if (is_damaged(i) && i % 2 == 0 && unlink(paths[i])) die("can't remove %s", paths[i]);
        const fm_sample sample = {.index = i, .label = i, .path = paths[i]};
        samples[FILES][i] = samples[RANGES][i] = samples[MEMORY][i] = sample;
        samples[MEMORY][i].data = bytes[i];
        samples[MEMORY][i].data_bytes = n;
        samples[RANGES][i].path = shard_path;
        samples[RANGES][i].offset_bytes = (uint64_t)ftell(shard);
        samples[RANGES][i].range_bytes = n;
        if (fwrite(bytes[i], 1, n, shard) != n) die("can't write %s", shard_path);
    }
    if (fclose(shard)) die("can't write %s", shard_path);
}

static int locate(void *user, int64_t index, fm_sample *out) {
    *out = ((const fm_sample *)user)[index];
    return FM_OK;
}

/* ---- one loader ------------------------------------------------------------------------------ */

static uint64_t hash_sample(const uint8_t *pixels) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (int i = 0; i < SAMPLE_BYTES; i++) hash = (hash ^ pixels[i]) * 0x100000001b3u;
    return hash;
}

static void check_view(const fm_batch *batch, size_t offset) {
    const uint8_t *const pixels = (const uint8_t *)batch->images + offset;
    for (uint32_t i = 0; i < batch->n; i++) {
        const int64_t index = batch->labels[i];
        if (index < 0 || index >= N_ALL) die("label %lld", (long long)index);
        const uint64_t hash = hash_sample(pixels + i * SAMPLE_BYTES);
        if (!is_damaged(index) && hash != wanted[index])
            die("sample %lld has other pixels than at first", (long long)index);
    }
}

/* All views of a sample are the same. */
static void check_batch(const fm_loader *loader, const fm_batch *batch) {
    fm_view view;
    for (size_t i = 0; fm_loader_view(loader, i, &view) == FM_OK; i++)
        check_view(batch, view.offset);
}

static fm_loader *open_loader(player *self) {
    fm_config config;
    fm_config_init(&config);
    config.source = (fm_source){samples[draw(self, N_SOURCES)], N_ALL, locate};
    config.transform.ops = ops;
    config.transform.n_ops = 1;
    config.transform.dtype = FM_UINT8;
    config.batch_size = 1 + (uint32_t)draw(self, MOST_BATCH);
    config.n_threads = 1 + (uint32_t)draw(self, 2);
    config.prefetch_batches = 1 + (uint32_t)draw(self, 6);
    config.memory_budget_bytes = (uint64_t)64 << 20;
    config.read_ahead_bytes = 1 << 20;
    config.reader = draw(self, 2) ? FM_READER_PREAD : FM_READER_AUTO;
    config.read_depth = 1 + (uint32_t)draw(self, 16);
    config.fallback = draw(self, 2);
    const fm_transform second = config.transform;
    config.more_views = &second;
    config.n_more_views = draw(self, 3) == 0;
    fm_loader *loader = NULL;
    fm_error error;
    if (fm_loader_open(&loader, &config, &error)) die("open: %s", error.message);
    self->n_opened++;
    return loader;
}

/* A damaged sample is filled in, or its batch given up. */
static void finish_sample(player *self, fm_loader *loader) {
    fm_fallback asked;
    if (fm_loader_fallback(loader, &asked)) die("no fallback");
    if (!is_damaged(asked.index)) die("%s", asked.error.message);
    const bool fill = draw(self, 2);
    void *out;
    size_t n_bytes;
    for (size_t i = 0; fill && !fm_loader_fallback_view(loader, i, &out, &n_bytes); i++)
        memset(out, 1, n_bytes);
    if (fm_loader_fallback_done(loader, fill ? FM_OK : asked.cause, NULL)) die("fallback_done");
}

/* Where reads did not end within a stop's 100 ms, as on a crowded machine, the loader is to be
 * closed and another one opened. */
static void give_up(player *self, fm_loader **opened, int status, const fm_error *error) {
    if (status != FM_ERR_READ) die("start or stop: %s", error->message);
    self->n_stuck++;
    fm_loader_close(opened);
}

/* An epoch up to its end or, one of three times, to a batch somewhere in it. */
static void run_epoch(player *self, fm_loader **opened) {
    fm_loader *const loader = *opened;
    int64_t order[N_ALL];
    const size_t n = 1 + draw(self, N_ALL);
    for (size_t i = 0; i < n; i++) order[i] = (int64_t)draw(self, N_ALL);
    const fm_epoch epoch = {.seed = draw(self, 1000), .order = order, .n_order = n};
    fm_batch held[MOST_HELD] = {{0}}, batch;
    fm_error error;
    int status = fm_loader_start(loader, &epoch, &error);
    if (status) {
        give_up(self, opened, status, &error);
        return;
    }
    uint64_t n_left = draw(self, 3) ? UINT64_MAX : draw(self, 10);
    const bool is_whole = n_left == UINT64_MAX;
    while (n_left-- && (status = fm_loader_next(loader, -1, &batch, &error)) != FM_END) {
        if (status == FM_FALLBACK) {
            finish_sample(self, loader);
        } else if (status) {
            if (!is_damaged(error.index)) die("next: %s", error.message);
            self->n_errors++;
        } else {
            check_batch(loader, &batch);
            self->n_samples += batch.n;
            fm_batch *const place = &held[draw(self, MOST_HELD)];
            fm_batch_release(place);
            *place = batch;
        }
    }
    self->n_epochs++;
    self->n_broken += !is_whole;
    if (draw(self, 4) == 0 && (status = fm_loader_stop(loader, &error)))
        give_up(self, opened, status, &error);
    /* Some loaders are closed while their batches are out. */
    if (draw(self, 8) == 0) fm_loader_close(opened);
    for (int i = 0; i < MOST_HELD; i++) fm_batch_release(&held[i]);
}

/* Several epochs of one loader, then another loader. */
static void *play(void *argument) {
    player *const self = argument;
    const int64_t end = self->n_samples + self->n_wanted;
    while (self->n_samples < end) {
        fm_loader *loader = open_loader(self);
        for (uint64_t n = 1 + draw(self, 40); loader && n > 0 && self->n_samples < end; n--)
            run_epoch(self, &loader);
        fm_loader_close(&loader);
    }
    return NULL;
}

/* ---- measuring ------------------------------------------------------------------------------- */

typedef struct measure {
    long rss_kb;
    size_t heap_bytes;
    int n_threads, n_files;
} measure;

static int count_entries(const char *path) {
    DIR *const dir = opendir(path);
    int n = 0;
    while (dir && readdir(dir)) n++;
    if (dir) closedir(dir);
    return n;
}

static long rss_kb(void) {
    long n_pages = 0, n_resident = 0;
    FILE *const file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%ld %ld", &n_pages, &n_resident) != 2) die("no /proc/self/statm");
    fclose(file);
    return n_resident * (sysconf(_SC_PAGESIZE) / 1024);
}

static measure take_measure(void) {
    /* Freed memory goes back to the system: how much of it malloc() keeps depends on luck. */
    malloc_trim(0);
    const struct mallinfo2 heap = mallinfo2();
    return (measure){.rss_kb = rss_kb(),
                     .heap_bytes = heap.uordblks + heap.hblkhd,
                     .n_threads = count_entries("/proc/self/task"),
                     .n_files = count_entries("/proc/self/fd")};
}

static void raise_to(measure *most, const measure *now) {
    if (now->rss_kb > most->rss_kb) most->rss_kb = now->rss_kb;
    if (now->heap_bytes > most->heap_bytes) most->heap_bytes = now->heap_bytes;
}

static void print_measure(const char *when, const measure *now) {
    printf("%s: %ld KiB resident, %zu bytes allocated, %d threads, %d descriptors\n", when,
           now->rss_kb, now->heap_bytes, now->n_threads - 2, now->n_files - 3);
}

static bool has_grown(const measure *now, const measure *before) {
    return now->rss_kb > before->rss_kb + RSS_NOISE_KB ||
           now->heap_bytes > before->heap_bytes + HEAP_NOISE_BYTES ||
           now->n_threads > before->n_threads || now->n_files > before->n_files;
}

/*
 * Measures, and again while that is more than before: io_uring's helpers, and a reader's thread
 * that was not waited for, may be there for a moment more, with what they have.
 */
static measure settle(const measure *before) {
    measure now = take_measure();
    for (int i = 0; i < SETTLE_LIMIT_MS && has_grown(&now, before); i++) {
        usleep(1000);
        now = take_measure();
    }
    return now;
}

/* ---- the whole ------------------------------------------------------------------------------- */

/* The pixels that all later samples are compared with, by one loader and without any haste. */
static void note_pixels(void) {
    fm_config config = test_config((fm_source){samples[MEMORY], N_ALL, locate});
    config.transform.ops = ops;
    config.transform.n_ops = 1;
    config.batch_size = 1;
    fm_loader *loader = test_loader_open(&config);
    int64_t order[N_FILES];
    for (int i = 0; i < N_FILES; i++) order[i] = i;
    const fm_epoch epoch = {.order = order, .n_order = N_FILES};
    fm_batch batch;
    fm_error error;
    if (fm_loader_start(loader, &epoch, &error)) die("start: %s", error.message);
    for (int i = 0; i < N_FILES; i++) {
        if (fm_loader_next(loader, -1, &batch, &error)) die("next: %s", error.message);
        wanted[i] = hash_sample(batch.images);
        fm_batch_release(&batch);
    }
    fm_loader_close(&loader);
}

static int64_t play_round(player *players) {
    int64_t n = 0;
    for (int i = 0; i < N_LOADERS; i++) {
        players[i].n_wanted = ROUND_SAMPLES / N_LOADERS;
        if (pthread_create(&players[i].thread, NULL, play, &players[i])) die("no thread");
    }
    for (int i = 0; i < N_LOADERS; i++) {
        pthread_join(players[i].thread, NULL);
        n += players[i].n_samples;
    }
    return n;
}

static void print_end(const player *players, double seconds) {
    player sum = {0};
    for (int i = 0; i < N_LOADERS; i++) {
        sum.n_samples += players[i].n_samples;
        sum.n_epochs += players[i].n_epochs;
        sum.n_broken += players[i].n_broken;
        sum.n_errors += players[i].n_errors;
        sum.n_stuck += players[i].n_stuck;
        sum.n_opened += players[i].n_opened;
    }
    printf("%lld samples in %.0f s (%.0f a second): %lld epochs, %lld of them broken off, %lld "
           "errors, %lld loaders, %lld of them given up for reads that did not end\n",
           (long long)sum.n_samples, seconds, (double)sum.n_samples / seconds,
           (long long)sum.n_epochs, (long long)sum.n_broken, (long long)sum.n_errors,
           (long long)sum.n_opened, (long long)sum.n_stuck);
}

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

int main(int n_args, char **args) {
    const int64_t n_samples = n_args > 1 ? strtoll(args[1], NULL, 10) : 10000000;
    const uint64_t seed = n_args > 2 ? strtoull(args[2], NULL, 10) : (uint64_t)time(NULL);
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("soak: %lld samples, seed %llu\n", (long long)n_samples, (unsigned long long)seed);
    mallopt(M_ARENA_MAX, 2); /* arenas that threads share: memory in use does not depend on luck */
    make_files();
    note_pixels();
    player players[N_LOADERS] = {{.random = seed}, {.random = ~seed}};
    const measure first = take_measure();
    /* Anything but threads and descriptors may grow in the warm-up. */
    measure before = {LONG_MAX / 2, SIZE_MAX / 2, first.n_threads, first.n_files}, most = {0}, now;
    bool grown = false;
    const double begin_s = now_s();
    int64_t n = 0;
    for (int round = 1; n < n_samples && !grown; round++) {
        n = play_round(players);
        now = settle(&before);
        grown = has_grown(&now, &before);
        raise_to(&most, &now);
        if (round == WARM_UP_ROUNDS) {
            before.rss_kb = most.rss_kb;
            before.heap_bytes = most.heap_bytes;
            print_measure("after the warm-up", &before);
        }
        if (round % 20 == 0) print_measure("so far", &now);
    }
    print_measure("at the end", &now);
    print_end(players, now_s() - begin_s);
    test_folder_close(&folder);
    if (grown) die("it has grown since the warm-up (seed %llu)", (unsigned long long)seed);
    return 0;
}
