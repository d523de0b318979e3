/* Properties of the whole pipeline, through the public header only. */
#define _GNU_SOURCE
#include <dirent.h>
#include <pthread.h>
#include <sys/wait.h>
#include <time.h>

#define N_FILES 45
#include "folder_group.h"
#include "wait_causes.h"

#define SAMPLE_BYTES (3 * 24 * 32)

static void start(fm_loader *loader, const int64_t *order, size_t n, uint32_t number,
                  bool drop_last) {
    const fm_epoch epoch = {
        .seed = 42, .number = number, .order = order, .n_order = n, .drop_last = drop_last};
    fm_error error;
    if (fm_loader_start(loader, &epoch, &error)) fail_msg("start: %s", error.message);
}

/* Runs an epoch; pixels of the k-th delivered sample go to out + k * SAMPLE_BYTES. */
static size_t run(fm_loader *loader, uint8_t *out) {
    fm_batch batch;
    fm_error error;
    size_t n = 0;
    int status;
    while ((status = fm_loader_next(loader, -1, &batch, &error)) == FM_OK) {
        assert_int_equal((uintptr_t)batch.images % 64, 0);
        if (out) memcpy(out + n * SAMPLE_BYTES, batch.images, batch.n * SAMPLE_BYTES);
        n += batch.n;
        fm_batch_release(&batch);
    }
    if (status != FM_END) fail_msg("next: %d %s", status, status < 0 ? error.message : "");
    return n;
}

static void make_order(int64_t *order, size_t n) {
    for (size_t i = 0; i < n; i++) order[i] = (int64_t)((i * 31) % N_FILES);
}

static void pixels_depend_on_nothing_but_the_key(void **state) {
    (void)state;
    int64_t order[2 * N_FILES];
    make_order(order, 2 * N_FILES); /* each index twice */
    static uint8_t reference[2 * N_FILES * SAMPLE_BYTES], pixels[sizeof(reference)];
    bool first = true;
    for (int reader = FM_READER_URING; reader <= FM_READER_PREAD; reader++) {
        for (uint32_t threads = 1; threads <= 7; threads += 3) {
            for (uint32_t batch_size = 1; batch_size <= 16; batch_size += 5) {
                fm_config config = test_config(fm_folder_source(folder));
                config.reader = (fm_reader_kind)reader;
                config.n_threads = threads;
                config.batch_size = batch_size;
                config.prefetch_batches = 1 + threads;
                fm_loader *loader = NULL;
                fm_error error;
                const int status = fm_loader_open(&loader, &config, &error);
                if (status == FM_ERR_UNAVAILABLE) {
                    print_message("io_uring skipped: %s\n", error.message);
                    continue;
                }
                assert_int_equal(status, FM_OK);
                start(loader, order, 2 * N_FILES, 3, false);
                assert_int_equal(run(loader, first ? reference : pixels), 2 * N_FILES);
                if (!first) assert_memory_equal(reference, pixels, sizeof(reference));
                first = false;
                fm_loader_close(&loader);
            }
        }
    }
    /* The second use of an index draws other numbers. */
    size_t n_different = 0;
    for (size_t i = 0; i < N_FILES; i++)
        n_different += memcmp(reference + i * SAMPLE_BYTES,
                              reference + (i + N_FILES) * SAMPLE_BYTES, SAMPLE_BYTES) != 0;
    assert_true(n_different > N_FILES * 9 / 10);
}

static void batches_come_in_order_with_their_labels(void **state) {
    (void)state;
    fm_config config = test_config(fm_folder_source(folder));
    fm_loader *loader = test_loader_open(&config);
    fm_error error;
    char path[128];
    const fm_epoch epoch = {.seed = 1};
    for (int round = 0; round < 3; round++) {
        assert_int_equal(fm_loader_start(loader, &epoch, &error), FM_OK);
        int64_t sent = 0, received = 0;
        while (received < 200) {
            fm_sample samples[8];
            bool full = false;
            while (!full && sent < 200) {
                char paths[8][128];
                for (int i = 0; i < 5; i++) {
                    snprintf(paths[i], sizeof(path), "%s/%04d.jpg", images.dir,
                             (int)((sent + i) % N_FILES));
                    samples[i] = (fm_sample){
                        .index = (sent + i) % N_FILES, .label = sent + i, .path = paths[i]};
                }
                const int status = fm_loader_submit(loader, samples, 5, &error);
                assert_true(status == FM_OK || status == FM_AGAIN);
                full = status == FM_AGAIN;
                if (!full) sent += 5;
            }
            fm_batch batch;
            assert_int_equal(fm_loader_next(loader, -1, &batch, &error), FM_OK);
            assert_int_equal(batch.n, 5);
            for (uint32_t i = 0; i < batch.n; i++) assert_int_equal(batch.labels[i], received++);
            fm_batch_release(&batch);
        }
        fm_batch batch;
        assert_int_equal(fm_loader_next(loader, -1, &batch, &error), FM_AGAIN);
        assert_int_equal(fm_loader_finish(loader, &error), FM_OK);
        assert_int_equal(fm_loader_next(loader, -1, &batch, &error), FM_END);
        assert_int_equal(fm_loader_next(loader, -1, &batch, &error), FM_END);
    }
    fm_loader_close(&loader);
}

static void drop_last_leaves_out_what_does_not_fill_a_batch(void **state) {
    (void)state;
    int64_t order[N_FILES];
    make_order(order, N_FILES);
    fm_config config = test_config(fm_folder_source(folder));
    fm_loader *loader = test_loader_open(&config);
    start(loader, order, N_FILES, 0, true);
    assert_int_equal(run(loader, NULL), N_FILES / 8 * 8);
    start(loader, order, N_FILES, 0, false);
    assert_int_equal(run(loader, NULL), N_FILES);
    start(loader, order, 3, 0, true);
    assert_int_equal(run(loader, NULL), 0);
    start(loader, order, 0, 0, false);
    assert_int_equal(run(loader, NULL), 0);
    fm_loader_close(&loader);
}

/* Whoever holds every batch gets copies, and none of them changes under him. */
static void held_batches_stay_what_they_were(void **state) {
    (void)state;
    int64_t order[N_FILES];
    make_order(order, N_FILES);
    fm_config config = test_config(fm_folder_source(folder));
    config.batch_size = 2;
    config.prefetch_batches = 3;
    fm_loader *loader = test_loader_open(&config);
    static uint8_t reference[N_FILES * SAMPLE_BYTES];
    start(loader, order, N_FILES, 0, false);
    run(loader, reference);
    start(loader, order, N_FILES, 0, false);
    fm_batch held[N_FILES + 1];
    fm_error error;
    size_t n_held = 0;
    while (fm_loader_next(loader, -1, &held[n_held], &error) == FM_OK) n_held++;
    assert_int_equal(n_held, (N_FILES + 1) / 2);
    fm_stats stats;
    fm_loader_stats(loader, &stats);
    assert_int_equal(stats.copied_batches, n_held - 2);
    assert_true(stats.copied_bytes > 0);
    const char *const tier = getenv("FEEDMILL_CPU");
    if (tier && !strcmp(tier, "scalar"))
        assert_string_equal(stats.cpu, tier);
    else
        assert_true(strlen(stats.cpu) > 0);
    fm_loader_close(&loader);
    for (size_t i = 0; i < n_held; i++) {
        assert_int_equal(held[i].copied, i >= 2);
        assert_memory_equal(held[i].images, reference + i * 2 * SAMPLE_BYTES,
                            held[i].n * SAMPLE_BYTES);
        assert_int_equal(held[i].labels[0], 0);
        fm_batch_release(&held[i]);
        fm_batch_release(&held[i]);
    }
}

/* Of the flags in a thread's "stat" (PF_IO_WORKER of Linux's sched.h): it is a helper of
 * io_uring's, which the kernel makes and ends itself. Its name says so only a moment after its
 * birth. */
#define IO_WORKER 0x10

/* Threads of loaders, which are named "fm-...", without such helpers. A sanitizer has threads, too.
 */
static int count_threads(void) {
    DIR *const tasks = opendir("/proc/self/task");
    int n = 0;
    for (const struct dirent *task; (task = readdir(tasks));) {
        char path[300], line[512] = "";
        snprintf(path, sizeof(path), "/proc/self/task/%s/stat", task->d_name);
        FILE *const file = fopen(path, "r");
        if (!file) continue;
        unsigned flags;
        const char *const behind_name = fgets(line, sizeof(line), file) ? strrchr(line, ')') : NULL;
        if (behind_name && strstr(line, "(fm-") &&
            sscanf(behind_name, ") %*c %*d %*d %*d %*d %*d %u", &flags) == 1 &&
            !(flags & IO_WORKER))
            n++;
        fclose(file);
    }
    closedir(tasks);
    return n;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* A thread that was joined may stay in /proc for a moment. */
static void wait_for_ended_threads(void) {
    const double deadline = now() + 300;
    while (count_threads() > 0 && now() < deadline) usleep(1000);
    assert_int_equal(count_threads(), 0);
}

static void a_second_epoch_creates_and_allocates_nothing(void **state) {
    (void)state;
    int64_t order[N_FILES];
    make_order(order, N_FILES);
    for (int reader = FM_READER_AUTO; reader <= FM_READER_PREAD; reader += 2) {
        wait_for_ended_threads();
        fm_config config = test_config(fm_folder_source(folder));
        config.reader = (fm_reader_kind)reader;
        fm_loader *loader = test_loader_open(&config);
        start(loader, order, N_FILES, 0, false);
        run(loader, NULL);
        fm_stats before, after;
        fm_loader_stats(loader, &before);
        const int n_threads = count_threads();
        assert_true(n_threads > 0);
        for (uint32_t number = 1; number < 5; number++) {
            start(loader, order, N_FILES, 0, false);
            run(loader, NULL);
        }
        fm_loader_stats(loader, &after);
        assert_int_equal(count_threads(), n_threads);
        assert_int_equal(after.threads_created, before.threads_created);
        assert_int_equal(after.allocations, before.allocations);
        assert_int_equal(after.samples, 5 * N_FILES);
        assert_int_equal(after.native_samples, 5 * N_FILES);
        assert_int_equal(after.read_files, 5 * N_FILES);
        assert_int_equal(after.read_opens, 5 * N_FILES);
        fm_loader_close(&loader);
    }
}

static void stopping_early_leaves_nothing_behind(void **state) {
    (void)state;
    int64_t order[N_FILES];
    make_order(order, N_FILES);
    fm_config config = test_config(fm_folder_source(folder));
    config.prefetch_batches = 6;
    fm_loader *loader = test_loader_open(&config);
    static uint8_t reference[N_FILES * SAMPLE_BYTES], pixels[sizeof(reference)];
    start(loader, order, N_FILES, 9, false);
    run(loader, reference);
    fm_error error;
    fm_batch batch;
    for (int taken = 0; taken < 12; taken++) {
        start(loader, order, N_FILES, (uint32_t)taken, false);
        for (int i = 0; i < taken % 6; i++) {
            assert_int_equal(fm_loader_next(loader, -1, &batch, &error), FM_OK);
            fm_batch_release(&batch);
        }
        if (taken % 3 == 0) assert_int_equal(fm_loader_stop(loader, &error), FM_OK);
    }
    start(loader, order, N_FILES, 9, false);
    assert_int_equal(run(loader, pixels), N_FILES);
    assert_memory_equal(reference, pixels, sizeof(reference));
    start(loader, order, N_FILES, 1, false);
    fm_loader_close(&loader);
    wait_for_ended_threads();
}

static void *release_later(void *argument) {
    usleep(200);
    fm_batch_release(argument);
    return NULL;
}

static void batches_may_be_released_by_other_threads(void **state) {
    (void)state;
    int64_t order[N_FILES];
    make_order(order, N_FILES);
    fm_config config = test_config(fm_folder_source(folder));
    config.batch_size = 1;
    fm_loader *loader = test_loader_open(&config);
    start(loader, order, N_FILES, 0, false);
    static fm_batch batches[N_FILES + 1];
    pthread_t threads[N_FILES];
    size_t n = 0;
    fm_error error;
    while (fm_loader_next(loader, -1, &batches[n], &error) == FM_OK) {
        pthread_create(&threads[n], NULL, release_later, &batches[n]);
        n++;
    }
    fm_loader_close(&loader);
    for (size_t i = 0; i < n; i++) pthread_join(threads[i], NULL);
    assert_int_equal(n, N_FILES);
}

static void steps_add_up(void **state) {
    (void)state;
    int64_t order[N_FILES];
    make_order(order, N_FILES);
    fm_config config = test_config(fm_folder_source(folder));
    fm_loader *loader = test_loader_open(&config);
    for (uint32_t number = 0; number < 2; number++) {
        start(loader, order, N_FILES, number, false);
        run(loader, NULL);
    }
    fm_step steps[100];
    const size_t n = fm_loader_steps(loader, 0, steps, 100);
    fm_stats stats;
    fm_loader_stats(loader, &stats);
    assert_int_equal(n, 2 * ((N_FILES + 7) / 8));
    assert_int_equal(stats.batches, n);
    uint64_t host_wait_ns = 0, data_wait_ns = 0, n_samples = 0;
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(steps[i].step, i);
        assert_int_equal(steps[i].epoch, i >= n / 2);
        assert_true(steps[i].data_wait_ns <= steps[i].host_wait_ns);
        assert_int_equal(steps[i].overhead_ns, steps[i].host_wait_ns - steps[i].data_wait_ns);
        assert_int_equal(wait_causes_ns(&steps[i].causes), steps[i].data_wait_ns);
        assert_int_equal(steps[i].phase, i == 0       ? FM_PHASE_FIRST
                                         : i == n / 2 ? FM_PHASE_BOUNDARY
                                                      : FM_PHASE_STEADY);
        if (i != n / 2 - 1 && i != n - 1)
            assert_int_equal(steps[i].request_ns + steps[i].host_wait_ns + steps[i].compute_ns,
                             steps[i + 1].request_ns);
        n_samples += steps[i].n_samples;
        assert_true(steps[i].ready_batches <= config.prefetch_batches);
        if (steps[i].data_wait_ns > 0) assert_int_equal(steps[i].ready_batches, 0);
        host_wait_ns += steps[i].host_wait_ns;
        data_wait_ns += steps[i].data_wait_ns;
    }
    assert_int_equal(stats.host_wait_ns, host_wait_ns);
    assert_int_equal(stats.data_wait_ns, data_wait_ns);
    assert_int_equal(wait_causes_ns(&stats.causes), data_wait_ns);
    assert_int_equal(n_samples, 2 * N_FILES);
    assert_true(stats.wall_ns >= host_wait_ns);
    /* Ready is not yet delivered, and the epoch began before its first request. */
    assert_int_equal(stats.first_batches, 2);
    assert_true(stats.first_batch_ns >= steps[0].data_wait_ns + steps[n / 2].data_wait_ns);
    assert_true(stats.open_ns > 0);
    assert_int_equal(fm_loader_steps(loader, n - 1, steps, 100), 1);
    assert_int_equal(fm_loader_steps(loader, n, steps, 100), 0);
    fm_loader_close(&loader);
}

/* A record for each sample, whose points in time are in order. */
static void samples_are_recorded(void **state) {
    (void)state;
    int64_t order[N_FILES];
    make_order(order, N_FILES);
    fm_config config = test_config(fm_folder_source(folder));
    config.sample_records = N_FILES;
    fm_loader *loader = test_loader_open(&config);
    for (uint32_t number = 0; number < 2; number++) {
        start(loader, order, N_FILES, number, false);
        run(loader, NULL);
    }
    fm_sample_record records[N_FILES + 1];
    uint64_t first = 0, work_ns = 0;
    assert_int_equal(fm_loader_sample_records(loader, 0, records, N_FILES + 1, &first), N_FILES);
    assert_int_equal(first, N_FILES);
    bool seen[N_FILES] = {false};
    for (size_t i = 0; i < N_FILES; i++) {
        const fm_sample_record *const one = &records[i];
        assert_false(seen[one->index]);
        seen[one->index] = true;
        assert_int_equal(one->epoch, 1);
        assert_int_equal(one->status, 0);
        assert_true(one->worker < config.n_threads && one->file_bytes > 0);
        assert_true(one->submitted_ns <= one->read_begin_ns);
        assert_true(one->read_begin_ns <= one->read_end_ns);
        assert_true(one->read_end_ns <= one->work_begin_ns && one->slot_ns <= one->work_begin_ns);
        assert_true(one->released_ns <= one->slot_ns);
        const uint64_t wall_ns = one->work_end_ns - one->work_begin_ns;
        assert_true(one->decode_ns + one->transform_ns + one->starved_ns <= wall_ns);
        work_ns += one->decode_ns + one->transform_ns;
    }
    assert_true(work_ns > 0);
    fm_slow_sample slow[FM_N_SLOW];
    const size_t n_slow = fm_loader_slow_samples(loader, slow, FM_N_SLOW);
    assert_int_equal(n_slow, FM_N_SLOW < N_FILES ? FM_N_SLOW : N_FILES);
    for (size_t i = 0; i < n_slow; i++) {
        assert_non_null(strstr(slow[i].path, ".jpg"));
        for (size_t j = 0; j < i; j++)
            assert_int_not_equal(slow[i].record.index, slow[j].record.index);
    }
    fm_loader_close(&loader);
}

/* A sample that the decoder refuses: an error at its batch's turn, or the caller's to finish. */
static void rejected_samples_fail_or_are_finished_by_the_caller(void **state) {
    (void)state;
    char bad[128], good[128];
    snprintf(bad, sizeof(bad), "%s/bad.bin", images.dir);
    snprintf(good, sizeof(good), "%s/0000.jpg", images.dir);
    FILE *const file = fopen(bad, "w");
    fputs("no image at all, but long enough to look at", file);
    fclose(file);
    const fm_sample samples[] = {{.index = 0, .path = good},
                                 {.index = 1, .path = bad},
                                 {.index = 2, .path = "/does/not/exist.jpg"}};
    for (int fallback = 0; fallback < 2; fallback++) {
        fm_config config = test_config(fm_folder_source(folder));
        config.fallback = fallback;
        fm_loader *loader = test_loader_open(&config);
        const fm_epoch epoch = {.seed = 1};
        fm_error error;
        fm_batch batch;
        assert_int_equal(fm_loader_start(loader, &epoch, &error), FM_OK);
        assert_int_equal(fm_loader_submit(loader, samples, 3, &error), FM_OK);
        assert_int_equal(fm_loader_submit(loader, samples, 1, &error), FM_OK);
        assert_int_equal(fm_loader_finish(loader, &error), FM_OK);
        if (fallback) {
            fm_fallback item;
            assert_int_equal(fm_loader_next(loader, -1, &batch, &error), FM_FALLBACK);
            assert_int_equal(fm_loader_fallback(loader, &item), FM_OK);
            assert_int_equal(item.index, 1);
            assert_int_equal(item.cause, FM_ERR_FORMAT);
            assert_string_equal(item.path, bad);
            assert_int_equal(item.out_bytes, SAMPLE_BYTES);
            memset(item.out, 99, item.out_bytes);
            assert_int_equal(fm_loader_next(loader, -1, &batch, &error), FM_ERR_STATE);
            assert_int_equal(fm_loader_fallback_done(loader, FM_OK, &error), FM_OK);
            assert_int_equal(fm_loader_next(loader, -1, &batch, &error), FM_FALLBACK);
            assert_int_equal(fm_loader_fallback(loader, &item), FM_OK);
            assert_int_equal(item.cause, FM_ERR_READ);
            memset(item.out, 98, item.out_bytes);
            assert_int_equal(fm_loader_fallback_done(loader, FM_OK, &error), FM_OK);
            assert_int_equal(fm_loader_next(loader, -1, &batch, &error), FM_OK);
            assert_int_equal(((uint8_t *)batch.images)[SAMPLE_BYTES], 99);
            assert_int_equal(((uint8_t *)batch.images)[2 * SAMPLE_BYTES], 98);
            fm_batch_release(&batch);
        } else {
            assert_int_equal(fm_loader_next(loader, -1, &batch, &error), FM_ERR_FORMAT);
            assert_int_equal(error.index, 1);
            assert_non_null(strstr(error.message, bad));
        }
        assert_int_equal(fm_loader_next(loader, -1, &batch, &error), FM_OK);
        assert_int_equal(batch.n, 1);
        fm_batch_release(&batch);
        assert_int_equal(fm_loader_next(loader, -1, &batch, &error), FM_END);
        fm_stats stats;
        fm_loader_stats(loader, &stats);
        assert_int_equal(stats.errors, fallback ? 0 : 1);
        assert_int_equal(stats.fallback_samples, fallback ? 2 : 0);
        assert_int_equal(stats.fallback_read, fallback ? 1 : 0);
        fm_loader_close(&loader);
    }
    unlink(bad);
}

/* Any budget is either refused or gives enough buffers for two held batches and the next one. */
static void every_budget_is_refused_or_leaves_three_slots(void **state) {
    (void)state;
    fm_config config = test_config(fm_folder_source(folder));
    config.batch_size = 1024;
    config.prefetch_batches = 5;
    fm_loader *loader = NULL;
    fm_error error;
    size_t n_opened = 0;
    for (uint64_t budget = (uint64_t)1 << 20; budget < (uint64_t)160 << 20; budget += 1234567) {
        config.memory_budget_bytes = budget;
        const int status = fm_loader_open(&loader, &config, &error);
        assert_true(status == FM_OK || status == FM_ERR_BUDGET);
        if (status) {
            assert_int_equal(n_opened, 0); /* more memory is never worse */
            continue;
        }
        n_opened++;
        fm_stats stats;
        fm_loader_stats(loader, &stats);
        assert_true(stats.n_slots >= 3 && stats.n_slots <= 7);
        assert_true(stats.n_slots * stats.slot_bytes < budget);
        fm_loader_close(&loader);
    }
    assert_true(n_opened > 50);
}

static void waits_that_end_in_an_error_count(void **state) {
    (void)state;
    fm_config config = test_config(fm_folder_source(folder));
    fm_loader *loader = test_loader_open(&config);
    const fm_epoch epoch = {.seed = 1};
    char good[128];
    snprintf(good, sizeof(good), "%s/0000.jpg", images.dir);
    const fm_sample samples[] = {{.index = 0, .path = "/does/not/exist.jpg"},
                                 {.index = 1, .path = good}};
    fm_error error;
    fm_batch batch;
    for (int round = 0; round < 2; round++) {
        assert_int_equal(fm_loader_start(loader, &epoch, &error), FM_OK);
        for (int i = 0; i < 2; i++)
            assert_int_equal(fm_loader_submit(loader, &samples[i], 1, &error), FM_OK);
        fm_stats before, after;
        fm_loader_stats(loader, &before);
        const double begin = now();
        assert_int_equal(fm_loader_next(loader, -1, &batch, &error), FM_ERR_READ);
        fm_loader_stats(loader, &after);
        assert_int_equal(after.errors, before.errors + 1);
        assert_int_equal(after.first_batches, 0);
        assert_true(after.host_wait_ns > before.host_wait_ns);
        assert_int_equal(after.batches, before.batches);
        /* The time between epochs belongs to none, also after a first batch that failed. */
        assert_int_equal(fm_loader_next(loader, -1, &batch, &error), FM_OK);
        fm_loader_stats(loader, &after);
        assert_true((double)(after.wall_ns - before.wall_ns) * 1e-9 <= now() - begin);
        fm_batch_release(&batch);
        usleep(20000);
    }
    fm_loader_close(&loader);
}

static int locate_some(void *user, int64_t index, fm_sample *out) {
    const fm_source *const source = user;
    return index == 20 ? FM_ERR_READ : source->locate(source->user, index, out);
}

/* Batches before the one that the source does not find are delivered. */
static void a_sample_that_the_source_lacks_fails_at_its_turn(void **state) {
    (void)state;
    fm_source source = fm_folder_source(folder);
    const fm_source some = {&source, source.n_samples, locate_some};
    fm_config config = test_config(some);
    config.prefetch_batches = 2;
    fm_loader *loader = test_loader_open(&config);
    int64_t order[N_FILES];
    for (int i = 0; i < N_FILES; i++) order[i] = i;
    start(loader, order, N_FILES, 0, false);
    fm_batch batch;
    fm_error error;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(fm_loader_next(loader, -1, &batch, &error), FM_OK);
        fm_batch_release(&batch);
    }
    assert_int_equal(fm_loader_next(loader, -1, &batch, &error), FM_ERR_READ);
    assert_non_null(strstr(error.message, "20"));
    assert_int_equal(fm_loader_next(loader, -1, &batch, &error), FM_END);
    fm_loader_close(&loader);
}

static void a_forked_child_gets_an_error_and_can_exit(void **state) {
    (void)state;
    int64_t order[N_FILES];
    make_order(order, N_FILES);
    fm_config config = test_config(fm_folder_source(folder));
    fm_loader *loader = test_loader_open(&config);
    start(loader, order, N_FILES, 0, false);
    fm_batch batch;
    fm_error error;
    assert_int_equal(fm_loader_next(loader, -1, &batch, &error), FM_OK);
    const void *const kept = batch.images;
    const uint8_t first = *(const uint8_t *)kept;
    const pid_t child = fork();
    if (child == 0) {
        int failed = fm_loader_next(loader, -1, &batch, &error) != FM_ERR_FORKED;
        fm_batch_release(&batch);
        fm_loader_close(&loader);
        failed += first != *(const uint8_t *)kept;
#if !defined(__SANITIZE_THREAD__) && !FM_EMULATED /* they fail with threads after a fork */
        fm_loader *own = NULL;
        failed += fm_loader_open(&own, &config, &error) != FM_OK;
        fm_loader_close(&own);
#endif
        _exit(failed);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    fm_batch_release(&batch);
    assert_int_equal(run(loader, NULL), N_FILES - 8);
    fm_loader_close(&loader);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pixels_depend_on_nothing_but_the_key),
        cmocka_unit_test(batches_come_in_order_with_their_labels),
        cmocka_unit_test(drop_last_leaves_out_what_does_not_fill_a_batch),
        cmocka_unit_test(held_batches_stay_what_they_were),
        cmocka_unit_test(a_second_epoch_creates_and_allocates_nothing),
        cmocka_unit_test(stopping_early_leaves_nothing_behind),
        cmocka_unit_test(batches_may_be_released_by_other_threads),
        cmocka_unit_test(steps_add_up),
        cmocka_unit_test(samples_are_recorded),
        cmocka_unit_test(rejected_samples_fail_or_are_finished_by_the_caller),
        cmocka_unit_test(every_budget_is_refused_or_leaves_three_slots),
        cmocka_unit_test(waits_that_end_in_an_error_count),
        cmocka_unit_test(a_sample_that_the_source_lacks_fails_at_its_turn),
        cmocka_unit_test(a_forked_child_gets_an_error_and_can_exit),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
