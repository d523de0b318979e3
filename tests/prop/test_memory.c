/*
 * Samples whose encoded image is in memory: results equal those of a file with the same bytes, and
 * the memory is not read beyond its end, nor after the caller owns it again. All images end at a
 * page that can't be read.
 */
#define _GNU_SOURCE
#include <sys/resource.h>

#include "folder.h"
#include "guarded.h"
#include "resident.h"

#define N_FILES 30
#define SAMPLE_BYTES (3 * 24 * 32)

static test_folder images;
static fm_folder *folder;
static char paths[N_FILES][128];
static test_guarded in_memory[N_FILES];
static size_t file_bytes[N_FILES];

static void fill_memory(void) {
    static uint8_t bytes[1 << 20];
    for (int i = 0; i < N_FILES; i++) {
        snprintf(paths[i], sizeof(paths[i]), "%s/%04d.jpg", images.dir, i);
        FILE *const in = fopen(paths[i], "rb");
        assert_non_null(in);
        file_bytes[i] = fread(bytes, 1, sizeof(bytes), in);
        fclose(in);
        assert_in_range(file_bytes[i], 1, sizeof(bytes) - 1);
        in_memory[i] = test_guarded_open(bytes, file_bytes[i]);
    }
}

static void free_memory(void) {
    for (int i = 0; i < N_FILES; i++) test_guarded_close(&in_memory[i]);
}

static int set_up(void **state) {
    (void)state;
    images = test_folder_open(N_FILES);
    fill_memory();
    return fm_folder_open(&folder, images.dir, NULL);
}

static int tear_down(void **state) {
    (void)state;
    fm_folder_close(&folder);
    free_memory();
    test_folder_close(&images);
    return 0;
}

static fm_sample sample_of(int64_t index, bool memory) {
    if (!memory) return (fm_sample){.index = index, .label = index, .path = paths[index]};
    return (fm_sample){.index = index,
                       .label = index,
                       .path = index % 2 ? paths[index] : NULL,
                       .data = in_memory[index].bytes,
                       .data_bytes = in_memory[index].n};
}

static void start(fm_loader *loader) {
    const fm_epoch epoch = {.seed = 42};
    fm_error error;
    if (fm_loader_start(loader, &epoch, &error)) fail_msg("start: %s", error.message);
}

static void submit(fm_loader *loader, const fm_sample *samples, size_t n) {
    fm_error error;
    const int status = fm_loader_submit(loader, samples, n, &error);
    if (status) fail_msg("submit: %d %s", status, status < 0 ? error.message : "");
}

/* Batches of eight samples from memory until no more fit in; the first has sample `from`. */
static void submit_all(fm_loader *loader, int from) {
    fm_error error;
    int status = FM_OK;
    for (int at = from; !status; at += 8) {
        fm_sample samples[8];
        for (int i = 0; i < 8; i++) samples[i] = sample_of((at + i) % N_FILES, true);
        status = fm_loader_submit(loader, samples, 8, &error);
    }
    assert_int_equal(status, FM_AGAIN);
}

static void next(fm_loader *loader, fm_batch *batch) {
    fm_error error;
    const int status = fm_loader_next(loader, -1, batch, &error);
    if (status) fail_msg("next: %d %s", status, status < 0 ? error.message : "");
}

/* Every n-th sample is in memory; 0: none. */
static int locate(void *user, int64_t index, fm_sample *out) {
    assert_null(out->data);
    const int nth = *(const int *)user;
    *out = sample_of(index, nth && index % nth == 0);
    return FM_OK;
}

/* Runs an epoch of an order; the pixels of the k-th sample go to out + k * SAMPLE_BYTES. */
static void run_order(fm_loader *loader, uint8_t *out) {
    int64_t order[2 * N_FILES]; /* each index twice */
    for (int i = 0; i < 2 * N_FILES; i++) order[i] = i * 7 % N_FILES;
    const fm_epoch epoch = {.seed = 42, .order = order, .n_order = 2 * N_FILES};
    fm_batch batch;
    fm_error error;
    size_t n = 0;
    assert_int_equal(fm_loader_start(loader, &epoch, &error), FM_OK);
    int status;
    while ((status = fm_loader_next(loader, -1, &batch, &error)) == FM_OK) {
        memcpy(out + n * SAMPLE_BYTES, batch.images, batch.n * SAMPLE_BYTES);
        for (uint32_t i = 0; i < batch.n; i++) assert_int_equal(batch.labels[i], order[n + i]);
        n += batch.n;
        fm_batch_release(&batch);
    }
    assert_int_equal(status, FM_END);
    assert_int_equal(n, 2 * N_FILES);
}

static void pixels_are_those_of_files(void **state) {
    (void)state;
    static uint8_t reference[2 * N_FILES * SAMPLE_BYTES], pixels[sizeof(reference)];
    int nth = 0;
    fm_config config = test_config((fm_source){&nth, N_FILES, locate});
    fm_loader *loader = test_loader_open(&config);
    run_order(loader, reference);
    fm_loader_close(&loader);
    for (nth = 1; nth <= 3; nth++) {
        for (uint32_t threads = 1; threads <= 4; threads += 3) {
            config.n_threads = threads;
            config.batch_size = 5 * threads;
            loader = test_loader_open(&config);
            for (int round = 0; round < 2; round++) {
                memset(pixels, 0, sizeof(pixels));
                run_order(loader, pixels);
                assert_memory_equal(pixels, reference, sizeof(reference));
            }
            fm_stats stats;
            fm_loader_stats(loader, &stats);
            uint64_t n_files = 0, n_bytes = 0;
            for (int i = 0; i < N_FILES; i++) {
                if (i % nth == 0) continue;
                n_files += 4;
                n_bytes += 4 * file_bytes[i];
            }
            assert_int_equal(stats.samples, 4 * N_FILES);
            assert_int_equal(stats.native_samples, 4 * N_FILES);
            assert_int_equal(stats.read_files, n_files);
            assert_int_equal(stats.read_opens, n_files);
            assert_int_equal(stats.read_bytes, n_bytes);
            if (nth == 1) assert_int_equal(stats.read_ns, 0);
            fm_loader_close(&loader);
        }
    }
}

/* An index may be a small image in memory now, and a large file the next time. */
static void the_size_of_a_file_is_remembered_for_files_only(void **state) {
    (void)state;
    const fm_config config = test_config(fm_folder_source(folder));
    fm_loader *loader = test_loader_open(&config);
    fm_sample samples[2] = {sample_of(0, false), sample_of(0, true)};
    samples[1].data = in_memory[1].bytes;
    samples[1].data_bytes = in_memory[1].n;
    uint8_t pixels[2][SAMPLE_BYTES];
    for (int round = 0; round < 4; round++) {
        start(loader);
        submit(loader, &samples[round % 2], 1);
        fm_batch batch;
        next(loader, &batch);
        if (round >= 2) assert_memory_equal(pixels[round % 2], batch.images, SAMPLE_BYTES);
        memcpy(pixels[round % 2], batch.images, SAMPLE_BYTES);
        fm_batch_release(&batch);
    }
    assert_memory_not_equal(pixels[0], pixels[1], SAMPLE_BYTES);
    fm_loader_close(&loader);
}

/* ---- large images ---------------------------------------------------------------------------- */

static size_t peak_bytes(void) {
    struct rusage usage;
    assert_int_equal(getrusage(RUSAGE_SELF, &usage), 0);
    return (size_t)usage.ru_maxrss << 10;
}

/* The coefficients of a progressive image are no longer there when its thread waits. */
static void waiting_threads_give_memory_back(void **state) {
    (void)state;
    char path[128], command[512];
    snprintf(path, sizeof(path), "%s/large.jpg", images.dir);
    snprintf(command, sizeof(command), "%s size=3500x2500 sampling=444 progressive=1 noise=0 %s",
             getenv("FM_MKJPEG"), path);
    test_run(command);
    /* Of the whole image. */
    const fm_op resize = {.kind = FM_OP_RESIZE, .height = 24, .width = 32};
    fm_config config = test_config(fm_folder_source(folder));
    config.transform.ops = &resize;
    config.transform.n_ops = 1;
    config.n_threads = 1;
    fm_loader *loader = test_loader_open(&config);
    fm_batch batch;
    /* The first time the memory is new, from then on it is the thread's. */
    for (int round = 0; round < 3; round++) {
        const size_t before = resident_bytes();
        const fm_sample sample = {.index = 0, .path = path};
        start(loader);
        submit(loader, &sample, 1);
        next(loader, &batch);
        assert_true(peak_bytes() > before + (40 << 20));
        fm_batch_release(&batch);
        /* Sooner or later, and not before the thread has nothing left to do. */
        bool is_back = false;
        for (int ms = 0; !is_back && ms < 300000; ms++) {
            usleep(1000);
            is_back = resident_bytes() + (40 << 20) <= peak_bytes();
        }
        assert_true(is_back);
    }
    fm_loader_close(&loader);
    unlink(path);
}

/* ---- data that is no image ------------------------------------------------------------------- */

/* The outcome of a batch of one sample, and its text. */
static int outcome(fm_loader *loader, const fm_sample *sample, fm_error *error) {
    start(loader);
    submit(loader, sample, 1);
    fm_batch batch;
    const int status = fm_loader_next(loader, -1, &batch, error);
    fm_batch_release(&batch);
    return status;
}

static void refusals_are_those_of_files(void **state) {
    (void)state;
    char path[128];
    snprintf(path, sizeof(path), "%s/bad.bin", images.dir);
    uint8_t text[3000];
    memset(text, 'x', sizeof(text));
    const struct {
        const void *bytes;
        size_t n;
        int status;
    } bad[] = {{text, 0, FM_ERR_FORMAT},
               {text, 1, FM_ERR_FORMAT},
               {text, 2000, FM_ERR_FORMAT},
               {text, 2001, FM_ERR_LIMIT},
               {text, 3000, FM_ERR_LIMIT},
               {"GIF89a..", 8, FM_ERR_FORMAT},
               {"\xff\xd8\xff", 3, FM_ERR_DAMAGED},
               {in_memory[0].bytes, 100, FM_ERR_DAMAGED},
               {in_memory[0].bytes, in_memory[0].n - 1, FM_ERR_DAMAGED}};
    fm_config config = test_config(fm_folder_source(folder));
    config.max_file_bytes = 2000;
    assert_in_range(in_memory[0].n, 101, 2000);
    fm_loader *loader = test_loader_open(&config);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        FILE *const out = fopen(path, "wb");
        assert_int_equal(fwrite(bad[i].bytes, 1, bad[i].n, out), bad[i].n);
        fclose(out);
        const test_guarded data = test_guarded_open(bad[i].bytes, bad[i].n);
        fm_sample sample = {.index = 3, .path = path};
        fm_error of_file, of_memory;
        assert_int_equal(outcome(loader, &sample, &of_file), bad[i].status);
        sample.data = data.bytes;
        sample.data_bytes = data.n;
        assert_int_equal(outcome(loader, &sample, &of_memory), bad[i].status);
        assert_int_equal(of_memory.index, 3);
        assert_string_equal(of_memory.message, of_file.message);
        for (int named = 0; named < 2; named++) {
            sample.path = named ? "" : NULL;
            assert_int_equal(outcome(loader, &sample, &of_memory), bad[i].status);
            assert_non_null(strstr(of_memory.message, "sample 3 (in memory): "));
        }
        test_guarded_close(&data);
    }
    fm_stats stats;
    fm_loader_stats(loader, &stats);
    assert_int_equal(stats.errors, 4 * sizeof(bad) / sizeof(bad[0]));
    fm_loader_close(&loader);
    unlink(path);
}

static void the_caller_can_finish_them(void **state) {
    (void)state;
    fm_config config = test_config(fm_folder_source(folder));
    config.fallback = true;
    config.max_file_bytes = 1 << 16;
    fm_loader *loader = test_loader_open(&config);
    const test_guarded large = test_guarded_open(NULL, (1 << 16) + 1);
    const test_guarded rubbish = test_guarded_open("rubbish", 7);
    const fm_sample samples[] = {
        sample_of(0, true),
        {.index = 1, .path = "a name", .data = large.bytes, .data_bytes = large.n},
        sample_of(2, false),
        {.index = 3, .data = rubbish.bytes, .data_bytes = rubbish.n}};
    start(loader);
    submit(loader, samples, 4);
    fm_batch batch;
    fm_fallback item;
    fm_error error;
    for (int i = 1; i < 4; i += 2) {
        assert_int_equal(fm_loader_next(loader, -1, &batch, &error), FM_FALLBACK);
        assert_int_equal(fm_loader_fallback(loader, &item), FM_OK);
        assert_int_equal(item.position, i);
        assert_int_equal(item.cause, i == 1 ? FM_ERR_LIMIT : FM_ERR_FORMAT);
        assert_string_equal(item.path, i == 1 ? "a name" : "");
        assert_ptr_equal(item.data, samples[i].data);
        assert_int_equal(item.data_bytes, samples[i].data_bytes);
        memset(item.out, 90 + i, item.out_bytes);
        assert_int_equal(fm_loader_fallback_done(loader, FM_OK, &error), FM_OK);
    }
    next(loader, &batch);
    assert_int_equal(((uint8_t *)batch.images)[SAMPLE_BYTES], 91);
    assert_int_equal(((uint8_t *)batch.images)[3 * SAMPLE_BYTES], 93);
    fm_batch_release(&batch);
    fm_stats stats;
    fm_loader_stats(loader, &stats);
    assert_int_equal(stats.fallback_limit, 1);
    assert_int_equal(stats.fallback_format, 1);
    assert_int_equal(stats.native_samples, 2);
    assert_int_equal(stats.read_files, 1);
    fm_loader_close(&loader);
    test_guarded_close(&large);
    test_guarded_close(&rubbish);
}

/* Such a batch is complete when it is submitted, also where no slot is free for it yet. */
static void batches_of_nothing_but_too_large_ones_wait_their_turn(void **state) {
    (void)state;
    fm_config config = test_config(fm_folder_source(folder));
    config.fallback = true;
    config.prefetch_batches = 6;
    config.read_ahead_bytes = 1 << 20;
    config.max_file_bytes = 10;
    config.memory_budget_bytes = 0;
    fm_loader *loader = NULL;
    do {
        config.memory_budget_bytes += 10000;
    } while (fm_loader_open(&loader, &config, NULL) == FM_ERR_BUDGET);
    assert_non_null(loader);
    fm_stats stats;
    fm_loader_stats(loader, &stats);
    assert_int_equal(stats.n_slots, 3);
    start(loader);
    submit_all(loader, 0);
    assert_int_equal(fm_loader_n_pending(loader), 6);
    for (int i = 0; i < 6; i++) {
        fm_batch batch;
        fm_fallback item;
        fm_error error;
        for (uint32_t k = 0; k < 8 && i < 3; k++) {
            assert_int_equal(fm_loader_next(loader, -1, &batch, &error), FM_FALLBACK);
            assert_int_equal(fm_loader_fallback(loader, &item), FM_OK);
            assert_int_equal(item.position, k);
            memset(item.out, 7, item.out_bytes);
            assert_int_equal(fm_loader_fallback_done(loader, FM_OK, &error), FM_OK);
        }
        if (i < 3) {
            next(loader, &batch);
            fm_batch_release(&batch);
            continue;
        }
        assert_int_equal(fm_loader_next(loader, -1, &batch, &error), FM_FALLBACK);
        assert_int_equal(fm_loader_fallback_done(loader, 1, &error), FM_OK);
        assert_int_equal(fm_loader_next(loader, -1, &batch, &error), FM_ERR_LIMIT);
    }
    assert_int_equal(fm_loader_n_pending(loader), 0);
    fm_loader_close(&loader);
}

/* ---- ownership of the memory ----------------------------------------------------------------- */

enum end { END_STOP, END_START, END_CLOSE, N_ENDS };

/* However the epoch ends, and at any point of it: the memory is not accessed after that. */
static void the_memory_is_free_when_the_epoch_ends(void **state) {
    (void)state;
    fm_config config = test_config(fm_folder_source(folder));
    config.prefetch_batches = 6;
    for (int round = 0; round < 12 * N_ENDS; round++) {
        const enum end end = (enum end)(round % N_ENDS);
        const int n_taken = round / N_ENDS % 4;
        fm_loader *loader = test_loader_open(&config);
        start(loader);
        for (int taken = 0; taken <= n_taken; taken++) {
            submit_all(loader, 8 * taken);
            fm_batch batch;
            if (taken == n_taken) break;
            next(loader, &batch);
            fm_batch_release(&batch);
        }
        usleep(300u * (unsigned)(round / N_ENDS % 3)); /* into the middle of the work */
        fm_error error;
        if (end == END_STOP) assert_int_equal(fm_loader_stop(loader, &error), FM_OK);
        if (end == END_START) start(loader);
        if (end == END_CLOSE) fm_loader_close(&loader);
        for (int i = 0; i < N_FILES; i++) test_guarded_forbid(&in_memory[i]);
        if (end == END_STOP) start(loader);
        if (end != END_CLOSE) {
            const fm_sample file = sample_of(1, false);
            submit(loader, &file, 1);
            fm_batch batch;
            next(loader, &batch);
            fm_batch_release(&batch);
        }
        fm_loader_close(&loader);
        free_memory();
        fill_memory();
    }
}

/* A batch that has left, as such or as an error, needs its memory no more. */
static void the_memory_is_free_when_its_batch_has_left(void **state) {
    (void)state;
    fm_config config = test_config(fm_folder_source(folder));
    config.prefetch_batches = 8;
    fm_loader *loader = test_loader_open(&config);
    start(loader);
    for (int at = 0; at < N_FILES; at += 5) {
        fm_sample samples[5];
        for (int i = 0; i < 5; i++) samples[i] = sample_of(at + i, true);
        if (at == 10) samples[3].data_bytes--; /* its end is missing */
        submit(loader, samples, 5);
    }
    for (int at = 0; at < N_FILES; at += 5) {
        fm_batch batch;
        fm_error error;
        assert_int_equal(fm_loader_next(loader, -1, &batch, &error),
                         at == 10 ? FM_ERR_DAMAGED : FM_OK);
        for (int i = 0; i < 5; i++) test_guarded_forbid(&in_memory[at + i]);
        fm_batch_release(&batch);
    }
    fm_loader_close(&loader);
    free_memory();
    fill_memory();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pixels_are_those_of_files),
        cmocka_unit_test(the_size_of_a_file_is_remembered_for_files_only),
        cmocka_unit_test(waiting_threads_give_memory_back),
        cmocka_unit_test(refusals_are_those_of_files),
        cmocka_unit_test(the_caller_can_finish_them),
        cmocka_unit_test(batches_of_nothing_but_too_large_ones_wait_their_turn),
        cmocka_unit_test(the_memory_is_free_when_the_epoch_ends),
        cmocka_unit_test(the_memory_is_free_when_its_batch_has_left),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
