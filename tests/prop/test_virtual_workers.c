/*
 * Epochs with streams: on any number of decode threads, each virtual worker draws for its samples
 * one after the other, whatever the order in which they are decoded.
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "encode_jpeg.h"
#include "feedmill/feedmill.h"

enum { N_IMAGES = 48, BATCH = 12, N_BATCHES = 24, SIDE = 16, SAMPLE_BYTES = 3 * SIDE * SIDE };

typedef struct image {
    uint8_t *bytes;
    size_t n_bytes;
    int width, height;
    bool is_readable; /* its header can be read */
} image;

static image images[N_IMAGES];
/* A batch's pixels, all batches one after the other. */
static uint8_t made[2][N_BATCHES][BATCH * SAMPLE_BYTES];

static const fm_op OPS[2] = {
    {.kind = FM_OP_RANDOM_RESIZED_CROP,
     .height = SIDE,
     .width = SIDE,
     .scale = {0.1, 1.0},
     .ratio = {0.75, 4.0 / 3}},
    {.kind = FM_OP_RANDOM_HORIZONTAL_FLIP, .p = 0.5},
};

static int make_images(void **state) {
    (void)state;
    uint64_t random = 7;
    for (int i = 0; i < N_IMAGES; i++) {
        image *const one = &images[i];
        one->width = 17 + 37 * i % 61;
        one->height = 90 - 29 * i % 67;
        const size_t n = 3 * (size_t)one->width * (size_t)one->height;
        uint8_t *const px = malloc(n);
        if (!px) return -1;
        for (size_t k = 0; k < n; k++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            px[k] = (uint8_t)(random >> 58 << 2);
        }
        one->n_bytes = test_encode_jpeg(&one->bytes, px, one->width, one->height);
        one->is_readable = i % 11 != 5;
        if (!one->is_readable) one->bytes[0] = 'x';
        free(px);
    }
    return 0;
}

static int free_images(void **state) {
    (void)state;
    for (int i = 0; i < N_IMAGES; i++) free(images[i].bytes);
    return 0;
}

static fm_config config_of(uint32_t n_threads) {
    fm_config config;
    fm_config_init(&config);
    config.n_samples = N_IMAGES;
    config.batch_size = BATCH;
    config.n_threads = n_threads;
    config.prefetch_batches = 7;
    config.fallback = true;
    config.transform.ops = OPS;
    config.transform.n_ops = 2;
    config.transform.dtype = FM_UINT8;
    return config;
}

static fm_loader *open_loader(uint32_t n_threads) {
    const fm_config config = config_of(n_threads);
    fm_loader *loader = NULL;
    fm_error error;
    if (fm_loader_open(&loader, &config, &error)) fail_msg("%s", error.message);
    return loader;
}

static fm_streams seeded(uint32_t seed) {
    fm_streams streams = {0};
    fm_mt19937 *const all[3] = {&streams.torch, &streams.python, &streams.numpy};
    for (int k = 0; k < 3; k++) {
        for (int i = 0; i < FM_MT19937_N; i++)
            all[k]->words[i] = seed = seed * 1664525u + 1013904223u;
        all[k]->next = 600;
    }
    return streams;
}

static int size_of(int batch) { return batch % 5 == 4 ? BATCH - 3 : BATCH; }

/* Every third batch ends with an image whose header can't be read. */
static int index_of(int batch, int position) {
    if (batch % 3 == 2 && position == size_of(batch) - 1) return 5;
    return (batch * 31 + position * 7) % N_IMAGES;
}

static void submit(fm_loader *loader, int batch, uint32_t n_virtual, bool waits) {
    fm_sample samples[BATCH] = {0};
    const int n = size_of(batch);
    for (int i = 0; i < n; i++) {
        const image *const one = &images[index_of(batch, i)];
        samples[i] = (fm_sample){
            .index = index_of(batch, i), .data = one->bytes, .data_bytes = one->n_bytes};
    }
    assert_int_equal(fm_loader_choose_worker(loader, (uint32_t)batch % n_virtual, waits, NULL),
                     FM_OK);
    assert_int_equal(fm_loader_submit(loader, samples, (size_t)n, NULL), FM_OK);
}

/* Makes a rejected sample: an image whose pixels tell the drawn crop. */
static void finish_sample(fm_loader *loader) {
    fm_fallback fallback;
    fm_draw draws[2];
    fm_error error;
    assert_int_equal(fm_loader_fallback(loader, &fallback), FM_OK);
    const image *const one = &images[fallback.index];
    assert_false(one->is_readable);
    fm_streams before, again;
    assert_int_equal(fm_loader_fallback_streams(loader, &before, NULL), FM_OK);
    assert_int_equal(fm_loader_fallback_done(loader, FM_OK, &error), FM_ERR_STATE);
    if (fm_loader_fallback_draws(loader, 0, one->width, one->height, draws, &error))
        fail_msg("%s", error.message);
    assert_int_equal(fm_loader_fallback_streams(loader, &again, NULL), FM_OK);
    assert_memory_equal(&before, &again, sizeof(before));
    fm_draw expected[2];
    assert_int_equal(
        fm_loader_draws_torch(loader, 0, &before, one->width, one->height, expected, NULL), FM_OK);
    assert_int_equal(draws[0].left, expected[0].left);
    assert_int_equal(draws[0].top, expected[0].top);
    assert_int_equal(draws[1].flip, expected[1].flip);
    assert_int_equal(fm_loader_fallback_draws(loader, 0, 1, one->height, draws, NULL),
                     FM_ERR_STATE);
    memset(fallback.out, draws[0].left + 3 * draws[0].top + draws[1].flip, fallback.out_bytes);
    assert_int_equal(fm_loader_fallback_done(loader, FM_OK, &error), FM_OK);
}

static void receive(fm_loader *loader, uint8_t *pixels) {
    fm_batch batch;
    fm_error error;
    int status;
    while ((status = fm_loader_next(loader, -1, &batch, &error)) == FM_FALLBACK)
        finish_sample(loader);
    if (status) fail_msg("%s", error.message);
    memcpy(pixels, batch.images, batch.n * SAMPLE_BYTES);
    fm_batch_release(&batch);
}

/* What the virtual worker has drawn behind its last batch: its samples one after the other. */
static void check_streams(fm_loader *loader, uint32_t number, uint32_t n_virtual,
                          fm_streams *streams) {
    fm_draw draws[2];
    for (int batch = (int)number; batch < N_BATCHES; batch += (int)n_virtual)
        for (int i = 0; i < size_of(batch); i++) {
            const image *const one = &images[index_of(batch, i)];
            assert_int_equal(
                fm_loader_draws_torch(loader, 0, streams, one->width, one->height, draws, NULL),
                FM_OK);
        }
    fm_streams got;
    assert_int_equal(fm_loader_streams(loader, number, &got, NULL), FM_OK);
    assert_memory_equal(&got, streams, sizeof(got));
}

/* With `waits`, each batch gets the streams behind the virtual worker's batch before it. */
static void run(fm_loader *loader, uint32_t n_virtual, bool waits,
                uint8_t pixels[N_BATCHES][BATCH * SAMPLE_BYTES]) {
    fm_streams streams[8];
    for (uint32_t i = 0; i < n_virtual; i++) streams[i] = seeded(100 + i);
    const fm_epoch epoch = {.streams = streams, .n_streams = n_virtual};
    fm_error error;
    if (fm_loader_start(loader, &epoch, &error)) fail_msg("%s", error.message);
    for (uint32_t i = 0; waits && i < n_virtual; i++)
        assert_int_equal(fm_loader_give_streams(loader, i, &streams[i], NULL), FM_OK);
    int n_submitted = 0;
    for (int batch = 0; batch < N_BATCHES; batch++) {
        while (n_submitted < N_BATCHES && n_submitted < batch + 7)
            submit(loader, n_submitted++, n_virtual, waits);
        receive(loader, pixels[batch]);
        const uint32_t number = (uint32_t)batch % n_virtual;
        fm_streams behind;
        if (!waits) continue;
        assert_int_equal(fm_loader_streams(loader, number, &behind, NULL), FM_OK);
        assert_int_equal(fm_loader_give_streams(loader, number, &behind, NULL), FM_OK);
    }
    for (uint32_t i = 0; i < n_virtual; i++) check_streams(loader, i, n_virtual, &streams[i]);
}

static void any_number_of_threads_draws_the_same(void **state) {
    (void)state;
    for (uint32_t n_virtual = 1; n_virtual <= 8; n_virtual += n_virtual < 3 ? 1 : 5) {
        fm_loader *one = open_loader(1), *four = open_loader(4);
        memset(made, 0, sizeof(made));
        run(one, n_virtual, false, made[0]);
        run(four, n_virtual, false, made[1]);
        assert_memory_equal(made[0], made[1], sizeof(made[0]));
        run(four, n_virtual, true, made[1]);
        assert_memory_equal(made[0], made[1], sizeof(made[0]));
        fm_loader_close(&one);
        fm_loader_close(&four);
    }
}

/* A batch whose sample fails is returned until the next epoch, which starts at any time. */
static void a_failed_sample_ends_the_epoch(void **state) {
    (void)state;
    fm_loader *loader = open_loader(3);
    const fm_streams streams[2] = {seeded(1), seeded(2)};
    const fm_epoch epoch = {.streams = streams, .n_streams = 2};
    for (int round = 0; round < 20; round++) {
        fm_error error;
        fm_batch batch;
        assert_int_equal(fm_loader_start(loader, &epoch, NULL), FM_OK);
        for (int i = 0; i < 5; i++) submit(loader, i, 2, false);
        int status;
        while ((status = fm_loader_next(loader, -1, &batch, &error)) == FM_OK)
            fm_batch_release(&batch);
        assert_int_equal(status, FM_FALLBACK);
        assert_int_equal(fm_loader_fallback_done(loader, 1, &error), FM_OK);
        for (int i = 0; i < 3; i++)
            assert_int_equal(fm_loader_next(loader, -1, &batch, &error), FM_ERR_FORMAT);
    }
    fm_loader_close(&loader);
}

/* The next rejected sample is the one at this position of batch 0, before which `streams` were
 * drawn for all samples before it. */
static void expect_rejected(fm_loader *loader, int position, const fm_streams *streams) {
    fm_batch batch;
    fm_error error;
    fm_fallback fallback;
    fm_streams before;
    fm_draw draws[2];
    assert_int_equal(fm_loader_next(loader, -1, &batch, &error), FM_FALLBACK);
    assert_int_equal(fm_loader_fallback(loader, &fallback), FM_OK);
    assert_int_equal(fallback.index, index_of(0, position));
    assert_int_equal(fm_loader_fallback_streams(loader, &before, NULL), FM_OK);
    assert_memory_equal(&before, streams, sizeof(before));
    const image *const one = &images[fallback.index];
    assert_int_equal(fm_loader_fallback_draws(loader, 0, one->width, one->height, draws, &error),
                     FM_OK);
    assert_int_equal(fm_loader_fallback_done(loader, FM_OK, &error), FM_OK);
}

/* The damage of the first one is seen when it is decoded, perhaps long after the other one was
 * found to have no header. torch's worker gets to the first one first. */
static void rejected_samples_come_in_their_order(void **state) {
    (void)state;
    enum { DAMAGED = 3, WITHOUT_HEADER = 9 };
    image *const damaged = &images[index_of(0, DAMAGED)];
    image *const other = &images[index_of(0, WITHOUT_HEADER)];
    const uint8_t first = other->bytes[0];
    const size_t n_bytes = damaged->n_bytes;
    fm_loader *loader = open_loader(3);
    damaged->n_bytes = n_bytes / 2;
    other->bytes[0] = 'x';
    for (uint32_t round = 0; round < 200; round++) {
        fm_streams streams = seeded(round);
        const fm_epoch epoch = {.streams = &streams, .n_streams = 1};
        fm_draw draws[2];
        assert_int_equal(fm_loader_start(loader, &epoch, NULL), FM_OK);
        for (int i = 0; i < 2; i++) submit(loader, i, 1, false);
        for (int i = 0; i <= WITHOUT_HEADER; i++) {
            const image *const one = &images[index_of(0, i)];
            if (i == DAMAGED || i == WITHOUT_HEADER) expect_rejected(loader, i, &streams);
            assert_int_equal(
                fm_loader_draws_torch(loader, 0, &streams, one->width, one->height, draws, NULL),
                FM_OK);
        }
        fm_batch batch;
        assert_int_equal(fm_loader_next(loader, -1, &batch, NULL), FM_OK);
        fm_batch_release(&batch);
    }
    damaged->n_bytes = n_bytes;
    other->bytes[0] = first;
    fm_loader_close(&loader);
}

static void wrong_calls_are_refused(void **state) {
    (void)state;
    fm_loader *loader = open_loader(1);
    fm_streams streams = seeded(3), bad = seeded(4);
    const int64_t order[1] = {0};
    fm_draw draws[2];
    bad.python.next = FM_MT19937_N + 1;
    fm_epoch epoch = {.streams = &bad, .n_streams = 1};
    assert_int_equal(fm_loader_start(loader, &epoch, NULL), FM_ERR_ARGUMENT);
    epoch = (fm_epoch){.n_streams = 1};
    assert_int_equal(fm_loader_start(loader, &epoch, NULL), FM_ERR_ARGUMENT);
    epoch = (fm_epoch){.streams = &streams, .n_streams = 1, .order = order, .n_order = 1};
    assert_int_equal(fm_loader_start(loader, &epoch, NULL), FM_ERR_ARGUMENT);
    epoch = (fm_epoch){.number = 1};
    assert_int_equal(fm_loader_start(loader, &epoch, NULL), FM_OK);
    assert_int_equal(fm_loader_choose_worker(loader, 0, false, NULL), FM_ERR_ARGUMENT);
    assert_int_equal(fm_loader_streams(loader, 0, &streams, NULL), FM_ERR_ARGUMENT);
    epoch = (fm_epoch){.streams = &streams, .n_streams = 1};
    assert_int_equal(fm_loader_start(loader, &epoch, NULL), FM_OK);
    assert_int_equal(fm_loader_choose_worker(loader, 1, false, NULL), FM_ERR_ARGUMENT);
    assert_int_equal(fm_loader_give_streams(loader, 0, &bad, NULL), FM_ERR_ARGUMENT);
    assert_int_equal(fm_loader_give_streams(loader, 0, NULL, NULL), FM_ERR_ARGUMENT);
    assert_int_equal(fm_loader_streams(loader, 0, NULL, NULL), FM_ERR_ARGUMENT);
    assert_int_equal(fm_loader_fallback_streams(loader, &streams, NULL), FM_ERR_STATE);
    assert_int_equal(fm_loader_fallback_draws(loader, 0, 9, 9, draws, NULL), FM_ERR_STATE);
    assert_int_equal(fm_loader_fallback_draws(loader, 1, 9, 9, draws, NULL), FM_ERR_ARGUMENT);
    fm_loader_close(&loader);
}

/* Bytes that a loader needs at least, and what it allocates with so many, epochs included. */
typedef struct memory {
    uint64_t needed, allocated;
} memory;

static memory measure(fm_config config) {
    memory out = {0};
    fm_loader *loader = NULL;
    fm_error error;
    fm_stats stats;
    config.memory_budget_bytes = 1;
    assert_int_equal(fm_loader_open(&loader, &config, &error), FM_ERR_BUDGET);
    const char *const at = strstr(error.message, " need ");
    assert_non_null(at);
    config.memory_budget_bytes = out.needed = strtoull(at + strlen(" need "), NULL, 10);
    if (fm_loader_open(&loader, &config, &error)) fail_msg("%s", error.message);
    fm_streams streams[2] = {0};
    const fm_epoch epoch = {.streams = streams, .n_streams = 2};
    assert_int_equal(fm_loader_start(loader, &epoch, &error), FM_OK);
    fm_loader_stats(loader, &stats);
    out.allocated = stats.allocated_bytes;
    fm_loader_close(&loader);
    return out;
}

/* What samples in flight take is part of the budget. */
static void the_budget_has_the_copies_of_generators(void **state) {
    (void)state;
    static uint8_t pixels[N_IMAGES][SAMPLE_BYTES];
    const fm_array array = {pixels, N_IMAGES, SAMPLE_BYTES, SAMPLE_BYTES};
    for (int is_array = 0; is_array < 2; is_array++) {
        fm_config config = config_of(1);
        config.seek_index_bytes = 0;
        if (is_array) {
            config.arrays.list = &array;
            config.arrays.n = 1;
            config.arrays.images = true;
            config.arrays.line_stride = 3 * SIDE;
            config.arrays.pixel_stride = 3;
            config.arrays.channel_stride = 1;
            config.transform.in_height = config.transform.in_width = SIDE;
        }
        config.batch_size = 1024;
        config.prefetch_batches = 3;
        const memory few = measure(config);
        config.prefetch_batches = 67;
        const memory many = measure(config);
        if (many.allocated - few.allocated > many.needed - few.needed)
            fail_msg("64 more batches take %llu more bytes, not %llu",
                     (unsigned long long)(many.allocated - few.allocated),
                     (unsigned long long)(many.needed - few.needed));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_number_of_threads_draws_the_same),
        cmocka_unit_test(a_failed_sample_ends_the_epoch),
        cmocka_unit_test(rejected_samples_come_in_their_order),
        cmocka_unit_test(wrong_calls_are_refused),
        cmocka_unit_test(the_budget_has_the_copies_of_generators),
    };
    return cmocka_run_group_tests(tests, make_images, free_images);
}
