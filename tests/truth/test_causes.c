/*
 * Wait attribution for causes whose duration the test controls: a read is held while the consumer
 * waits, and decoding or transforming burns CPU time after it. The results hold on a machine of any
 * speed and under any load; test_truth measures the rest.
 *
 * fm_decoder_start(), fm_resample_begin() and pthread_cond_wait() are wrapped, see
 * tests/CMakeLists.txt.
 */
#define _GNU_SOURCE
#include "folder.h"
#include "injure.h"
#include "slow_storage.h"
#include "wait_causes.h"

#define MS ((uint64_t)1000000)
#define HOLD_NS (50 * MS)
#define BURN_NS (50 * MS)

/* ---- the causes ------------------------------------------------------------------------------ */

static _Atomic uint64_t decode_burn_ns, transform_burn_ns;
static pthread_t consumer;
static _Atomic bool consumer_waits;

/* The one that starts decoding, and the one that computes a sample's weights: called once a
 * sample. */
struct fm_decoder;
struct fm_resample;
struct fm_geometry;
struct fm_box;
int __real_fm_decoder_start(struct fm_decoder *decoder, const struct fm_box *box, int32_t *skip_px,
                            int32_t *row_px, fm_error *error);
int __wrap_fm_decoder_start(struct fm_decoder *decoder, const struct fm_box *box, int32_t *skip_px,
                            int32_t *row_px, fm_error *error);
int __real_fm_resample_begin(struct fm_resample *resample, const struct fm_geometry *geometry,
                             struct fm_box *needed, fm_error *error);
int __wrap_fm_resample_begin(struct fm_resample *resample, const struct fm_geometry *geometry,
                             struct fm_box *needed, fm_error *error);
int __real_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex);
int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex);

int __wrap_fm_decoder_start(struct fm_decoder *decoder, const struct fm_box *box, int32_t *skip_px,
                            int32_t *row_px, fm_error *error) {
    if (decode_burn_ns) burn_cpu(decode_burn_ns);
    return __real_fm_decoder_start(decoder, box, skip_px, row_px, error);
}

int __wrap_fm_resample_begin(struct fm_resample *resample, const struct fm_geometry *geometry,
                             struct fm_box *needed, fm_error *error) {
    if (transform_burn_ns) burn_cpu(transform_burn_ns);
    return __real_fm_resample_begin(resample, geometry, needed, error);
}

/* The consumer's request has been noted by the time that it waits. */
int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex) {
    if (pthread_equal(pthread_self(), consumer)) consumer_waits = true;
    return __real_pthread_cond_wait(cond, mutex);
}

/* ---- a wait ---------------------------------------------------------------------------------- */

static test_storage far;

/* Lets the read of the file go on when the consumer has waited for it for HOLD_NS. */
static void *hold_and_release(void *unused) {
    (void)unused;
    const bool is_held = test_storage_is_held(&far, "read", "0.jpg");
    const uint64_t limit_ns = test_patience_ends_ns();
    while (is_held && !consumer_waits && fm_clock_ns() < limit_ns) usleep(1000);
    const uint64_t begin_ns = fm_clock_ns();
    while (fm_clock_ns() - begin_ns < HOLD_NS) usleep(1000);
    test_storage_release(&far, "read", "0.jpg");
    return NULL;
}

static fm_loader *open_loader(fm_reader_kind kind) {
    fm_config config = test_config((fm_source){0});
    config.source.n_samples = 1;
    config.batch_size = 1;
    config.n_threads = 1;
    config.reader = kind;
    fm_loader *loader = NULL;
    fm_error error;
    const int status = fm_loader_open(&loader, &config, &error);
    if (status == FM_ERR_UNAVAILABLE) {
        test_storage_close(&far);
        print_message("skipped: %s\n", error.message);
        skip();
    }
    if (status) fail_msg("open: %s", error.message);
    return loader;
}

static void make_image(void) {
    char command[512];
    snprintf(command, sizeof(command), "%s size=96x96 %s/0.jpg", getenv("FM_MKJPEG"), far.source);
    test_run(command);
}

/* Runs the step of a consumer that waits for one sample, whose read is held. cpu_ns: what the
 * decode thread used. */
static fm_step wait_for_one(fm_reader_kind kind, uint64_t *cpu_ns) {
    if (!test_storage_open(&far, "0")) skip();
    make_image();
    consumer = pthread_self();
    fm_loader *loader = open_loader(kind);
    test_storage_rule(&far, "read", "0.jpg", "");
    char path[128];
    snprintf(path, sizeof(path), "%s/0.jpg", far.mountpoint);
    const fm_sample sample = {.path = path};
    const fm_epoch epoch = {.seed = 1};
    fm_error error;
    fm_batch batch;
    pthread_t releaser;
    consumer_waits = false;
    if (fm_loader_start(loader, &epoch, &error) || fm_loader_submit(loader, &sample, 1, &error))
        fail_msg("%s", error.message);
    assert_int_equal(pthread_create(&releaser, NULL, hold_and_release, NULL), 0);
    if (fm_loader_next(loader, -1, &batch, &error)) fail_msg("next: %s", error.message);
    pthread_join(releaser, NULL);
    assert_true(consumer_waits);
    fm_step step;
    fm_stats stats;
    assert_int_equal(fm_loader_steps(loader, 0, &step, 1), 1);
    fm_loader_stats(loader, &stats);
    *cpu_ns = stats.worker_cpu_ns;
    fm_batch_release(&batch);
    fm_loader_close(&loader);
    test_storage_close(&far);
    return step;
}

static void print_step(const fm_step *step, uint64_t cpu_ns) {
    print_message("waited %.3f ms, decode thread's CPU %.3f ms\n", (double)step->data_wait_ns / 1e6,
                  (double)cpu_ns / 1e6);
#define FM_X(name, meaning) \
    if (step->causes.name)  \
        print_message("  %-24s %8.3f ms\n", #name, (double)step->causes.name / 1e6);
    FM_WAIT_CAUSE_FIELDS(FM_X)
#undef FM_X
}

/* What holds whatever the decode thread did, and whether it had a core. */
static void check_step(const fm_step *step, uint64_t cpu_ns) {
    const fm_wait_causes *const causes = &step->causes;
    print_step(step, cpu_ns);
    assert_int_equal(wait_causes_ns(causes), step->data_wait_ns);
    assert_true(causes->storage_ns >= HOLD_NS);
    /* No more work than there was CPU time; a look at the kernel's clock is worth a millisecond. */
    assert_true(causes->decode_ns + causes->transform_ns <= cpu_ns + cpu_ns / 20 + MS);
    assert_int_equal(causes->cpu_queue_decode_ns + causes->cpu_queue_transform_ns, 0);
    assert_int_equal(causes->slot_wait_ns + causes->h2d_ns + causes->python_ns, 0);
    assert_true(causes->unattributed_ns * 50 <= step->data_wait_ns);
}

static fm_reader_kind kind_of(void **state) { return **(fm_reader_kind **)state; }

static void a_held_read_is_storage(void **state) {
    test_storage_need();
    uint64_t cpu_ns;
    const fm_step step = wait_for_one(kind_of(state), &cpu_ns);
    check_step(&step, cpu_ns);
}

/* CPU time used in a stage is that stage's, nearly all of it. */
static void work_in_the_decoder_is_decode(void **state) {
    test_storage_need();
    uint64_t cpu_ns;
    decode_burn_ns = BURN_NS;
    const fm_step step = wait_for_one(kind_of(state), &cpu_ns);
    decode_burn_ns = 0;
    check_step(&step, cpu_ns);
    assert_true(step.causes.decode_ns >= BURN_NS * 95 / 100);
}

static void work_in_the_transform_is_transform(void **state) {
    test_storage_need();
    uint64_t cpu_ns;
    transform_burn_ns = BURN_NS;
    const fm_step step = wait_for_one(kind_of(state), &cpu_ns);
    transform_burn_ns = 0;
    check_step(&step, cpu_ns);
    assert_true(step.causes.transform_ns >= BURN_NS * 95 / 100);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST_BOTH(a_held_read_is_storage),
        TEST_BOTH(work_in_the_decoder_is_decode),
        TEST_BOTH(work_in_the_transform_is_transform),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
