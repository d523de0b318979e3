/*
 * Measures whether wait attribution is right. Runs with a known cause of waiting alternate with
 * clean runs of the same work: nearly all of the wait that the cause adds must be attributed to it,
 * and hardly any of it may be unattributed.
 *
 * Uses the public header only, except for two functions that this program wraps (see
 * tests/CMakeLists.txt), so that it can burn CPU time inside the decoder and inside the transform.
 */
#define _GNU_SOURCE
#include <pthread.h>

#include "folder.h"
#include "injure.h"
#include "wait_causes.h"

#define N_FILES 64
#define N_TINY 64
#define N_ROUNDS 3
#define MOST_ROUNDS 12
#define MOST_TRIES 5
#define LARGE_INDEX 40
#define SMALL_EVERY 16
#define MS 1000000u
/* Minimum share of the added wait that must be attributed to its cause. */
#define RIGHT_PERCENT 95
/* Maximum share of all waits that may be unattributed. */
#define UNATTRIBUTED_PERCENT 2
/* If other processes keep the threads from running for more than this share of the wait, or of a
 * run that should not wait, the run is inconclusive. */
#define NOISY_PERCENT 6
#define NOISY_RUN_PERCENT 1
/* A smaller share counts as none. */
#define QUIET_PERCENT 3

static test_folder images; /* 0000.jpg, 0001.jpg, ..., and large.jpg */
static char large_path[128];
static char mixed_dir[128]; /* as many, most of them larger */
static slow_storage fast_files, slow_files;
static bool has_slow_storage;

/* ---- slow stages ----------------------------------------------------------------------------- */

static _Atomic uint64_t decode_burn_ns, transform_burn_ns;
static _Atomic uint64_t burning_kept_ns; /* from the CPU, by others */

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

int __wrap_fm_decoder_start(struct fm_decoder *decoder, const struct fm_box *box, int32_t *skip_px,
                            int32_t *row_px, fm_error *error) {
    if (decode_burn_ns) burning_kept_ns += burn_cpu(decode_burn_ns);
    return __real_fm_decoder_start(decoder, box, skip_px, row_px, error);
}

int __wrap_fm_resample_begin(struct fm_resample *resample, const struct fm_geometry *geometry,
                             struct fm_box *needed, fm_error *error) {
    if (transform_burn_ns) burning_kept_ns += burn_cpu(transform_burn_ns);
    return __real_fm_resample_begin(resample, geometry, needed, error);
}

/* ---- a run ----------------------------------------------------------------------------------- */

/* What runs. Zero fields: no consumer's work, all held batches released at once, ... */
typedef struct job {
    fm_reader_kind reader;
    const char *dir; /* NULL: the images' own */
    bool has_large;  /* one image is large */
    bool in_memory;  /* tiny images in memory, without reads */
    fm_op op;
    uint32_t batch_size, n_batches, n_threads, read_depth;
    uint64_t read_ahead_bytes;
    uint32_t step_us; /* the consumer sleeps so long a step */
    bool hold;        /* the consumer keeps all batches */
} job;

#define MOST_STEPS 2048

typedef struct outcome {
    fm_step steps[MOST_STEPS];
    size_t n_steps;
    fm_wait_causes causes; /* of the steady steps */
    uint64_t data_wait_ns, wall_ns, n_without_wait, n_steady;
    uint64_t kept_ns; /* from the CPU by others, without the loader's own word */
    fm_stats stats;
    fm_slow_sample slowest;
} outcome;

typedef struct source {
    const job *what;
    char paths[N_FILES + 1][160];
    int64_t n_asked;
} source;

static uint8_t *tiny[N_TINY];
static size_t tiny_bytes[N_TINY];

static int locate(void *user, int64_t index, fm_sample *out) {
    source *const from = user;
    const int64_t i = index % N_FILES;
    out->index = index;
    if (from->what->in_memory) {
        out->data = tiny[index % N_TINY];
        out->data_bytes = tiny_bytes[index % N_TINY];
        return FM_OK;
    }
    const char *const dir = from->what->dir ? from->what->dir : images.dir;
    const bool is_large = from->what->has_large && index == LARGE_INDEX;
    char *const path = from->paths[is_large ? N_FILES : i];
    snprintf(path, sizeof(from->paths[0]), is_large ? "%s/large.jpg" : "%s/%04d.jpg", dir, (int)i);
    out->path = path;
    return FM_OK;
}

static fm_loader *open_loader(const job *what, source *from) {
    const fm_op plain = {.kind = FM_OP_RESIZE, .height = 32, .width = 32};
    fm_config config;
    fm_config_init(&config);
    config.source = (fm_source){from, (size_t)what->batch_size * what->n_batches, locate};
    config.transform.ops = what->op.kind ? &what->op : &plain;
    config.transform.n_ops = 1;
    config.transform.dtype = FM_UINT8;
    config.batch_size = what->batch_size;
    config.n_threads = what->n_threads;
    config.reader = what->reader;
    config.read_depth = what->read_depth;
    config.read_ahead_bytes = what->read_ahead_bytes;
    config.memory_budget_bytes = (uint64_t)512 << 20;
    fm_loader *loader = NULL;
    fm_error error;
    const int status = fm_loader_open(&loader, &config, &error);
    if (status == FM_ERR_UNAVAILABLE) {
        print_message("skipped: %s\n", error.message);
        skip();
    }
    if (status) fail_msg("open: %s", error.message);
    return loader;
}

static void consume(fm_loader *loader, const job *what) {
    static fm_batch held[MOST_STEPS];
    fm_error error;
    size_t n = 0;
    int status;
    while ((status = fm_loader_next(loader, -1, &held[n], &error)) == FM_OK) {
        if (what->step_us) usleep(what->step_us);
        if (!what->hold) fm_batch_release(&held[n]);
        n++;
    }
    if (status != FM_END) fail_msg("next: %s", error.message);
    while (n > 0) fm_batch_release(&held[--n]);
}

static bool is_counted(const fm_step *step) {
    return step->epoch == 1 && step->phase == FM_PHASE_STEADY;
}

/* The pieces of each step and of their sum are the wait, in whatever run. */
static void collect(fm_loader *loader, outcome *out) {
    out->n_steps = fm_loader_steps(loader, 0, out->steps, MOST_STEPS);
    for (size_t i = 0; i < out->n_steps; i++) {
        const fm_step *const step = &out->steps[i];
        assert_int_equal(wait_causes_ns(&step->causes), step->data_wait_ns);
        if (!is_counted(step)) continue;
        out->n_steady++;
        out->n_without_wait += step->data_wait_ns == 0;
        out->data_wait_ns += step->data_wait_ns;
        out->wall_ns += step->host_wait_ns + step->compute_ns;
#define FM_X(name, meaning) out->causes.name += step->causes.name;
        FM_WAIT_CAUSE_FIELDS(FM_X)
#undef FM_X
    }
    fm_loader_stats(loader, &out->stats);
    assert_int_equal(wait_causes_ns(&out->stats.causes), out->stats.data_wait_ns);
    fm_loader_slow_samples(loader, &out->slowest, 1);
}

/* The threads wait for a core, the machine's CPUs are stopped, or a burning thread misses time: the
 * same moment may be counted by each. */
static uint64_t kept_so_far_ns(void) {
    return waited_for_core_ns("fm-decode") + stolen_ns() + burning_kept_ns;
}

/* Two epochs of a fresh loader, of which the second counts: in the first, memory is touched for the
 * first time, and sizes are guessed. */
static void run(const job *what, outcome *out) {
    static source from;
    from = (source){.what = what};
    memset(out, 0, sizeof(*out));
    const size_t n = (size_t)what->batch_size * what->n_batches;
    int64_t *const order = malloc(n * sizeof(*order));
    assert_non_null(order);
    for (size_t i = 0; i < n; i++) order[i] = (int64_t)i;
    fm_loader *loader = open_loader(what, &from);
    uint64_t kept_ns = 0;
    for (uint32_t i = 0; i < 2; i++) {
        kept_ns = kept_so_far_ns();
        const fm_epoch epoch = {.number = i, .order = order, .n_order = n};
        fm_error error;
        if (fm_loader_start(loader, &epoch, &error)) fail_msg("start: %s", error.message);
        consume(loader, what);
    }
    out->kept_ns = kept_so_far_ns() - kept_ns;
    collect(loader, out);
    fm_loader_close(&loader);
    free(order);
}

/* ---- clean and injured ----------------------------------------------------------------------- */

typedef struct experiment {
    const char *name;
    job clean, injured;
    void (*begin)(void), (*end)(void); /* around the injured run */
    bool starves;                      /* the cause is that the threads get no core */
    uint64_t (*right_ns)(const fm_wait_causes *causes);
} experiment;

static void print_added(const fm_wait_causes *clean, const fm_wait_causes *injured) {
#define FM_X(name, meaning)                           \
    if (injured->name / MS != clean->name / MS)       \
        print_message("    %-24s %+8.1f ms\n", #name, \
                      ((double)injured->name - (double)clean->name) / MS);
    FM_WAIT_CAUSE_FIELDS(FM_X)
#undef FM_X
}

static uint64_t storage_of(const fm_wait_causes *causes) { return causes->storage_ns; }
static uint64_t starved_of(const fm_wait_causes *causes) { return causes->starved_ns; }

static uint64_t decode_of(const fm_wait_causes *causes) {
    return causes->decode_ns + causes->cpu_queue_decode_ns;
}

static uint64_t transform_of(const fm_wait_causes *causes) {
    return causes->transform_ns + causes->cpu_queue_transform_ns;
}

typedef struct round {
    double right;        /* percent of the added wait that is attributed to the right cause */
    double noise;        /* percent of the wait: the threads were kept from running */
    double unattributed; /* percent of the wait */
} round;

static int compare(double left, double right) { return (left > right) - (left < right); }

static int compare_noise(const void *a, const void *b) {
    return compare(((const round *)a)->noise, ((const round *)b)->noise);
}

static int compare_right(const void *a, const void *b) {
    return compare(((const round *)a)->right, ((const round *)b)->right);
}

static int compare_unattributed(const void *a, const void *b) {
    return compare(((const round *)a)->unattributed, ((const round *)b)->unattributed);
}

/*
 * What others take from the threads while a cause is tried is no part of what the cause adds. It is
 * what the accounting calls starved, but never more than what the kernel and the burning threads
 * themselves know of: so much cannot be passed off as others' doing.
 */
static round run_round(const experiment *trial) {
    static outcome clean, injured;
    run(&trial->clean, &clean);
    if (trial->begin) trial->begin();
    run(&trial->injured, &injured);
    if (trial->end) trial->end();
    const double added = (double)injured.data_wait_ns - (double)clean.data_wait_ns;
    const double right =
        (double)trial->right_ns(&injured.causes) - (double)trial->right_ns(&clean.causes);
    double others = (double)injured.causes.starved_ns - (double)clean.causes.starved_ns;
    if (others > (double)injured.kept_ns) others = (double)injured.kept_ns;
    if (others < 0 || trial->starves) others = 0;
    const double percent = 100 / (double)injured.data_wait_ns;
    const double noise = trial->starves ? 0 : percent * (double)(injured.kept_ns + clean.kept_ns);
    const round out = {100 * right / (added - others), noise,
                       percent * (double)injured.causes.unattributed_ns};
    print_message("  %s, %s: wait %.1f -> %.1f ms, others' %.1f ms, %.2f %% of the rest is right\n",
                  trial->name, injured.stats.reader, (double)clean.data_wait_ns / MS,
                  (double)injured.data_wait_ns / MS, others / MS, out.right);
    print_added(&clean.causes, &injured.causes);
    if (out.noise < NOISY_PERCENT) assert_true(added > 20.0 * MS);
    return out;
}

/* Rounds of a clean and an injured run each, of which the median counts. More rounds make up for
 * those that others spoiled: the quietest are looked at. */
static void check(const experiment *trial) {
    round rounds[MOST_ROUNDS];
    int n = 0;
    for (int n_quiet = 0; n_quiet < N_ROUNDS && n < MOST_ROUNDS; n++) {
        rounds[n] = run_round(trial);
        n_quiet += rounds[n].noise < QUIET_PERCENT;
    }
    qsort(rounds, (size_t)n, sizeof(*rounds), compare_noise);
    const double noise = rounds[N_ROUNDS - 1].noise;
    if (noise >= NOISY_PERCENT) {
        print_message("skipped: others took the CPUs for %.0f %% of the wait\n", noise);
        skip();
    }
    qsort(rounds, N_ROUNDS, sizeof(*rounds), compare_unattributed);
    const double unattributed = rounds[N_ROUNDS / 2].unattributed;
    qsort(rounds, N_ROUNDS, sizeof(*rounds), compare_right);
    const double right = rounds[N_ROUNDS / 2].right;
    print_message("%s: %.2f %% right, %.2f %% blamed on nothing\n", trial->name, right,
                  unattributed);
    assert_true(right >= RIGHT_PERCENT);
    assert_true(unattributed < UNATTRIBUTED_PERCENT);
}

static fm_reader_kind reader_of(void **state) { return **(fm_reader_kind **)state; }

static job small_job(void **state) {
    return (job){.reader = reader_of(state), .batch_size = 8, .n_batches = 16, .n_threads = 2};
}

/* One decode thread, so that on two CPUs no thread of ours keeps another from running; not for
 * long, as the kernel lets nobody be alone for a second. */
static job stage_job(void **state) {
    job stage = small_job(state);
    stage.n_threads = 1;
    stage.n_batches = 6;
    return stage;
}

static int crowded(void **state) {
    (void)state;
    be_alone(false);
    return 0;
}

static int alone(void **state) {
    (void)state;
    be_alone(true);
    return 0;
}

static void slow_storage_is_storage(void **state) {
    if (!has_slow_storage) {
        print_message("skipped: no /dev/fuse, or FM_SLOWFS does not name the tool slowfs\n");
        skip();
    }
    experiment far = {.name = "5 ms a read", .clean = small_job(state), .right_ns = storage_of};
    far.clean.read_depth = 4;
    far.clean.dir = fast_files.dir;
    far.injured = far.clean;
    far.injured.dir = slow_files.dir;
    check(&far);
    far.name = "5 ms a read, steps of 6 ms";
    far.clean.step_us = far.injured.step_us = 6000;
    check(&far);
}

static void burn_in_decoder(void) { decode_burn_ns = 5 * MS; }
static void burn_in_transform(void) { transform_burn_ns = 5 * MS; }
static void burn_nothing(void) { decode_burn_ns = transform_burn_ns = 0; }

static void a_slow_decoder_is_decode(void **state) {
    const job same = stage_job(state);
    check(&(experiment){"5 ms in the decoder", same, same, burn_in_decoder, burn_nothing, false,
                        decode_of});
}

static void a_slow_decoder_in_a_slow_step_is_decode(void **state) {
    job same = stage_job(state);
    same.step_us = 25000;
    check(&(experiment){"5 ms in the decoder, steps of 25 ms", same, same, burn_in_decoder,
                        burn_nothing, false, decode_of});
}

/* With few read buffers, files wait to be read until others are decoded. The last of each batch is
 * the smallest, which is decoded last as well. */
static void a_slow_decoder_with_short_buffers_is_decode(void **state) {
    job same = stage_job(state);
    same.batch_size = SMALL_EVERY;
    same.n_batches = 4;
    same.dir = mixed_dir;
    same.read_ahead_bytes = 128 << 10;
    check(&(experiment){"5 ms in the decoder, few buffers", same, same, burn_in_decoder,
                        burn_nothing, false, decode_of});
}

static void a_slow_transform_is_transform(void **state) {
    const job same = stage_job(state);
    check(&(experiment){"5 ms in the transform", same, same, burn_in_transform, burn_nothing, false,
                        transform_of});
}

static quota own_quota;

static void limit(void) { assert_true(quota_set(&own_quota, true)); }
static void unlimit(void) { assert_true(quota_set(&own_quota, false)); }

static int leave_quota(void **state) {
    (void)state;
    if (*own_quota.dir) quota_close(&own_quota);
    *own_quota.dir = 0;
    return 0;
}

/* Work for some hundreds of milliseconds of two cores, whatever the images: many times as long as
 * the kernel lets another process go first. Reading takes little of it, as what a reader's thread
 * waits for a core counts as storage. */
static job busy_job(void **state) {
    job busy = small_job(state);
    busy.n_batches = 96;
    busy.op = (fm_op){FM_OP_RESIZE, .height = 640, .width = 640};
    busy.op.filter = FM_FILTER_LANCZOS;
    return busy;
}

static void a_quota_is_starvation(void **state) {
    const job same = busy_job(state);
    if (!quota_open(&own_quota)) {
        print_message("skipped: no cgroup with a CPU quota can be made: %s\n", strerror(errno));
        *own_quota.dir = 0;
        skip();
    }
    check(&(experiment){"a quota of 40 %", same, same, limit, unlimit, true, starved_of});
}

static peers others;

static void start_peers(void) { peers_open(&others); }
static void stop_peers(void) { peers_close(&others); }

static int end_neighbours(void **state) {
    (void)state;
    peers_close(&others);
    return 0;
}

static void busy_neighbours_are_starvation(void **state) {
    const job same = busy_job(state);
    check(&(experiment){"busy peer processes", same, same, start_peers, stop_peers, true,
                        starved_of});
}

static void one_slow_sample_is_decode(void **state) {
    experiment slow = {.name = "one slow sample", .clean = small_job(state)};
    slow.right_ns = decode_of;
    slow.clean.op = (fm_op){FM_OP_RESIZE, .height = 32, .width = 32, .filter = FM_FILTER_NEAREST};
    slow.injured = slow.clean;
    slow.injured.has_large = true;
    check(&slow);
}

/* Others can only make a run wait more, so that one try of a few must do. */
static void check_once(const job *what, bool (*is_right)(const job *what, const outcome *out)) {
    static outcome out;
    double noise = 100;
    for (int i = 0; i < MOST_TRIES; i++) {
        run(what, &out);
        if (is_right(what, &out)) return;
        const double kept = 100 * (double)out.kept_ns / (double)out.wall_ns;
        if (kept < noise) noise = kept;
    }
    if (noise < NOISY_RUN_PERCENT) fail_msg("not once in %d tries", MOST_TRIES);
    print_message("skipped: others took the CPUs for %.0f %% of each run\n", noise);
    skip();
}

static bool large_is_named(const job *what, const outcome *out) {
    const fm_step *longest = NULL;
    for (size_t i = 0; i < out->n_steps; i++)
        if (is_counted(&out->steps[i]) &&
            (!longest || out->steps[i].data_wait_ns > longest->data_wait_ns))
            longest = &out->steps[i];
    assert_non_null(longest);
    assert_int_equal(out->slowest.record.index, LARGE_INDEX);
    assert_string_equal(out->slowest.path, large_path);
    return longest->step == what->n_batches + LARGE_INDEX / what->batch_size &&
           longest->last_index == LARGE_INDEX &&
           longest->causes.decode_ns * 2 > longest->data_wait_ns;
}

static void one_slow_sample_is_named(void **state) {
    job slow = small_job(state);
    slow.has_large = true;
    check_once(&slow, large_is_named);
}

/* ---- no stall -------------------------------------------------------------------------------- */

static bool hardly_waits(const job *what, const outcome *out) {
    (void)what;
    print_message("waited %.0f ns a step\n", (double)out->data_wait_ns / (double)out->n_steady);
    return out->data_wait_ns < out->n_steady * 5000;
}

static bool is_no_stall(const job *what, const outcome *out) {
    (void)what;
    print_message("null source: %zu of %zu steady steps without a wait, %.4f %% of the time\n",
                  (size_t)out->n_without_wait, (size_t)out->n_steady,
                  100.0 * (double)out->data_wait_ns / (double)out->wall_ns);
    return out->n_without_wait * 100 >= out->n_steady * 99 &&
           out->data_wait_ns * 100 < out->wall_ns;
}

/* Four times as long as the loader takes for a batch on this machine, and at least that long. */
static uint32_t slow_step_us(const job *what, uint32_t least_us) {
    static outcome out;
    job unhindered = *what;
    unhindered.step_us = 0;
    unhindered.hold = false;
    run(&unhindered, &out);
    const uint64_t us = 4 * (out.wall_ns / out.n_steady) / 1000;
    return us > least_us ? (uint32_t)us : least_us;
}

static void a_null_source_is_no_stall(void **state) {
    (void)state;
    job null = {.in_memory = true, .batch_size = 4, .n_batches = 500, .n_threads = 1};
    null.step_us = slow_step_us(&null, 1000);
    check_once(&null, is_no_stall);
}

static void a_slow_consumer_is_no_stall(void **state) {
    job slow = small_job(state);
    slow.step_us = slow_step_us(&slow, 20000);
    check_once(&slow, hardly_waits);
}

/* He who keeps all batches pays for copies, and is not told that he waits for data. */
static bool held_and_hardly_waits(const job *what, const outcome *out) {
    assert_int_equal(out->stats.copied_batches, 2 * (what->n_batches - 2));
    assert_int_equal(out->stats.causes.slot_wait_ns, 0);
    return hardly_waits(what, out);
}

static void holding_all_batches_is_no_stall(void **state) {
    job holder = small_job(state);
    holder.step_us = slow_step_us(&holder, 5000);
    holder.hold = true;
    check_once(&holder, held_and_hardly_waits);
}

/* ---- the program ----------------------------------------------------------------------------- */

/* At most two CPUs, so that a few peer processes fill them; and no fewer, where a decode thread
 * would keep the readers from running. */
static void use_two_cpus(void) {
    cpu_set_t all, two;
    CPU_ZERO(&two);
    if (sched_getaffinity(0, sizeof(all), &all)) return;
    if (CPU_COUNT(&all) < 2) {
        print_message("skipped: two CPUs are needed, and this process may use one\n");
        exit(77);
    }
    for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&two) < 2; cpu++)
        if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, &two);
    sched_setaffinity(0, sizeof(two), &two);
}

static void make_images(void) {
    char command[512];
    images = test_folder_open(0);
    const char *const tool = getenv("FM_MKJPEG");
    snprintf(mixed_dir, sizeof(mixed_dir), "%s/mixed", images.dir);
    if (mkdir(mixed_dir, 0755)) exit(1);
    for (int i = 0; i < N_FILES; i++) {
        snprintf(command, sizeof(command), "%s size=%s seed=%d %s/%04d.jpg", tool,
                 i % SMALL_EVERY == SMALL_EVERY - 1 ? "96x96" : "300x300", i, mixed_dir, i);
        test_run(command);
        snprintf(command, sizeof(command), "%s size=96x96 seed=%d %s/%04d.jpg", tool, i, images.dir,
                 i);
        test_run(command);
    }
    snprintf(large_path, sizeof(large_path), "%s/large.jpg", images.dir);
    snprintf(command, sizeof(command), "%s size=8000x6000 quality=30 noise=0 %s", tool, large_path);
    test_run(command);
}

static void read_tiny(void) {
    char path[128];
    for (int i = 0; i < N_TINY; i++) {
        snprintf(path, sizeof(path), "%s/%04d.jpg", images.dir, i);
        FILE *const in = fopen(path, "rb");
        assert_non_null(in);
        tiny[i] = malloc(1 << 16);
        assert_non_null(tiny[i]);
        tiny_bytes[i] = fread(tiny[i], 1, 1 << 16, in);
        fclose(in);
    }
}

static int set_up(void **state) {
    (void)state;
    unsetenv("FEEDMILL_READER"); /* each test says which */
    go_ahead_of_others();
    use_two_cpus();
    make_images();
    read_tiny();
    has_slow_storage = slow_storage_open(&fast_files, images.dir, "0") &&
                       slow_storage_open(&slow_files, images.dir, "5");
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    slow_storage_close(&fast_files);
    slow_storage_close(&slow_files);
    for (int i = 0; i < N_TINY; i++) free(tiny[i]);
    test_folder_close(&images);
    return 0;
}

#define BOTH(body, begin, end)                                                    \
    {#body " (pread)", body, begin, end, &(fm_reader_kind){FM_READER_PREAD}}, {   \
#body " (uring)", body, begin, end, &(fm_reader_kind) { FM_READER_URING } \
    }

int main(void) {
    const struct CMUnitTest tests[] = {
        BOTH(slow_storage_is_storage, alone, NULL),
        BOTH(a_slow_decoder_is_decode, alone, NULL),
        BOTH(a_slow_decoder_in_a_slow_step_is_decode, alone, NULL),
        BOTH(a_slow_decoder_with_short_buffers_is_decode, alone, NULL),
        BOTH(a_slow_transform_is_transform, alone, NULL),
        BOTH(one_slow_sample_is_decode, alone, NULL),
        BOTH(one_slow_sample_is_named, alone, NULL),
        BOTH(a_quota_is_starvation, crowded, leave_quota),
        BOTH(busy_neighbours_are_starvation, crowded, end_neighbours),
        BOTH(a_slow_consumer_is_no_stall, crowded, NULL),
        BOTH(holding_all_batches_is_no_stall, crowded, NULL),
        cmocka_unit_test(a_null_source_is_no_stall),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
