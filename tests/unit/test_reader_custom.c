/* The back end that reads by calling the user: what it passes on, and calls that do not return. */
#define _GNU_SOURCE
#include "read/remote.h"
#include "reads.h"

#define N_BYTES 300000

/* Reads names such as "test://ok"; those with "stuck" wait until they are let go. */
typedef struct custom {
    test_reads reads;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t n_stuck, n_references; /* under lock */
    bool is_let_go;                 /* under lock */
    uint8_t bytes[N_BYTES];
} custom;

static void wait_let_go(custom *self) {
    pthread_mutex_lock(&self->lock);
    self->n_stuck++;
    pthread_cond_broadcast(&self->changed);
    while (!self->is_let_go) pthread_cond_wait(&self->changed, &self->lock);
    self->n_stuck--;
    pthread_cond_broadcast(&self->changed);
    pthread_mutex_unlock(&self->lock);
}

static void read_custom(void *user, const char *name, uint64_t offset_bytes, uint64_t range_bytes,
                        fm_custom_read *result) {
    custom *const self = user;
    if (strstr(name, "stuck")) wait_let_go(self);
    if (strstr(name, "nothing")) return;
    if (strstr(name, "missing")) {
        fm_custom_read_fail(result, "there is no such object");
        fm_custom_read_put(result, self->bytes, 1); /* has no effect */
        return;
    }
    const uint64_t left = N_BYTES - offset_bytes;
    fm_custom_read_put(result, self->bytes + offset_bytes,
                       range_bytes && range_bytes < left ? range_bytes : left);
}

static void add_reference(void *user, uint32_t n) {
    custom *const self = user;
    pthread_mutex_lock(&self->lock);
    self->n_references += n;
    pthread_cond_broadcast(&self->changed);
    pthread_mutex_unlock(&self->lock);
}

static void retain(void *user) { add_reference(user, 1); }
static void release(void *user) { add_reference(user, UINT32_MAX); }

static void custom_open(custom *self, fm_reader_config config) {
    *self = (custom){.reads.lock = PTHREAD_MUTEX_INITIALIZER, .lock = PTHREAD_MUTEX_INITIALIZER};
    pthread_cond_init(&self->changed, NULL);
    for (size_t i = 0; i < N_BYTES; i++) self->bytes[i] = test_byte(7, i);
    config.custom = (fm_custom_reader){read_custom, retain, release, self, config.depth};
    test_reads_open(&self->reads, config, NULL);
}

static void wait_for(custom *self, const uint32_t *number, uint32_t value) {
    pthread_mutex_lock(&self->lock);
    while (*number != value) pthread_cond_wait(&self->changed, &self->lock);
    pthread_mutex_unlock(&self->lock);
}

static void let_go(custom *self) {
    pthread_mutex_lock(&self->lock);
    self->is_let_go = true;
    pthread_cond_broadcast(&self->changed);
    pthread_mutex_unlock(&self->lock);
}

static void custom_close(custom *self) {
    test_reads_close(&self->reads);
    wait_for(self, &self->n_references, 0);
}

static void names_have_a_scheme(void **state) {
    (void)state;
    assert_true(fm_custom_is_name("memory://x") && fm_custom_is_name("a+b.c-1://"));
    assert_true(fm_custom_is_name("cached::s3://b/k") && fm_custom_is_name("zip://a::file:///b"));
    assert_false(fm_custom_is_name("/a://b") || fm_custom_is_name("a::b") ||
                 fm_custom_is_name("a.jpg") || fm_custom_is_name("") || fm_custom_is_name("c:/x") ||
                 fm_custom_is_name("1a://b"));
    char shown[32];
    fm_remote_name_shown("cached::sftp://u:secret@host/a?b#c::az://c/k?sig=secret", shown, 32);
    assert_string_equal(shown, "cached::sftp://host/a::az://c/k");
    fm_remote_name_shown("memory://0123456789", shown, 10);
    assert_string_equal(shown, "123456789");
}

static void objects_and_parts_are_copied(void **state) {
    (void)state;
    custom self;
    custom_open(&self, (fm_reader_config){0});
    fm_read whole = test_read_one(&self.reads, "test://ok", 0);
    test_check_file(&whole, 7, N_BYTES);
    fm_read part = {.path = "test://ok", .offset_bytes = 64, .range_bytes = 1000};
    fm_read late = {.path = "test://ok", .offset_bytes = N_BYTES - 10, .range_bytes = 11};
    fm_reader_submit(self.reads.reader, &part);
    assert_ptr_equal(test_reads_pop(&self.reads), &part);
    assert_int_equal(part.n_bytes, 1000);
    assert_memory_equal(part.bytes, self.bytes + 64, 1000);
    fm_reader_submit(self.reads.reader, &late);
    assert_ptr_equal(test_reads_pop(&self.reads), &late);
    assert_int_equal(late.error, FM_READ_ENDS_EARLY);
    fm_reader_stats stats;
    fm_reader_stats_get(self.reads.reader, &stats);
    assert_string_equal(stats.name, "custom");
    assert_int_equal(stats.depth, 16);
    assert_int_equal(stats.n_files, 2);
    assert_int_equal(stats.n_errors, 1);
    custom_close(&self);
}

static void errors_have_the_reason(void **state) {
    (void)state;
    custom self;
    custom_open(&self, (fm_reader_config){.max_file_bytes = N_BYTES - 1});
    char why[64];
    fm_read read = {.path = "test://missing", .why = why, .why_bytes = sizeof(why)};
    fm_reader_submit(self.reads.reader, &read);
    assert_ptr_equal(test_reads_pop(&self.reads), &read);
    assert_int_equal(read.error, FM_READ_REMOTE);
    assert_string_equal(why, "there is no such object");
    read.path = "test://nothing";
    fm_reader_submit(self.reads.reader, &read);
    assert_ptr_equal(test_reads_pop(&self.reads), &read);
    assert_int_equal(read.error, FM_READ_REMOTE);
    assert_non_null(strstr(why, "nothing"));
    assert_int_equal(test_read_one(&self.reads, "test://large", 0).error, EFBIG);
    custom_close(&self);
}

/* A call that does not return keeps neither its read nor the reader. */
static void reads_are_cancelled_during_calls(void **state) {
    (void)state;
    custom self;
    custom_open(&self, (fm_reader_config){.depth = 2});
    fm_read reads[5];
    for (int i = 0; i < 5; i++) {
        reads[i] = (fm_read){.path = "test://stuck"};
        submit_one(self.reads.reader, &reads[i]);
    }
    wait_for(&self, &self.n_stuck, 2);
    fm_reader_cancel_queued(self.reads.reader);
    assert_int_equal(test_reads_n_done(&self.reads), 5);
    for (int i = 0; i < 5; i++) assert_int_equal(test_reads_pop(&self.reads)->error, ECANCELED);
    let_go(&self);
    fm_read again = test_read_one(&self.reads, "test://ok", 0);
    test_check_file(&again, 7, N_BYTES);
    custom_close(&self);
}

static void close_leaves_calls_behind(void **state) {
    (void)state;
    custom self;
    custom_open(&self, (fm_reader_config){.depth = 2});
    fm_read reads[3];
    for (int i = 0; i < 3; i++) {
        reads[i] = (fm_read){.path = "test://stuck"};
        submit_one(self.reads.reader, &reads[i]);
    }
    wait_for(&self, &self.n_stuck, 2);
    fm_reader_close(&self.reads.reader);
    assert_int_equal(test_reads_n_done(&self.reads), 3);
    wait_for(&self, &self.n_references, 1);
    let_go(&self);
    wait_for(&self, &self.n_references, 0);
    custom_close(&self);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_have_a_scheme),
        cmocka_unit_test(objects_and_parts_are_copied),
        cmocka_unit_test(errors_have_the_reason),
        cmocka_unit_test(reads_are_cancelled_during_calls),
        cmocka_unit_test(close_leaves_calls_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
