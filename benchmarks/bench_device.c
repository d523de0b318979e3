/*
 * Copies to the GPU: the share of the bus's bandwidth that the device stage reaches, and how much
 * it slows a computation that runs at the same time. Needs a GPU; without one it says so and exits
 * with 77.
 *
 *     bench_device [--device 0] [--rounds 5] [--step-ms 20] [--threads 0] [--json]
 *
 * copy: GB/s of batches of 256 x 224 x 224 x 3 bytes from page-locked memory, the best of all
 * rounds, interleaved; `limit` is cudaMemcpyAsync() alone in a loop on the same buffers, `stage`
 * the plug-in's calls as the loader makes them, `convert` the same with float32 NCHW made on the
 * GPU (counted in bytes that cross the bus), `loader` a whole loader whose samples are rows in
 * memory. The goal is 95% of the limit for `stage`.
 *
 * overlap: milliseconds per step of a computation of about --step-ms (repeated memset), alone and
 * with a batch from a loader before each step; the best of all rounds. The goal is at most 2% more.
 */
#define _GNU_SOURCE
#include <cuda_runtime_api.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "device/pinned.h"

#define BATCH 256u
#define SAMPLE_BYTES ((size_t)224 * 224 * 3)
#define BATCH_BYTES (BATCH * SAMPLE_BYTES)
#define N_BUFFERS 4
#define N_COPIES 64
#define N_STEPS 50
#define N_ROWS 2048u
#define WORK_BYTES ((size_t)512 << 20)

typedef struct arguments {
    int device, n_rounds, n_threads;
    double step_ms;
    bool json;
} arguments;

static void check(cudaError_t result, const char *call) {
    if (result == cudaSuccess) return;
    fprintf(stderr, "bench_device: %s: %s\n", call, cudaGetErrorString(result));
    exit(1);
}

static void check_status(int status, const char *call, const fm_error *error) {
    if (status == FM_OK) return;
    fprintf(stderr, "bench_device: %s: %s\n", call, error->message);
    exit(1);
}

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void keep_most(double *best, double value) {
    if (value > *best) *best = value;
}

static void keep_least(double *best, double value) {
    if (*best == 0 || value < *best) *best = value;
}

/* ---- copies ---------------------------------------------------------------------------------- */

typedef struct buffers {
    const fm_device_calls *calls;
    fm_device *device;    /* copies bytes */
    fm_device *converter; /* makes float32 of them */
    fm_pinned pinned;
    fm_allocator allocator;
    void *from[N_BUFFERS];
    void *to[N_BUFFERS]; /* float32 has room */
    cudaStream_t consumer, copier;
} buffers;

static void open_buffers(buffers *b, int device) {
    fm_error error;
    fm_device_options options = {.index = device, .n_slots = N_BUFFERS, .max_bytes = BATCH_BYTES};
    check_status(fm_device_find(FM_DEVICE_CUDA, &b->calls, &error), "plug-in", &error);
    check_status(b->calls->open(&b->device, &options, &error), "open", &error);
    options.format = (fm_device_format){.convert = true,
                                        .dtype = FM_FLOAT32,
                                        .layout = FM_NCHW,
                                        .channels = 3,
                                        .n_px = SAMPLE_BYTES / 3};
    check_status(b->calls->open(&b->converter, &options, &error), "open", &error);
    check_status(fm_pinned_init(&b->pinned, b->calls, b->device, BATCH_BYTES, NULL, &error),
                 "fm_pinned_init", &error);
    b->allocator = fm_pinned_allocator(&b->pinned);
    for (int i = 0; i < N_BUFFERS; i++) {
        void *handle;
        b->from[i] = b->allocator.alloc(b->allocator.user, BATCH_BYTES, &handle);
        if (!b->from[i]) check_status(b->pinned.error.status, "pin", &b->pinned.error);
        memset(b->from[i], i, BATCH_BYTES);
        check(cudaMalloc(&b->to[i], BATCH_BYTES * sizeof(float)), "cudaMalloc");
    }
    check(cudaStreamCreateWithFlags(&b->consumer, cudaStreamNonBlocking), "cudaStreamCreate");
    check(cudaStreamCreateWithFlags(&b->copier, cudaStreamNonBlocking), "cudaStreamCreate");
}

static void close_buffers(buffers *b) {
    fm_error error;
    for (int i = 0; i < N_BUFFERS; i++) {
        b->allocator.free(b->allocator.user, b->from[i], NULL);
        check(cudaFree(b->to[i]), "cudaFree");
    }
    check_status(b->calls->close(&b->device, &error), "close", &error);
    check_status(b->calls->close(&b->converter, &error), "close", &error);
    check(cudaStreamDestroy(b->consumer), "cudaStreamDestroy");
    check(cudaStreamDestroy(b->copier), "cudaStreamDestroy");
}

static double gb_per_s(double begin_s) {
    return (double)BATCH_BYTES * N_COPIES * 1e-9 / (now_s() - begin_s);
}

static double limit_rate(const buffers *b) {
    const double begin_s = now_s();
    for (int i = 0; i < N_COPIES; i++)
        check(cudaMemcpyAsync(b->to[i % N_BUFFERS], b->from[i % N_BUFFERS], BATCH_BYTES,
                              cudaMemcpyHostToDevice, b->copier),
              "cudaMemcpyAsync");
    check(cudaStreamSynchronize(b->copier), "cudaStreamSynchronize");
    return gb_per_s(begin_s);
}

static double stage_rate(const buffers *b, fm_device *device) {
    fm_error error;
    const double begin_s = now_s();
    for (uint32_t i = 0; i < N_COPIES; i++) {
        const uint32_t slot = i % N_BUFFERS;
        const fm_device_job job = {
            .from = b->from[slot], .to = b->to[slot], .n_bytes = BATCH_BYTES, .n_samples = BATCH};
        if (i >= N_BUFFERS) check_status(b->calls->sync(device, slot, &error), "sync", &error);
        check_status(b->calls->mark(device, slot, b->consumer, &error), "mark", &error);
        check_status(b->calls->copy(device, slot, &job, &error), "copy", &error);
        check_status(b->calls->wait(device, slot, b->consumer, &error), "wait", &error);
    }
    check(cudaStreamSynchronize(b->consumer), "cudaStreamSynchronize");
    return gb_per_s(begin_s);
}

/* ---- a loader -------------------------------------------------------------------------------- */

typedef struct user {
    fm_loader *loader;
    fm_output targets[N_BUFFERS];
    size_t n_added;
    int64_t order[N_ROWS];
} user;

static void open_user(user *u, const buffers *b, const fm_array *rows, const arguments *o) {
    fm_config config;
    fm_config_init(&config);
    config.arrays = (fm_arrays){.list = rows, .n = 1};
    config.batch_size = BATCH;
    config.n_threads = (uint32_t)o->n_threads;
    config.device.kind = FM_DEVICE_CUDA;
    config.device.index = o->device;
    fm_error error;
    check_status(fm_loader_open(&u->loader, &config, &error), "fm_loader_open", &error);
    for (int i = 0; i < N_BUFFERS; i++)
        u->targets[i] = (fm_output){
            .images = b->to[i], .image_bytes = BATCH_BYTES * sizeof(float), .stream = b->consumer};
    for (int64_t i = 0; i < N_ROWS; i++) u->order[i] = i;
}

/* One batch; the epochs follow each other. */
static void take(user *u) {
    fm_error error;
    fm_batch batch;
    const fm_epoch epoch = {.order = u->order, .n_order = N_ROWS};
    int status = FM_END;
    while (status == FM_END) {
        if (fm_loader_n_pending(u->loader) == 0)
            check_status(fm_loader_start(u->loader, &epoch, &error), "fm_loader_start", &error);
        while (fm_loader_n_outputs(u->loader) < 2)
            check_status(
                fm_loader_add_output(u->loader, &u->targets[u->n_added++ % N_BUFFERS], &error),
                "fm_loader_add_output", &error);
        status = fm_loader_next(u->loader, -1, &batch, &error);
    }
    check_status(status, "fm_loader_next", &error);
}

static double loader_rate(const buffers *b, user *u) {
    const double begin_s = now_s();
    for (int i = 0; i < N_COPIES; i++) take(u);
    check(cudaStreamSynchronize(b->consumer), "cudaStreamSynchronize");
    return gb_per_s(begin_s);
}

/* ---- a computation --------------------------------------------------------------------------- */

static void compute(const buffers *b, void *work, int n_sets) {
    for (int i = 0; i < n_sets; i++)
        check(cudaMemsetAsync(work, i, WORK_BYTES, b->consumer), "cudaMemsetAsync");
}

/* Milliseconds a step; u NULL: without a loader. */
static double step_ms(const buffers *b, user *u, void *work, int n_sets) {
    const double begin_s = now_s();
    for (int i = 0; i < N_STEPS; i++) {
        if (u) take(u);
        compute(b, work, n_sets);
    }
    check(cudaStreamSynchronize(b->consumer), "cudaStreamSynchronize");
    return (now_s() - begin_s) * 1e3 / N_STEPS;
}

static arguments parse(int argc, char **argv) {
    arguments o = {.n_rounds = 5, .step_ms = 20};
    static const struct option names[] = {
        {"device", required_argument, NULL, 'd'},  {"rounds", required_argument, NULL, 'r'},
        {"step-ms", required_argument, NULL, 's'}, {"threads", required_argument, NULL, 't'},
        {"json", no_argument, NULL, 'j'},          {0}};
    for (int c; (c = getopt_long(argc, argv, "", names, NULL)) != -1;) {
        if (c == 'd')
            o.device = atoi(optarg);
        else if (c == 'r')
            o.n_rounds = atoi(optarg);
        else if (c == 's')
            o.step_ms = atof(optarg);
        else if (c == 't')
            o.n_threads = atoi(optarg);
        else if (c == 'j')
            o.json = true;
        else
            exit(2);
    }
    return o;
}

typedef struct figures {
    double limit, stage, convert, loader; /* GB/s */
    double alone_ms, with_ms;
} figures;

static figures measure(const arguments *o) {
    buffers b = {0};
    user u = {0};
    figures best = {0};
    void *const memory = malloc((size_t)N_ROWS * SAMPLE_BYTES);
    void *work;
    if (!memory) exit(1);
    memset(memory, 1, (size_t)N_ROWS * SAMPLE_BYTES);
    const fm_array rows = {.data = memory, .n_rows = N_ROWS, .row_bytes = SAMPLE_BYTES};
    check(cudaSetDevice(o->device), "cudaSetDevice");
    open_buffers(&b, o->device);
    open_user(&u, &b, &rows, o);
    check(cudaMalloc(&work, WORK_BYTES), "cudaMalloc");
    (void)step_ms(&b, NULL, work, 1); /* the GPU's clocks rise */
    const double one_ms = step_ms(&b, NULL, work, 1);
    const int n_sets = o->step_ms > one_ms ? (int)(o->step_ms / one_ms) : 1;
    for (int i = 0; i < o->n_rounds; i++) {
        keep_most(&best.limit, limit_rate(&b));
        keep_most(&best.stage, stage_rate(&b, b.device));
        keep_most(&best.convert, stage_rate(&b, b.converter));
        keep_most(&best.loader, loader_rate(&b, &u));
        keep_least(&best.alone_ms, step_ms(&b, NULL, work, n_sets));
        keep_least(&best.with_ms, step_ms(&b, &u, work, n_sets));
    }
    fm_loader_close(&u.loader);
    check(cudaFree(work), "cudaFree");
    close_buffers(&b);
    free(memory);
    return best;
}

int main(int argc, char **argv) {
    const arguments o = parse(argc, argv);
    fm_error error;
    if (fm_device_count(FM_DEVICE_CUDA, NULL, &error)) {
        printf("skipped: %s\n", error.message);
        return 77;
    }
    struct cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, o.device), "cudaGetDeviceProperties");
    const figures f = measure(&o);
    if (o.json) {
        printf("{\"gpu\": \"%s\", \"limit_gb_s\": %.3f, \"stage_gb_s\": %.3f, "
               "\"convert_gb_s\": %.3f, \"loader_gb_s\": %.3f, \"alone_ms\": %.4f, "
               "\"with_ms\": %.4f}\n",
               properties.name, f.limit, f.stage, f.convert, f.loader, f.alone_ms, f.with_ms);
        return 0;
    }
    printf("%s\n", properties.name);
    printf("copy     limit %.2f GB/s, stage %.2f (%.1f %%), convert %.2f (%.1f %%), "
           "loader %.2f (%.1f %%)\n",
           f.limit, f.stage, 100 * f.stage / f.limit, f.convert, 100 * f.convert / f.limit,
           f.loader, 100 * f.loader / f.limit);
    printf("overlap  %.3f ms a step alone, %.3f with a loader: %+.2f %%\n", f.alone_ms, f.with_ms,
           100 * (f.with_ms / f.alone_ms - 1));
    return 0;
}
