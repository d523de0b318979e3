/*
 * The cost of a sample outside of the decoder and the transform: submitting, reading, dequeueing,
 * wake-ups, delivery. Runs the pipeline over one tiny JPEG, in memory and from a file in the page
 * cache, and prints nanoseconds per sample.
 *
 *     bench_handover [--epochs 15] [--samples 20000] [--source memory|pread|uring] [--json]
 *
 * cpu is the CPU time of all threads, work its part in decoder and transform, hand-over the
 * difference. Each is the minimum over all epochs, as noise only adds to it. switches: voluntary
 * context switches per sample.
 */
#define _GNU_SOURCE
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "feedmill/feedmill.h"

/* 8 x 8 pixels of one gray value. */
static const uint8_t tiny_jpeg[] = {
    0xff, 0xd8, 0xff, 0xdb, 0x00, 0x43, 0x00, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01,
    0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01,
    0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01,
    0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01,
    0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0xff, 0xc0, 0x00, 0x0b, 0x08, 0x00, 0x08, 0x00, 0x08,
    0x01, 0x01, 0x11, 0x00, 0xff, 0xc4, 0x00, 0x14, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0xff, 0xc4, 0x00, 0x14, 0x10, 0x01,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0xff, 0xda, 0x00, 0x08, 0x01, 0x01, 0x00, 0x00, 0x3f, 0x00, 0x3f, 0xff, 0xd9};

typedef struct options {
    int n_epochs;
    size_t n_samples;
    const char *source; /* this one only; NULL: all */
    bool json;
} options;

typedef struct setting {
    const char *source; /* "memory", "pread" or "uring" */
    uint32_t n_threads, batch_size, prefetch_batches;
} setting;

typedef struct figures {
    double cpu_ns, work_ns, wall_ns, switches; /* a sample */
} figures;

static void die(const char *what, const fm_error *error) {
    fprintf(stderr, "bench_handover: %s: %s\n", what, error->message);
    exit(1);
}

static double now_ns(clockid_t id) {
    struct timespec now;
    clock_gettime(id, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static int locate(void *user, int64_t index, fm_sample *out) {
    out->index = out->label = index;
    if (user)
        out->path = user;
    else
        *out = (fm_sample){
            .index = index, .label = index, .data = tiny_jpeg, .data_bytes = sizeof(tiny_jpeg)};
    return FM_OK;
}

static double count_switches(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_nvcsw;
}

static double work_ns(fm_loader *loader) {
    fm_stats stats;
    fm_loader_stats(loader, &stats);
    return (double)(stats.decode_ns + stats.transform_ns);
}

static figures run_epoch(fm_loader *loader, const fm_epoch *epoch) {
    fm_error error;
    fm_batch batch;
    size_t n = 0;
    const double work = work_ns(loader), switches = count_switches();
    const double cpu = now_ns(CLOCK_PROCESS_CPUTIME_ID), wall = now_ns(CLOCK_MONOTONIC);
    if (fm_loader_start(loader, epoch, &error)) die("start", &error);
    for (int status; (status = fm_loader_next(loader, -1, &batch, &error)) != FM_END;) {
        if (status) die("next", &error);
        n += batch.n;
        fm_batch_release(&batch);
    }
    const double per_sample = 1.0 / (double)epoch->n_order;
    if (n != epoch->n_order) {
        fprintf(stderr, "bench_handover: %zu samples came of %zu\n", n, epoch->n_order);
        exit(1);
    }
    return (figures){
        .wall_ns = (now_ns(CLOCK_MONOTONIC) - wall) * per_sample,
        .cpu_ns = (now_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu) * per_sample,
        .work_ns = (work_ns(loader) - work) * per_sample,
        .switches = (count_switches() - switches) * per_sample,
    };
}

static double least(double a, double b) { return a < b ? a : b; }

static figures measure(const options *o, const setting *s, char *path) {
    const bool from_file = strcmp(s->source, "memory") != 0;
    fm_config config;
    fm_config_init(&config);
    const fm_op op = {.kind = FM_OP_CENTER_CROP, .height = 8, .width = 8};
    config.transform.ops = &op;
    config.transform.n_ops = 1;
    config.transform.dtype = FM_UINT8;
    config.source = (fm_source){from_file ? path : NULL, o->n_samples, locate};
    config.reader = strcmp(s->source, "uring") == 0 ? FM_READER_URING : FM_READER_PREAD;
    config.n_threads = s->n_threads;
    config.batch_size = s->batch_size;
    config.prefetch_batches = s->prefetch_batches;
    fm_error error;
    fm_loader *loader = NULL;
    figures best = {1e18, 1e18, 1e18, 1e18};
    if (fm_loader_open(&loader, &config, &error)) {
        if (error.status == FM_ERR_UNAVAILABLE) return best;
        die("open", &error);
    }
    int64_t *const order = malloc(o->n_samples * sizeof(*order));
    if (!order) exit(1);
    for (size_t i = 0; i < o->n_samples; i++) order[i] = (int64_t)i;
    for (int e = 0; e < o->n_epochs; e++) {
        const fm_epoch epoch = {.number = (uint32_t)e, .order = order, .n_order = o->n_samples};
        const figures one = run_epoch(loader, &epoch);
        best = (figures){least(best.cpu_ns, one.cpu_ns), least(best.work_ns, one.work_ns),
                         least(best.wall_ns, one.wall_ns), least(best.switches, one.switches)};
    }
    free(order);
    fm_loader_close(&loader);
    return best;
}

static void print(const options *o, const setting *s, const figures *f) {
    if (f->cpu_ns > 1e17)
        fprintf(stderr, "%s can't be had here\n", s->source);
    else if (o->json)
        printf("{\"source\": \"%s\", \"threads\": %u, \"batch_size\": %u, \"handover_ns\": %.0f, "
               "\"cpu_ns\": %.0f, \"work_ns\": %.0f, \"wall_ns\": %.0f, \"switches\": %.3f}\n",
               s->source, s->n_threads, s->batch_size, f->cpu_ns - f->work_ns, f->cpu_ns,
               f->work_ns, f->wall_ns, f->switches);
    else
        printf("%-8s %7u %6u %10.0f %8.0f %8.0f %8.0f %9.3f\n", s->source, s->n_threads,
               s->batch_size, f->cpu_ns - f->work_ns, f->cpu_ns, f->work_ns, f->wall_ns,
               f->switches);
}

static void parse(int argc, char **argv, options *out) {
    static const struct option long_options[] = {{"epochs", required_argument, NULL, 'e'},
                                                 {"samples", required_argument, NULL, 'n'},
                                                 {"source", required_argument, NULL, 's'},
                                                 {"json", no_argument, NULL, 'j'},
                                                 {NULL, 0, NULL, 0}};
    *out = (options){.n_epochs = 15, .n_samples = 20000};
    for (int c; (c = getopt_long(argc, argv, "", long_options, NULL)) != -1;) {
        if (c == 'e')
            out->n_epochs = atoi(optarg);
        else if (c == 'n')
            out->n_samples = (size_t)atol(optarg);
        else if (c == 's')
            out->source = optarg;
        else if (c == 'j')
            out->json = true;
    }
    if (out->n_epochs < 1 || out->n_samples < 1 || optind != argc) {
        fprintf(stderr, "usage: bench_handover [--epochs N] [--samples N] [--source "
                        "memory|pread|uring] [--json]\n");
        exit(2);
    }
}

int main(int argc, char **argv) {
    static const setting settings[] = {
        {"memory", 1, 64, 4}, {"memory", 2, 64, 4}, {"memory", 1, 1, 64}, {"memory", 2, 1, 64},
        {"pread", 1, 64, 4},  {"pread", 2, 64, 4},  {"uring", 1, 64, 4},  {"uring", 2, 64, 4},
    };
    options o;
    parse(argc, argv, &o);
    char path[] = "/tmp/bench_handover_XXXXXX";
    const int file = mkstemp(path);
    if (file < 0 || write(file, tiny_jpeg, sizeof(tiny_jpeg)) != (ssize_t)sizeof(tiny_jpeg)) {
        perror("bench_handover: a file in /tmp");
        return 1;
    }
    close(file);
    if (!o.json)
        printf("%-8s %7s %6s %10s %8s %8s %8s %9s   (ns a sample)\n", "source", "threads", "batch",
               "hand-over", "cpu", "work", "wall", "switches");
    for (size_t i = 0; i < sizeof(settings) / sizeof(*settings); i++) {
        if (o.source && strcmp(o.source, settings[i].source)) continue;
        const figures f = measure(&o, &settings[i], path);
        print(&o, &settings[i], &f);
        fflush(stdout);
    }
    unlink(path);
    return 0;
}
