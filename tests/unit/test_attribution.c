/* Wait attribution: each cause by itself, and sums for any time stamps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "pipeline/attribution.h"
#include "wait_causes.h"

#define MS 1000000u

static void assert_causes(const fm_timeline *line, uint64_t from_ns, uint64_t to_ns,
                          const fm_wait_causes *wanted) {
    const fm_wait_causes got = fm_attribute_wait(line, from_ns, from_ns, to_ns);
#define FM_X(name, meaning) assert_int_equal(got.name, wanted->name);
    FM_WAIT_CAUSE_FIELDS(FM_X)
#undef FM_X
}

/* A sample that passed every stage after the request, 1, 2, 4, ... ms apart. */
static fm_timeline whole_way(void) {
    return (fm_timeline){
        .submitted_ns = 11 * MS,
        .read_begin_ns = 12 * MS,
        .bytes_ns = 13 * MS,
        .buffer_ns = 17 * MS,
        .dequeued_ns = 25 * MS,
        .finished_ns = 41 * MS,
        .fallback_ns = 73 * MS,
        .queue_work = {.decode_ns = 6 * MS, .transform_ns = 3 * MS, .starved_ns = 3 * MS},
        .own = {.decode_ns = 8 * MS, .transform_ns = 4 * MS, .starved_ns = 2 * MS},
    };
}

static void each_part_has_its_cause(void **state) {
    (void)state;
    const fm_timeline line = whole_way();
    const fm_wait_causes wanted = {
        .python_ns = 1 * MS + 32 * MS,
        .storage_ns = 2 * MS,
        .slot_wait_ns = 4 * MS,
        .cpu_queue_decode_ns = 4 * MS,
        .cpu_queue_transform_ns = 2 * MS,
        .starved_ns = 2 * MS + 2 * MS,
        .decode_ns = 8 * MS,
        .transform_ns = 4 * MS,
        .unattributed_ns = 2 * MS,
    };
    assert_causes(&line, 10 * MS, 73 * MS, &wanted);
}

/* Only time within the wait counts; a partial interval is split in proportion. */
static void parts_are_cut_to_the_wait(void **state) {
    (void)state;
    const fm_timeline line = whole_way();
    const fm_wait_causes late = {
        .decode_ns = 2 * MS,
        .transform_ns = 1 * MS,
        .starved_ns = MS / 2,
        .unattributed_ns = MS / 2,
    };
    assert_causes(&line, 37 * MS, 41 * MS, &late);
    const fm_wait_causes early = {.python_ns = 1 * MS, .storage_ns = 1 * MS};
    assert_causes(&line, 10 * MS, 12 * MS, &early);
    const fm_wait_causes none = {0};
    assert_causes(&line, 20 * MS, 20 * MS, &none);
    assert_causes(&line, 30 * MS, 20 * MS, &none);
}

/* A read that waits for buffers waits for the decode threads that must empty them. */
static void a_wait_for_buffers_is_a_queue(void **state) {
    (void)state;
    const fm_timeline line = {.submitted_ns = 10 * MS,
                              .read_begin_ns = 20 * MS,
                              .read_delay_ns = 8 * MS,
                              .bytes_ns = 21 * MS,
                              .dequeued_ns = 23 * MS,
                              .finished_ns = 23 * MS,
                              .queue_work = {.decode_ns = 3 * MS, .starved_ns = 1 * MS}};
    const fm_wait_causes whole = {.storage_ns = 2 * MS + 1 * MS,
                                  .cpu_queue_decode_ns = 15 * MS / 2,
                                  .starved_ns = 5 * MS / 2};
    assert_causes(&line, 10 * MS, 23 * MS, &whole);
    const fm_wait_causes late = {
        .storage_ns = 1 * MS + 1 * MS, .cpu_queue_decode_ns = 9 * MS / 2, .starved_ns = 3 * MS / 2};
    assert_causes(&line, 15 * MS, 23 * MS, &late);
}

/* The delay of an idle thread that was woken counts as waiting for a CPU. */
static void an_empty_queue_is_a_wait_for_a_core(void **state) {
    (void)state;
    const fm_timeline line = {.bytes_ns = 10 * MS, .dequeued_ns = 15 * MS, .finished_ns = 15 * MS};
    const fm_wait_causes wanted = {.starved_ns = 5 * MS};
    assert_causes(&line, 10 * MS, 15 * MS, &wanted);
}

/* A wait that begins late is attributed by what happened since the previous step. */
static void a_late_wait_has_the_causes_of_its_whole_step(void **state) {
    (void)state;
    const fm_timeline line = {.bytes_ns = 30 * MS,
                              .dequeued_ns = 30 * MS,
                              .finished_ns = 40 * MS,
                              .own = {.decode_ns = 10 * MS}};
    const fm_wait_causes got = fm_attribute_wait(&line, 0, 36 * MS, 40 * MS);
    assert_int_equal(got.storage_ns, 3 * MS);
    assert_int_equal(got.decode_ns, 1 * MS);
    assert_int_equal(wait_causes_ns(&got), 4 * MS);
    /* Except the caller's own work, which begins with its request. */
    fm_timeline finished_by_him = line;
    finished_by_him.fallback_ns = 50 * MS;
    const fm_wait_causes his = fm_attribute_wait(&finished_by_him, 0, 45 * MS, 50 * MS);
    assert_int_equal(his.python_ns, 5 * MS);
    const fm_wait_causes both = fm_attribute_wait(&finished_by_him, 0, 36 * MS, 50 * MS);
    assert_int_equal(both.storage_ns, 3 * MS);
    assert_int_equal(both.python_ns, 10 * MS);
}

/* A sample without any time stamps. */
static void an_unknown_wait_is_unattributed(void **state) {
    (void)state;
    const fm_timeline line = {0};
    const fm_wait_causes wanted = {.unattributed_ns = 7 * MS};
    assert_causes(&line, 3 * MS, 10 * MS, &wanted);
}

static void rows_of_a_mapped_file_wait_for_storage(void **state) {
    (void)state;
    fm_work own = fm_work_of(0, 1000, 1000, 400);
    fm_work_read(&own);
    assert_int_equal(own.starved_ns, 0);
    const fm_timeline line = {
        .submitted_ns = 1, .dequeued_ns = 1000, .finished_ns = 2000, .own = own};
    const fm_wait_causes causes = fm_attribute_wait(&line, 1000, 1000, 2000);
    assert_int_equal(causes.storage_ns, 600);
    assert_int_equal(causes.transform_ns, 400);
}

/* Throttled time that decode threads saw themselves is not taken from storage. */
static void a_quota_that_stops_reads_is_starvation(void **state) {
    (void)state;
    fm_timeline line = whole_way();
    line.throttled_ns = 3 * MS;
    fm_wait_causes causes = fm_attribute_wait(&line, 10 * MS, 10 * MS, 73 * MS);
    assert_int_equal(causes.storage_ns, 2 * MS);
    assert_int_equal(causes.starved_ns, 4 * MS);
    line.throttled_ns = 5 * MS;
    causes = fm_attribute_wait(&line, 10 * MS, 10 * MS, 73 * MS);
    assert_int_equal(causes.storage_ns, 1 * MS);
    assert_int_equal(causes.starved_ns, 5 * MS);
    line.throttled_ns = 60 * MS;
    causes = fm_attribute_wait(&line, 10 * MS, 10 * MS, 73 * MS);
    assert_int_equal(causes.storage_ns, 0);
    assert_int_equal(causes.starved_ns, 6 * MS);
    /* The throttling covered the whole step, of which the wait was the second half. */
    const fm_timeline late = {.bytes_ns = 40 * MS,
                              .dequeued_ns = 40 * MS,
                              .finished_ns = 40 * MS,
                              .throttled_ns = 10 * MS};
    causes = fm_attribute_wait(&late, 0, 20 * MS, 40 * MS);
    assert_int_equal(causes.storage_ns, 15 * MS);
    assert_int_equal(causes.starved_ns, 5 * MS);
}

static void assert_parts(const fm_timeline *line, uint64_t since_ns, uint64_t to_ns,
                         uint64_t storage_ns, const fm_storage_parts *wanted) {
    const fm_storage_parts got = fm_attribute_storage(line, since_ns, since_ns, to_ns, storage_ns);
#define FM_X(name, meaning) assert_int_equal(got.name, wanted->name);
    FM_STORAGE_PART_FIELDS(FM_X)
#undef FM_X
}

/* A read that begins at 20 ms, with a failed attempt, and ends at 40 ms. */
static fm_timeline remote_read(void) {
    return (fm_timeline){
        .submitted_ns = 10 * MS,
        .read_begin_ns = 20 * MS,
        .bytes_ns = 40 * MS,
        .dequeued_ns = 40 * MS,
        .finished_ns = 40 * MS,
        .read = {.held_ns = 2 * MS,
                 .queue = {.connect_ns = 30 * MS, .transfer_ns = 10 * MS},
                 .earlier = {.retry_ns = 4 * MS, .throttled_ns = 2 * MS},
                 .last = {.connect_ns = 3 * MS, .first_byte_ns = 6 * MS, .transfer_ns = 4 * MS}},
    };
}

static void reads_of_objects_are_split(void **state) {
    (void)state;
    fm_timeline line = remote_read();
    const fm_storage_parts whole = {
        .storage_connect_ns = 6 * MS + 3 * MS,
        .storage_first_byte_ns = 6 * MS,
        .storage_transfer_ns = 2 * MS + 4 * MS,
        .storage_retry_ns = 4 * MS,
        .storage_throttled_ns = 2 * MS + 2 * MS,
        .storage_local_ns = 1 * MS,
    };
    assert_parts(&line, 10 * MS, 40 * MS, 30 * MS, &whole);
    /* Part of the wait was found to be for a CPU: all parts shrink. */
    const fm_storage_parts half = {
        .storage_connect_ns = 9 * MS / 2,
        .storage_first_byte_ns = 3 * MS,
        .storage_transfer_ns = 3 * MS,
        .storage_retry_ns = 2 * MS,
        .storage_throttled_ns = 2 * MS,
        .storage_local_ns = MS / 2,
    };
    assert_parts(&line, 10 * MS, 40 * MS, 15 * MS, &half);
    /* The last 8 ms of the read. */
    const fm_storage_parts late = {.storage_first_byte_ns = 4 * MS, .storage_transfer_ns = 4 * MS};
    assert_parts(&line, 32 * MS, 40 * MS, 8 * MS, &late);
    /* Reads of files have no stages. */
    line.read = (fm_read_times){0};
    const fm_storage_parts local = {.storage_local_ns = 30 * MS};
    assert_parts(&line, 10 * MS, 40 * MS, 30 * MS, &local);
    /* Nothing else ended: the queue is as the read itself. */
    line.read.last.first_byte_ns = 20 * MS;
    const fm_storage_parts alone = {.storage_first_byte_ns = 30 * MS};
    assert_parts(&line, 10 * MS, 40 * MS, 30 * MS, &alone);
}

/* Time for read buffers is the decode threads', and their own waits for a mapped file are local. */
static void other_waits_are_no_part_of_a_read(void **state) {
    (void)state;
    fm_timeline line = remote_read();
    line.read_delay_ns = 5 * MS;
    line.finished_ns = 50 * MS;
    line.queue_work.decode_ns = 1;
    line.own.storage_ns = 10 * MS;
    const fm_wait_causes causes = fm_attribute_wait(&line, 10 * MS, 10 * MS, 50 * MS);
    assert_int_equal(causes.storage_ns, 35 * MS);
    const fm_storage_parts wanted = {
        .storage_connect_ns = 9 * MS / 4 + 3 * MS,
        .storage_first_byte_ns = 6 * MS,
        .storage_transfer_ns = 3 * MS / 4 + 4 * MS,
        .storage_retry_ns = 4 * MS,
        .storage_throttled_ns = 2 * MS + 2 * MS,
        .storage_local_ns = 1 * MS + 10 * MS,
    };
    assert_parts(&line, 10 * MS, 50 * MS, 35 * MS, &wanted);
}

static void work_is_what_the_thread_had_a_core_for(void **state) {
    (void)state;
    fm_work work = fm_work_of(8 * MS, 2 * MS, 20 * MS, 15 * MS);
    assert_int_equal(work.decode_ns, 6 * MS);
    assert_int_equal(work.transform_ns, 3 * MS / 2);
    assert_int_equal(work.starved_ns, 5 * MS);
    /* Clocks disagree: never more than the wall time. */
    work = fm_work_of(30 * MS, 30 * MS, 20 * MS, 25 * MS);
    assert_int_equal(work.decode_ns + work.transform_ns + work.starved_ns, 20 * MS);
    work = fm_work_of(0, 0, 0, 5);
    assert_int_equal(work.decode_ns + work.transform_ns + work.starved_ns, 0);
}

/* Numbers of all magnitudes, often equal or 0. */
static uint64_t any_ns(uint64_t *seed) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    const uint64_t word = *seed ^ *seed >> 29;
    return word % 5 == 0 ? 0 : (word >> 8) >> (16 + word % 40);
}

static void what_follows_the_batch_is_the_way_to_the_device(void **state) {
    (void)state;
    const fm_timeline line = {.submitted_ns = 1 * MS,
                              .bytes_ns = 1 * MS,
                              .buffer_ns = 1 * MS,
                              .dequeued_ns = 1 * MS,
                              .finished_ns = 10 * MS,
                              .own = {.decode_ns = 9 * MS},
                              .copy_queued_ns = 14 * MS};
    const fm_wait_causes causes = fm_attribute_wait(&line, 0, 8 * MS, 14 * MS);
    assert_int_equal(causes.h2d_ns, 4 * MS);
    assert_int_equal(causes.python_ns + causes.decode_ns + causes.unattributed_ns, 2 * MS);
    assert_int_equal(wait_causes_ns(&causes), 6 * MS);
}

static fm_read_stages any_stages(uint64_t *seed) {
    return (fm_read_stages){any_ns(seed), any_ns(seed), any_ns(seed), any_ns(seed), any_ns(seed)};
}

/* For any time stamps, even out of order, the causes add up to the wait, to the nanosecond, and the
 * parts of storage to storage. */
static void pieces_are_the_wait(void **state) {
    (void)state;
    uint64_t seed = 1;
    for (int i = 0; i < 200000; i++) {
        fm_timeline line = {any_ns(&seed),
                            any_ns(&seed),
                            any_ns(&seed),
                            any_ns(&seed),
                            any_ns(&seed),
                            any_ns(&seed),
                            any_ns(&seed),
                            any_ns(&seed),
                            any_ns(&seed),
                            {any_ns(&seed), any_ns(&seed), any_ns(&seed), any_ns(&seed)},
                            {any_ns(&seed), any_ns(&seed), any_ns(&seed), any_ns(&seed)},
                            any_ns(&seed),
                            {any_ns(&seed), any_stages(&seed), any_stages(&seed), {0}}};
        line.read.last = any_stages(&seed);
        const uint64_t from_ns = any_ns(&seed), to_ns = from_ns + any_ns(&seed);
        const uint64_t since_ns = any_ns(&seed);
        const fm_wait_causes causes = fm_attribute_wait(&line, since_ns, from_ns, to_ns);
        assert_int_equal(wait_causes_ns(&causes), to_ns - from_ns);
        const fm_storage_parts parts =
            fm_attribute_storage(&line, since_ns, from_ns, to_ns, causes.storage_ns);
        assert_int_equal(storage_parts_ns(&parts), causes.storage_ns);
#define FM_X(name, meaning) assert_true(parts.name <= causes.storage_ns);
        FM_STORAGE_PART_FIELDS(FM_X)
#undef FM_X
        /* Until a sample is dequeued, no time is unattributed. */
        if (line.dequeued_ns >= to_ns) assert_true(causes.unattributed_ns == 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_part_has_its_cause),
        cmocka_unit_test(parts_are_cut_to_the_wait),
        cmocka_unit_test(a_wait_for_buffers_is_a_queue),
        cmocka_unit_test(an_empty_queue_is_a_wait_for_a_core),
        cmocka_unit_test(a_late_wait_has_the_causes_of_its_whole_step),
        cmocka_unit_test(an_unknown_wait_is_unattributed),
        cmocka_unit_test(a_quota_that_stops_reads_is_starvation),
        cmocka_unit_test(rows_of_a_mapped_file_wait_for_storage),
        cmocka_unit_test(reads_of_objects_are_split),
        cmocka_unit_test(other_waits_are_no_part_of_a_read),
        cmocka_unit_test(work_is_what_the_thread_had_a_core_for),
        cmocka_unit_test(what_follows_the_batch_is_the_way_to_the_device),
        cmocka_unit_test(pieces_are_the_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
