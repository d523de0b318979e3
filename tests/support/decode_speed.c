/*
 * Changes the speed of decoding, in builds with FM_TEST_DECODE (tests/decode_speed.cmake): the
 * whole suite must pass with decoding ten times slower, and with decoding that takes no time. The
 * linker's
 * --wrap replaces functions of loader/decode/decoder.h and fm_loader_next() by these.
 *
 * "slow": each call of the decoder is followed by nine times the CPU time that it took.
 *
 * "instant": fm_loader_next() and fm_loader_stop() first wait until the decode threads have done
 * all work that they can do. To the consumer, decoding then seems to take no time: each batch that
 * has its bytes and a buffer is ready.
 */
#define _GNU_SOURCE
#include <unistd.h>

#include "base/clock.h"
#include "pipeline/schedule.h"

#if FM_TEST_DECODE_SLOW

int __real_fm_decoder_begin(fm_decoder *decoder, const uint8_t *bytes, size_t n_bytes,
                            fm_image_info *info, fm_error *error);
int __wrap_fm_decoder_begin(fm_decoder *decoder, const uint8_t *bytes, size_t n_bytes,
                            fm_image_info *info, fm_error *error);
int __real_fm_decoder_start(fm_decoder *decoder, const fm_box *box, int32_t *skip_px,
                            int32_t *row_px, fm_error *error);
int __wrap_fm_decoder_start(fm_decoder *decoder, const fm_box *box, int32_t *skip_px,
                            int32_t *row_px, fm_error *error);
int __real_fm_decoder_read(fm_decoder *decoder, uint8_t *const *rows, int32_t n_rows,
                           fm_error *error);
int __wrap_fm_decoder_read(fm_decoder *decoder, uint8_t *const *rows, int32_t n_rows,
                           fm_error *error);

#define TIMES_SLOWER 10

static uint64_t cpu_ns(void) { return fm_clock_of(CLOCK_THREAD_CPUTIME_ID); }

/* Uses up the rest of ten times what has been used since begin_ns. */
static int slower(uint64_t begin_ns, int result) {
    const uint64_t end_ns = begin_ns + TIMES_SLOWER * (cpu_ns() - begin_ns);
    while (cpu_ns() < end_ns) continue;
    return result;
}

int __wrap_fm_decoder_begin(fm_decoder *decoder, const uint8_t *bytes, size_t n_bytes,
                            fm_image_info *info, fm_error *error) {
    const uint64_t begin_ns = cpu_ns();
    return slower(begin_ns, __real_fm_decoder_begin(decoder, bytes, n_bytes, info, error));
}

int __wrap_fm_decoder_start(fm_decoder *decoder, const fm_box *box, int32_t *skip_px,
                            int32_t *row_px, fm_error *error) {
    const uint64_t begin_ns = cpu_ns();
    return slower(begin_ns, __real_fm_decoder_start(decoder, box, skip_px, row_px, error));
}

int __wrap_fm_decoder_read(fm_decoder *decoder, uint8_t *const *rows, int32_t n_rows,
                           fm_error *error) {
    const uint64_t begin_ns = cpu_ns();
    return slower(begin_ns, __real_fm_decoder_read(decoder, rows, n_rows, error));
}

#else

/* A read that a test holds back is not waited for. */
#define MOST_READ_NS 10000000u
#define LOOK_US 100

int __real_fm_loader_next(fm_loader *loader, int64_t timeout_ns, fm_batch *batch, fm_error *error);
int __wrap_fm_loader_next(fm_loader *loader, int64_t timeout_ns, fm_batch *batch, fm_error *error);
int __real_fm_loader_stop(fm_loader *loader, fm_error *error);
int __wrap_fm_loader_stop(fm_loader *loader, fm_error *error);

/* Whether all is decoded for which there are bytes and a buffer. */
static bool is_all_decoded(fm_loader *loader, bool *is_reading) {
    fm_queue *const queue = &loader->queue;
    fm_loader_lock(loader);
    bool is_all = queue->n_active == 0;
    for (uint32_t i = 0; i < queue->n_with_buffer; i++)
        is_all = is_all && fm_queue_at(queue, i)->size_classes == 0;
    is_all = is_all || atomic_load(&queue->is_cancelled) || queue->is_stopping;
    *is_reading = queue->n_reading > 0;
    fm_loader_unlock(loader);
    return is_all;
}

static void wait_for_decoding(fm_loader *loader) {
    if (fm_loader_check(loader, NULL)) return;
    const uint64_t begin_ns = fm_clock_ns();
    for (bool is_reading; !is_all_decoded(loader, &is_reading) ||
                          (is_reading && fm_clock_ns() - begin_ns < MOST_READ_NS);)
        usleep(LOOK_US);
}

int __wrap_fm_loader_next(fm_loader *loader, int64_t timeout_ns, fm_batch *batch, fm_error *error) {
    wait_for_decoding(loader);
    return __real_fm_loader_next(loader, timeout_ns, batch, error);
}

int __wrap_fm_loader_stop(fm_loader *loader, fm_error *error) {
    wait_for_decoding(loader);
    return __real_fm_loader_stop(loader, error);
}

#endif
