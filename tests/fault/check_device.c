/*
 * A consumer on a stub GPU (support/stub_cudart.h): tries every way in which two parties could
 * access memory at the same time, and makes each call of the runtime fail once.
 *
 * usage: check_device [RULE]. Without RULE the stub must report no broken rule. With RULE the code
 * under test is a mutant, and the stub must report a broken rule of that name.
 * FEEDMILL_CUDA_LIBRARY names the plug-in, which holds the stub.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>

#include "device_job.h"
#include "stub_cudart.h"

#define N_FILES 22
#define BATCH 4
#define N_BATCHES 6
#define MS 1000000u
/* Targets that the consumer allocates, in turn. */
#define N_TARGETS 4

static const stub_cudart_calls *stub;
static const char *wanted_rule; /* NULL: none */
static test_folder folder;
static fm_folder *source;

/* What batches should hold. */
typedef struct sums {
    uint64_t images[N_BATCHES], labels[N_BATCHES];
} sums;

typedef struct consumer {
    int device;
    void *stream; /* on which targets are allocated */
    void *side;   /* NULL: none; else every other batch is used there */
    fm_loader *loader;
    fm_output targets[N_TARGETS];
    size_t n_added;
    sums got;
} consumer;

/* ---- what happened --------------------------------------------------------------------------- */

static bool has_rule(void) {
    for (const char *line = stub->complaints(); line && *line;) {
        if (wanted_rule && strncmp(line, wanted_rule, strlen(wanted_rule)) == 0) return true;
        line = strchr(line, '\n');
        if (line) line++;
    }
    return false;
}

static int n_scenarios;

/* With what the scenario has left behind. */
static void leave(int code) {
    test_folder_close(&folder);
    fflush(stdout);
    _exit(code);
}

/* At the end of each scenario: exits where that decides. */
static void judge(const char *scenario) {
    n_scenarios++;
    if (wanted_rule && has_rule()) {
        printf("caught in \"%s\":\n%s", scenario, stub->complaints());
        leave(0);
    }
    if (wanted_rule || !*stub->complaints()) return;
    printf("failed in \"%s\":\n%s", scenario, stub->complaints());
    leave(1);
}

static void complain(const char *format, const char *first, const char *second) {
    char text[1400];
    snprintf(text, sizeof(text), format, first, second);
    stub->complain(text);
}

/* ---- the consumer ---------------------------------------------------------------------------- */

static fm_config config_of(fm_device_kind kind, fm_dtype dtype, fm_layout layout) {
    fm_config config = test_device_config(source, kind, dtype, layout);
    config.batch_size = BATCH;
    /* Few slots, so that one that comes back too early is filled at once. */
    config.prefetch_batches = 2;
    return config;
}

static void start(fm_loader *loader, uint32_t number) {
    static int64_t order[N_FILES];
    for (int i = 0; i < N_FILES; i++) order[i] = i;
    const fm_epoch epoch = {.order = order, .n_order = N_FILES, .number = number, .seed = 5};
    fm_error error;
    if (fm_loader_start(loader, &epoch, &error))
        complain("content: start: %s%s", error.message, "");
}

/* The same batches without a device. */
static sums expected(fm_dtype dtype, fm_layout layout, uint32_t number) {
    sums out = {0};
    const fm_config config = config_of(FM_DEVICE_NONE, dtype, layout);
    fm_loader *loader = test_loader_open(&config);
    start(loader, number);
    fm_batch batch;
    const size_t value_bytes = dtype == FM_UINT8 ? 1 : dtype == FM_FLOAT32 ? 4 : 2;
    while (fm_loader_next(loader, -1, &batch, NULL) == FM_OK) {
        const size_t n = (size_t)batch.n * 3 * batch.height * batch.width * value_bytes;
        out.images[batch.number] = stub->sum(batch.images, n);
        out.labels[batch.number] = stub->sum(batch.labels, batch.n * sizeof(int64_t));
        fm_batch_release(&batch);
    }
    fm_loader_close(&loader);
    return out;
}

static bool open_consumer(consumer *user, const fm_config *config, fm_error *error) {
    if (fm_loader_open(&user->loader, config, error)) return false;
    user->device = config->device.index;
    size_t image_bytes, label_bytes;
    fm_loader_output_bytes(user->loader, &image_bytes, &label_bytes);
    for (int i = 0; i < N_TARGETS; i++)
        user->targets[i] = (fm_output){.images = stub->memory(image_bytes),
                                       .image_bytes = image_bytes,
                                       .labels = stub->memory(label_bytes),
                                       .label_bytes = label_bytes,
                                       .stream = user->stream,
                                       .user = &user->targets[i]};
    return true;
}

/* As torch's allocator gives memory out: at once, in the stream's order, whatever ran there. */
static int add_output(consumer *user, fm_error *error) {
    const int status =
        fm_loader_add_output(user->loader, &user->targets[user->n_added % N_TARGETS], error);
    if (!status) user->n_added++;
    return status;
}

static void use(consumer *user, const fm_batch *batch, bool on_side) {
    fm_output *const target = batch->output_user;
    const size_t n = batch->n * target->image_bytes / BATCH;
    void *const stream = on_side ? user->side : user->stream;
    fm_error error;
    if (on_side && fm_loader_wait(user->loader, stream, &error))
        complain("content: wait: %s%s", error.message, "");
    stub->use(user->device, stream, target->images, n, &user->got.images[batch->number]);
    stub->use(user->device, stream, target->labels, batch->n * sizeof(int64_t),
              &user->got.labels[batch->number]);
    /* Where the memory goes back to the stream that it is of. */
    if (on_side) stub->after(user->device, user->stream, stream);
}

/* Receives up to n batches; returns the last status. */
static int take(consumer *user, int n_batches, fm_error *error) {
    int status = FM_OK;
    for (int i = 0; i < n_batches; i++) {
        while (fm_loader_n_outputs(user->loader) < 2 && !status) status = add_output(user, error);
        fm_batch batch;
        if (!status) status = fm_loader_next(user->loader, -1, &batch, error);
        if (status) break;
        use(user, &batch, user->side && i % 2);
    }
    return status;
}

static uint64_t n_queued(const consumer *user) {
    fm_stats stats;
    fm_loader_stats(user->loader, &stats);
    return stats.h2d_batches;
}

/* Waits until n copies were queued. */
static void wait_for_copies(consumer *user, uint64_t n) {
    if (add_output(user, NULL)) complain("content: an output was refused%s%s", "", "");
    for (int i = 0; i < 300000 && n_queued(user) < n; i++) usleep(1000);
    if (n_queued(user) < n) complain("content: no copy was queued ahead%s%s", "", "");
}

static void finish(const consumer *user) {
    stub->finish(user->device, user->stream);
    if (user->side) stub->finish(user->device, user->side);
}

static void compare(const consumer *user, const sums *want) {
    finish(user);
    if (memcmp(&user->got, want, sizeof(*want)))
        complain("content: not what the CPU has%s%s", "", "");
}

/* ---- scenarios ------------------------------------------------------------------------------- */

static void begin(void) {
    stub->reset(2, 2 * MS);
    stub->set_context(-1);
}

static void end(consumer *user, const char *name) {
    fm_loader_close(&user->loader);
    stub->check_context(-1);
    stub->check_leaks();
    /* The consumer owns its outputs again, in the order of its stream. */
    for (int i = 0; i < N_TARGETS; i++) {
        stub->use(user->device, user->stream, user->targets[i].images, user->targets[i].image_bytes,
                  NULL);
        stub->use(user->device, user->stream, user->targets[i].labels, user->targets[i].label_bytes,
                  NULL);
    }
    finish(user);
    judge(name);
}

static void open_or_complain(consumer *user, const fm_config *config) {
    fm_error error;
    if (open_consumer(user, config, &error)) return;
    printf("failed: open: %s\n", error.message);
    exit(1);
}

static void epochs(fm_dtype dtype, fm_layout layout, int device, bool with_side) {
    begin();
    consumer user = {.stream = stub->stream(device)};
    if (with_side) user.side = stub->stream(device);
    fm_config config = config_of(FM_DEVICE_CUDA, dtype, layout);
    config.device.index = device;
    open_or_complain(&user, &config);
    for (uint32_t number = 0; number < 2; number++) {
        fm_error error = {.message = ""};
        start(user.loader, number);
        if (take(&user, N_BATCHES + 1, &error) != FM_END)
            complain("content: next: %s%s", error.message, "");
        const sums want = expected(dtype, layout, number);
        compare(&user, &want);
    }
    end(&user, "epochs");
}

/* torch uses the default stream, whose device is that of the current context. */
static void default_stream(void) {
    begin();
    stub->set_context(0); /* of another device than the loader's */
    consumer user = {.stream = NULL};
    fm_config config = config_of(FM_DEVICE_CUDA, FM_FLOAT32, FM_NCHW);
    config.device.index = 1;
    open_or_complain(&user, &config);
    fm_error error = {.message = ""};
    start(user.loader, 0);
    if (take(&user, N_BATCHES + 1, &error) != FM_END)
        complain("content: next: %s%s", error.message, "");
    const sums want = expected(FM_FLOAT32, FM_NCHW, 0);
    compare(&user, &want);
    stub->check_context(0);
    stub->set_context(-1);
    end(&user, "default stream");
}

/* Copies wait for a long kernel; the epoch is stopped, and the memory is reused. */
static void dropped(bool by_close, bool in_capture) {
    begin();
    consumer user = {.stream = stub->stream(0)};
    const fm_config config = config_of(FM_DEVICE_CUDA, FM_UINT8, FM_NCHW);
    open_or_complain(&user, &config);
    fm_error error = {.message = ""};
    for (int round = 0; round < 3 && !by_close; round++) {
        const uint64_t n_before = n_queued(&user);
        start(user.loader, 0);
        stub->spin(0, user.stream, 20 * MS);
        if (take(&user, 2, &error)) complain("content: next: %s%s", error.message, "");
        wait_for_copies(&user, n_before + 3); /* one more than were delivered */
        if (in_capture) stub->capture(user.stream, 1);
        if (fm_loader_stop(user.loader, &error)) complain("content: stop: %s%s", error.message, "");
        stub->capture(user.stream, 0);
        for (int i = 0; i < N_TARGETS; i++)
            stub->use(0, user.stream, user.targets[i].images, user.targets[i].image_bytes, NULL);
    }
    start(user.loader, 0);
    if (by_close) {
        stub->spin(0, user.stream, 1000 * MS); /* copies still wait when close() is called */
        if (take(&user, 2, &error)) complain("content: next: %s%s", error.message, "");
        wait_for_copies(&user, 3);
    } else {
        if (take(&user, N_BATCHES + 1, &error) != FM_END)
            complain("content: next: %s%s", error.message, "");
        const sums want = expected(FM_UINT8, FM_NCHW, 0);
        compare(&user, &want);
    }
    end(&user, by_close ? "closed" : "dropped");
}

/* Epochs are given up faster than copies are done: each finds its copy slots and buffers. */
static void impatient(void) {
    begin();
    consumer user = {.stream = stub->stream(0)};
    const fm_config config = config_of(FM_DEVICE_CUDA, FM_UINT8, FM_NHWC);
    open_or_complain(&user, &config);
    fm_error error = {.message = ""};
    stub->spin(0, user.stream, 100 * MS);
    for (int round = 0; round < 30; round++) {
        start(user.loader, 0);
        while (fm_loader_n_outputs(user.loader) < 4)
            if (add_output(&user, &error)) complain("content: add_output: %s%s", error.message, "");
        usleep(1000);
        if (fm_loader_stop(user.loader, &error)) complain("content: stop: %s%s", error.message, "");
    }
    start(user.loader, 0);
    if (take(&user, N_BATCHES + 1, &error) != FM_END)
        complain("content: next: %s%s", error.message, "");
    const sums want = expected(FM_UINT8, FM_NHWC, 0);
    compare(&user, &want);
    end(&user, "impatient");
}

static void captured(void) {
    begin();
    consumer user = {.stream = stub->stream(0)};
    void *const other = stub->stream(0);
    fm_config config = config_of(FM_DEVICE_CUDA, FM_FLOAT32, FM_NHWC);
    config.device.defer_wait = true;
    open_or_complain(&user, &config);
    start(user.loader, 0);
    fm_error error = {.message = ""};
    stub->capture(user.stream, 1);
    if (add_output(&user, &error) != FM_ERR_STATE || !strstr(error.message, "captured"))
        complain("content: an output within a capture: %s%s", error.message, "");
    stub->capture(user.stream, 0);
    /* Another thread's capture must not notice. */
    stub->capture(other, 1);
    fm_batch batch;
    if (add_output(&user, &error) || add_output(&user, &error) ||
        fm_loader_next(user.loader, -1, &batch, &error))
        complain("content: during another capture: %s%s", error.message, "");
    if (fm_loader_wait(user.loader, other, &error) != FM_ERR_STATE)
        complain("content: a captured stream was made to wait%s%s", "", "");
    stub->capture(other, 0);
    if (fm_loader_wait(user.loader, user.stream, &error))
        complain("content: wait: %s%s", error.message, "");
    use(&user, &batch, false);
    end(&user, "captured");
}

/* ---- calls that fail ------------------------------------------------------------------------- */

/* Takes note of a status that says that a call failed. */
static void note(int status, const fm_error *error, const char **said, char *copy) {
    if (status >= 0 || *said) return;
    snprintf(copy, sizeof(error->message), "%s", error->message);
    *said = copy;
}

static void use_with_failure(consumer *user, const fm_config *config, const char **said,
                             char *copy) {
    fm_error error = {.message = ""};
    if (!open_consumer(user, config, &error)) {
        note(error.status, &error, said, copy);
        return;
    }
    static const int64_t order[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const fm_epoch epoch = {.order = order, .n_order = 16};
    note(fm_loader_start(user->loader, &epoch, &error), &error, said, copy);
    note(take(user, 3, &error), &error, said, copy);
    note(fm_loader_stop(user->loader, &error), &error, said, copy);
    /* What the device's thread met since then is said when the loader is used again, once that
     * thread has returned from the call; what fails at close nobody is left to hear. */
    const char *const failed = stub->failed();
    for (int i = 0; i < 60000 && (i == 0 || (failed && !*said)); i++) {
        if (i > 0) usleep(1000);
        note(fm_loader_start(user->loader, &epoch, &error), &error, said, copy);
    }
    if (failed && (!*said || !strstr(*said, failed)))
        complain("unchecked: %s failed, and what was said is: %s", failed,
                 *said ? *said : "nothing");
}

static void each_call_fails(void) {
    const fm_config config = config_of(FM_DEVICE_CUDA, FM_FLOAT32, FM_NCHW);
    /* Until a run has fewer calls than that; how often events are asked varies. */
    for (long n = 1, n_without = 0; n_without < 3; n++) {
        stub->reset(2, MS / 5);
        stub->set_context(-1);
        consumer user = {.stream = stub->stream(0)};
        stub->fail_at(n);
        char copy[1024];
        const char *said = NULL;
        use_with_failure(&user, &config, &said, copy);
        fm_loader_close(&user.loader);
        if (!stub->failed()) n_without++;
        stub->finish(0, user.stream);
        stub->check_context(-1);
        stub->check_leaks();
        char name[96];
        snprintf(name, sizeof(name), "call %ld fails: %.32s", n,
                 stub->failed() ? stub->failed() : "none");
        judge(name);
    }
}

/* ---- what can't be opened -------------------------------------------------------------------- */

static void refusal(int n_devices, int32_t index, int status, const char *text) {
    stub->reset(n_devices, 0);
    stub->set_context(-1);
    fm_config config = config_of(FM_DEVICE_CUDA, FM_FLOAT32, FM_NCHW);
    config.device.index = index;
    fm_loader *loader;
    fm_error error = {.message = ""};
    if (fm_loader_open(&loader, &config, &error) != status || !strstr(error.message, text))
        complain("content: open said \"%s\", not \"%s\"", error.message, text);
    if (loader) complain("content: a loader after a failed open%s%s", "", "");
    stub->check_leaks();
    judge("refusals");
}

static void refusals(void) {
    refusal(-1, 0, FM_ERR_UNAVAILABLE, "no driver");
    refusal(0, 0, FM_ERR_UNAVAILABLE, "there is no GPU");
    refusal(2, 2, FM_ERR_ARGUMENT, "device index 2: there are 2");
    refusal(2, -1, FM_ERR_ARGUMENT, "device index -1");
}

int main(int argc, char **argv) {
    const char *const path = getenv("FEEDMILL_CUDA_LIBRARY");
    void *const library = path ? dlopen(path, RTLD_NOW) : NULL;
    union {
        void *data;
        stub_cudart_function *function;
    } symbol = {.data = library ? dlsym(library, "stub_cudart") : NULL};
    if (!symbol.data) {
        fprintf(stderr, "FEEDMILL_CUDA_LIBRARY names no plug-in with the stub\n");
        return 2;
    }
    stub = symbol.function();
    if (argc > 1) wanted_rule = argv[1];
    folder = test_folder_open(N_FILES);
    source = test_source_open(&folder);
    epochs(FM_FLOAT32, FM_NCHW, 0, false);
    epochs(FM_FLOAT16, FM_NHWC, 1, true);
    epochs(FM_UINT8, FM_NCHW, 0, true);
    default_stream();
    dropped(false, false);
    dropped(false, true);
    dropped(true, false);
    impatient();
    captured();
    each_call_fails();
    refusals();
    fm_folder_close(&source);
    test_folder_close(&folder);
    printf("%d scenarios%s\n", n_scenarios, wanted_rule ? ", and the mutant lives" : "");
    return wanted_rule != NULL;
}
