/*
 * Runs the whole pipeline over an image folder without Python: reads, decode, RandomResizedCrop,
 * flip, normalize, batches. Prints rates, CPU time and stage times.
 *
 *     bench_pipeline DIR [--batch-size 64] [--threads N] [--epochs 3] [--size 224]
 *                    [--reader auto|uring|pread] [--depth N]
 *                    [--dtype float32|uint8|float16|bfloat16] [--channels-last] [--touch]
 *                    [--samples N] [--verified] [--seek-index-mib N] [--json]
 *
 * --touch reads every byte of each batch, as a training step or a copy to a GPU does.
 * --samples repeats the folder's order until an epoch has that many samples (default 4,000).
 * --seek-index-mib: fm_config.seek_index_bytes; 0: each epoch decodes as the first one does.
 * --verified: restart intervals that a crop does not need are skipped (fm_sample.verified).
 * Samples that can't be decoded natively are counted as errors with their batch, not fatal.
 */
#define _GNU_SOURCE
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "feedmill/feedmill.h"

typedef struct options {
    const char *dir;
    fm_config config;
    int size;
    int epochs;
    size_t n_samples;
    bool json, touch, verified;
} options;

typedef struct epoch_result {
    double wall_s, cpu_s;
    uint64_t n_samples, n_errors, checksum;
} epoch_result;

static void die(const char *what, const fm_error *error) {
    fprintf(stderr, "bench_pipeline: %s: %s\n", what, error->message);
    exit(1);
}

static void usage(void) {
    fprintf(stderr, "usage: bench_pipeline DIR [--batch-size N] [--threads N] [--epochs N] "
                    "[--size N] [--reader auto|uring|pread] [--depth N] "
                    "[--dtype float32|uint8|float16|bfloat16] [--channels-last] [--touch] "
                    "[--samples N] [--verified] [--seek-index-mib N] [--json]\n");
    exit(2);
}

static double seconds(clockid_t id) {
    struct timespec now;
    clock_gettime(id, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static long parse_number(const char *text, long low, long high) {
    char *end;
    const long value = strtol(text, &end, 10);
    if (end == text || *end || value < low || value > high) {
        fprintf(stderr, "bench_pipeline: '%s' is not a number from %ld to %ld\n", text, low, high);
        exit(2);
    }
    return value;
}

static void parse_reader(const char *name, options *out) {
    if (strcmp(name, "auto") == 0)
        out->config.reader = FM_READER_AUTO;
    else if (strcmp(name, "uring") == 0)
        out->config.reader = FM_READER_URING;
    else if (strcmp(name, "pread") == 0)
        out->config.reader = FM_READER_PREAD;
    else
        usage();
}

static void parse_dtype(const char *name, options *out) {
    static const char *const names[] = {"uint8", "float32", "float16", "bfloat16"};
    for (int i = 0; i < 4; i++) {
        if (strcmp(name, names[i])) continue;
        out->config.transform.dtype = (fm_dtype)(FM_UINT8 + i);
        return;
    }
    usage();
}

static void parse(int argc, char **argv, options *out) {
    static const struct option long_options[] = {{"batch-size", required_argument, NULL, 'b'},
                                                 {"threads", required_argument, NULL, 't'},
                                                 {"epochs", required_argument, NULL, 'e'},
                                                 {"size", required_argument, NULL, 's'},
                                                 {"reader", required_argument, NULL, 'r'},
                                                 {"dtype", required_argument, NULL, 'd'},
                                                 {"samples", required_argument, NULL, 'n'},
                                                 {"json", no_argument, NULL, 'j'},
                                                 {"depth", required_argument, NULL, 'q'},
                                                 {"channels-last", no_argument, NULL, 'l'},
                                                 {"touch", no_argument, NULL, 'c'},
                                                 {"verified", no_argument, NULL, 'v'},
                                                 {"seek-index-mib", required_argument, NULL, 'i'},
                                                 {NULL, 0, NULL, 0}};
    fm_config_init(&out->config);
    out->size = 224;
    out->epochs = 3;
    out->n_samples = 4000;
    for (int c; (c = getopt_long(argc, argv, "", long_options, NULL)) != -1;) {
        if (c == 'b')
            out->config.batch_size = (uint32_t)parse_number(optarg, 1, 65536);
        else if (c == 't')
            out->config.n_threads = (uint32_t)parse_number(optarg, 1, 1024);
        else if (c == 'e')
            out->epochs = (int)parse_number(optarg, 1, 1000000);
        else if (c == 's')
            out->size = (int)parse_number(optarg, 1, 65535);
        else if (c == 'n')
            out->n_samples = (size_t)parse_number(optarg, 1, 1L << 40);
        else if (c == 'q')
            out->config.read_depth = (uint32_t)parse_number(optarg, 1, 4096);
        else if (c == 'r')
            parse_reader(optarg, out);
        else if (c == 'd')
            parse_dtype(optarg, out);
        else if (c == 'l')
            out->config.transform.layout = FM_NHWC;
        else if (c == 'c')
            out->touch = true;
        else if (c == 'i')
            out->config.seek_index_bytes = (uint64_t)parse_number(optarg, 0, 1L << 40) << 20;
        else if (c == 'v')
            out->verified = true;
        else if (c == 'j')
            out->json = true;
        else
            usage();
    }
    if (optind + 1 != argc) usage();
    out->dir = argv[optind];
}

/* The samples of another source, each verified. */
static int locate_verified(void *user, int64_t index, fm_sample *out) {
    const fm_source *const files = user;
    const int status = files->locate(files->user, index, out);
    out->verified = true;
    return status;
}

/* A shuffled order over the folder, repeated to n samples. xorshift: any shuffle will do here. */
static void make_order(int64_t *order, size_t n, size_t n_files, uint64_t seed) {
    for (size_t i = 0; i < n; i++) order[i] = (int64_t)(i % n_files);
    uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
    for (size_t i = n; i > 1; i--) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        const size_t j = state % i;
        const int64_t swap = order[i - 1];
        order[i - 1] = order[j];
        order[j] = swap;
    }
}

/* A sum over all of a batch, whatever its type. */
static uint64_t sum_of(const fm_batch *batch) {
    const size_t value_bytes = batch->dtype == FM_UINT8 ? 1 : batch->dtype == FM_FLOAT32 ? 4 : 2;
    const size_t n_words = 3ull * batch->n * batch->height * batch->width * value_bytes / 8;
    const uint64_t *const words = batch->images;
    uint64_t sum = 0;
    for (size_t i = 0; i < n_words; i++) sum += words[i];
    return sum;
}

static epoch_result run_epoch(fm_loader *loader, const fm_epoch *epoch, bool touch) {
    epoch_result result = {0};
    fm_error error;
    const double wall = seconds(CLOCK_MONOTONIC), cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
    if (fm_loader_start(loader, epoch, &error)) die("start", &error);
    fm_batch batch;
    for (int status; (status = fm_loader_next(loader, -1, &batch, &error)) != FM_END;) {
        if (status < 0 && error.index < 0) die("next", &error);
        if (status < 0) {
            fprintf(stderr, "bench_pipeline: %s\n", error.message);
            result.n_errors++;
            continue;
        }
        result.n_samples += batch.n;
        result.checksum += touch ? sum_of(&batch) : *(const uint8_t *)batch.images;
        fm_batch_release(&batch);
    }
    result.wall_s = seconds(CLOCK_MONOTONIC) - wall;
    result.cpu_s = seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    return result;
}

static void print_epoch(const options *o, int number, const epoch_result *r) {
    const double n = (double)r->n_samples;
    if (o->json)
        printf("{\"epoch\": %d, \"samples\": %.0f, \"wall_s\": %.4f, \"cpu_s\": %.4f, "
               "\"img_per_s\": %.1f, \"img_per_cpu_s\": %.1f, \"error_batches\": %llu, "
               "\"sum\": %llu}\n",
               number, n, r->wall_s, r->cpu_s, n / r->wall_s, n / r->cpu_s,
               (unsigned long long)r->n_errors, (unsigned long long)r->checksum);
    else
        printf("epoch %d: %.0f images in %.2f s: %.0f img/s, %.0f img per CPU-second\n", number, n,
               r->wall_s, n / r->wall_s, n / r->cpu_s);
}

static void print_stages(const options *o, const fm_stats *s) {
    const double n = s->native_samples ? (double)s->native_samples : 1;
    const double us = 1e-3;
    if (o->json)
        printf("{\"reader\": \"%s\", \"threads\": %llu, \"read_us\": %.1f, \"decode_us\": %.1f, "
               "\"transform_us\": %.1f, \"worker_idle_s\": %.3f, \"read_bytes\": %llu}\n",
               s->reader, (unsigned long long)s->n_threads, (double)s->read_ns * us / n,
               (double)s->decode_ns * us / n, (double)s->transform_ns * us / n,
               (double)s->worker_idle_ns * 1e-9, (unsigned long long)s->read_bytes);
    else
        printf("reader: %s (%s)\nper image: read %.0f us (in flight), decode %.0f us, transform "
               "%.0f us; %llu decode threads idle for %.2f s in all\nread %.1f MB in %llu files\n",
               s->reader, s->reader_reason, (double)s->read_ns * us / n,
               (double)s->decode_ns * us / n, (double)s->transform_ns * us / n,
               (unsigned long long)s->n_threads, (double)s->worker_idle_ns * 1e-9,
               (double)s->read_bytes * 1e-6, (unsigned long long)s->read_files);
}

int main(int argc, char **argv) {
    options o = {0};
    parse(argc, argv, &o);
    fm_error error;
    fm_folder *folder = NULL;
    if (fm_folder_open(&folder, o.dir, &error)) die("folder", &error);
    fm_source files = fm_folder_source(folder);
    o.config.source = o.verified ? (fm_source){&files, files.n_samples, locate_verified} : files;
    const fm_op ops[] = {{.kind = FM_OP_RANDOM_RESIZED_CROP,
                          .height = o.size,
                          .width = o.size,
                          .scale = {0.08, 1},
                          .ratio = {3.0 / 4, 4.0 / 3}},
                         {.kind = FM_OP_RANDOM_HORIZONTAL_FLIP, .p = 0.5}};
    const float mean[3] = {0.485f, 0.456f, 0.406f}, std[3] = {0.229f, 0.224f, 0.225f};
    o.config.transform.ops = ops;
    o.config.transform.n_ops = 2;
    memcpy(o.config.transform.mean, mean, sizeof(mean));
    memcpy(o.config.transform.std, std, sizeof(std));
    fm_loader *loader = NULL;
    if (fm_loader_open(&loader, &o.config, &error)) die("open", &error);
    const size_t n_files = o.config.source.n_samples;
    const size_t n = o.n_samples > n_files ? o.n_samples : n_files;
    int64_t *const order = malloc(n * sizeof(*order));
    if (!order) return 1;
    for (int e = 0; e < o.epochs; e++) {
        make_order(order, n, n_files, (uint64_t)e + 1);
        const fm_epoch epoch = {.seed = 1, .number = (uint32_t)e, .order = order, .n_order = n};
        const epoch_result result = run_epoch(loader, &epoch, o.touch);
        print_epoch(&o, e, &result);
    }
    fm_stats stats;
    fm_loader_stats(loader, &stats);
    print_stages(&o, &stats);
    fm_loader_close(&loader);
    fm_folder_close(&folder);
    free(order);
    return 0;
}
