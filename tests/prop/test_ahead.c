/* Epochs with `ahead`: one thread submits and receives, another one is the consumer. */
#define _GNU_SOURCE
#include <pthread.h>
#include <time.h>

#include "folder.h"
#include "wait_causes.h"

#define N_FILES 12
#define N_BATCHES 60

static test_folder images;

static int set_up(void **state) {
    (void)state;
    images = test_folder_open(N_FILES);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    test_folder_close(&images);
    return 0;
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* What the two threads share. */
typedef struct line {
    fm_loader *loader;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int n_asked, n_collated; /* batches */
    uint64_t ready_ns[N_BATCHES];
    int status[N_BATCHES];
    bool stop;
} line;

static int submit(fm_loader *loader, int number) {
    char path[2][128];
    fm_sample samples[2];
    for (int i = 0; i < 2; i++) {
        snprintf(path[i], sizeof(path[i]), "%s/%04d.jpg", images.dir, (2 * number + i) % N_FILES);
        samples[i] = (fm_sample){.index = (2 * number + i) % N_FILES, .path = path[i]};
    }
    if (number % 7 == 3) samples[1].path = "/nowhere/at/all.jpg";
    fm_error error;
    return fm_loader_submit(loader, samples, 2, &error);
}

/* Submits what the consumer has asked for, and receives it. */
static void *collate(void *argument) {
    line *const shared = argument;
    int n_submitted = 0, n_received = 0;
    for (;;) {
        pthread_mutex_lock(&shared->mutex);
        const int n_asked = shared->n_asked;
        const bool stop = shared->stop;
        pthread_mutex_unlock(&shared->mutex);
        if (stop) return NULL;
        while (n_submitted < n_asked && submit(shared->loader, n_submitted) == FM_OK) n_submitted++;
        fm_batch batch;
        fm_error error;
        const int status = fm_loader_next(shared->loader, -1, &batch, &error);
        if (status == FM_AGAIN) continue; /* woken: there is more to submit, or it is the end */
        fm_batch_release(&batch);
        pthread_mutex_lock(&shared->mutex);
        shared->status[n_received] = status;
        shared->ready_ns[n_received++] = now_ns();
        shared->n_collated = n_received;
        pthread_cond_broadcast(&shared->changed);
        pthread_mutex_unlock(&shared->mutex);
    }
}

static void begin(line *shared, pthread_t *thread) {
    fm_error error;
    const fm_epoch epoch = {.seed = 5, .ahead = true};
    assert_int_equal(fm_loader_start(shared->loader, &epoch, &error), FM_OK);
    shared->n_asked = shared->n_collated = 0;
    shared->stop = false;
    assert_int_equal(pthread_create(thread, NULL, collate, shared), 0);
}

static void end(line *shared, pthread_t thread) {
    pthread_mutex_lock(&shared->mutex);
    shared->stop = true;
    pthread_mutex_unlock(&shared->mutex);
    fm_loader_wake(shared->loader);
    pthread_join(thread, NULL);
}

/* For another batch, as long as there is one. */
static void ask(line *shared) {
    pthread_mutex_lock(&shared->mutex);
    if (shared->n_asked < N_BATCHES) shared->n_asked++;
    pthread_mutex_unlock(&shared->mutex);
    fm_loader_wake(shared->loader);
}

static line open_line(void) {
    fm_config config = test_config((fm_source){0});
    config.batch_size = 2;
    config.prefetch_batches = 3;
    config.n_samples = N_FILES;
    return (line){.loader = test_loader_open(&config),
                  .mutex = PTHREAD_MUTEX_INITIALIZER,
                  .changed = PTHREAD_COND_INITIALIZER};
}

static void steps_are_those_of_the_consumer(void **state) {
    (void)state;
    line shared = open_line();
    fm_error error;
    for (int round = 0; round < 2; round++) {
        pthread_t thread;
        begin(&shared, &thread);
        for (int i = 0; i < 4; i++) ask(&shared);
        for (int number = 0; number < N_BATCHES; number++) {
            fm_loader_step_request(shared.loader);
            pthread_mutex_lock(&shared.mutex);
            while (shared.n_collated <= number) pthread_cond_wait(&shared.changed, &shared.mutex);
            pthread_mutex_unlock(&shared.mutex);
            assert_int_equal(shared.status[number], number % 7 == 3 ? FM_ERR_READ : FM_OK);
            const uint64_t ready_ns = shared.ready_ns[number];
            assert_int_equal(
                fm_loader_step_ready(shared.loader, (uint64_t)number, ready_ns, 1, &error), FM_OK);
            fm_loader_step_return(shared.loader);
            ask(&shared);
        }
        end(&shared, thread);
    }
    int n_failed = 0;
    for (int number = 0; number < N_BATCHES; number++) n_failed += number % 7 == 3;
    fm_stats stats;
    fm_loader_stats(shared.loader, &stats);
    assert_int_equal(stats.batches, 2 * (N_BATCHES - n_failed));
    assert_int_equal(stats.samples, 4 * (N_BATCHES - n_failed));
    assert_int_equal(stats.errors, 2 * n_failed);
    assert_int_equal(wait_causes_ns(&stats.causes), stats.data_wait_ns);
    fm_step steps[2 * N_BATCHES];
    const size_t n = fm_loader_steps(shared.loader, 0, steps, 2 * N_BATCHES);
    assert_int_equal(n, 2 * (N_BATCHES - n_failed));
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(wait_causes_ns(&steps[i].causes), steps[i].data_wait_ns);
        assert_int_equal(steps[i].data_wait_ns + steps[i].overhead_ns, steps[i].host_wait_ns);
        assert_int_equal(steps[i].n_samples, 2);
        assert_int_equal(steps[i].phase, i == 0       ? FM_PHASE_FIRST
                                         : i == n / 2 ? FM_PHASE_BOUNDARY
                                                      : FM_PHASE_STEADY);
    }
    fm_loader_close(&shared.loader);
}

static void what_is_waited_for_behind_the_native_part_is_pythons(void **state) {
    (void)state;
    line shared = open_line();
    pthread_t thread;
    fm_error error;
    begin(&shared, &thread);
    ask(&shared);
    pthread_mutex_lock(&shared.mutex);
    while (shared.n_collated < 1) pthread_cond_wait(&shared.changed, &shared.mutex);
    pthread_mutex_unlock(&shared.mutex);
    fm_loader_step_request(shared.loader); /* the native part is done: all of the wait follows it */
    const uint64_t until_ns = now_ns() + 1000;
    while (now_ns() < until_ns) {
    }
    const uint64_t ready_ns = now_ns();
    assert_int_equal(fm_loader_step_ready(shared.loader, 0, ready_ns, 0, &error), FM_OK);
    end(&shared, thread);
    fm_step step;
    assert_int_equal(fm_loader_steps(shared.loader, 0, &step, 1), 1);
    assert_int_equal(step.data_wait_ns, ready_ns - step.request_ns);
    assert_int_equal(step.causes.python_ns, step.data_wait_ns);
    fm_loader_close(&shared.loader);
}

static void wrong_calls_are_refused(void **state) {
    (void)state;
    line shared = open_line();
    fm_error error;
    const int64_t order[] = {1, 2};
    const fm_epoch wrong = {.seed = 1, .order = order, .n_order = 2, .ahead = true};
    assert_int_equal(fm_loader_start(shared.loader, &wrong, &error), FM_ERR_ARGUMENT);
    const fm_epoch plain = {.seed = 1};
    assert_int_equal(fm_loader_start(shared.loader, &plain, &error), FM_OK);
    assert_int_equal(fm_loader_step_ready(shared.loader, 0, 1, 0, &error), FM_ERR_ARGUMENT);
    const fm_epoch ahead = {.seed = 1, .ahead = true};
    assert_int_equal(fm_loader_start(shared.loader, &ahead, &error), FM_OK);
    assert_int_equal(fm_loader_step_ready(shared.loader, 0, 1, 0, &error), FM_ERR_ARGUMENT);
    fm_batch batch;
    assert_int_equal(fm_loader_next(shared.loader, 0, &batch, &error), FM_AGAIN);
    fm_loader_wake(shared.loader);
    assert_int_equal(fm_loader_next(shared.loader, -1, &batch, &error), FM_AGAIN);
    fm_loader_wake(NULL);
    fm_loader_close(&shared.loader);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_are_those_of_the_consumer),
        cmocka_unit_test(what_is_waited_for_behind_the_native_part_is_pythons),
        cmocka_unit_test(wrong_calls_are_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
