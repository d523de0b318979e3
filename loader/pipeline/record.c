#define _GNU_SOURCE
#include "pipeline/record.h"

#include <stdlib.h>
#include <string.h>

#include "pipeline/schedule.h"
#include "read/remote.h"

/* ---- a step's wait --------------------------------------------------------------------------- */

/* Locked. How many of the oldest batches could be delivered now. With fm_epoch.ahead only the
 * caller knows, and passes the number to fm_loader_step_ready(). */
static uint32_t count_ready(fm_loader *loader) {
    if (loader->epoch.is_ahead) return 0;
    if (loader->device.calls) return fm_device_stage_n_ahead(&loader->device);
    uint32_t n = 0;
    for (; n < loader->queue.n; n++) {
        if (!fm_pending_is_complete(fm_queue_at(&loader->queue, n))) break;
    }
    return n;
}

/* Locked. The last step of this epoch, or NULL. */
static fm_step *last_step(fm_loader *loader) {
    fm_records *const records = &loader->records;
    if (!records->n_steps || !records->last_return_ns) return NULL;
    fm_step *const step = &records->steps[(records->n_steps - 1) % FM_N_STEPS];
    return step->epoch + 1 == records->sums.epochs ? step : NULL;
}

void fm_record_request(fm_loader *loader) {
    fm_records *const records = &loader->records;
    if (records->request_ns) return;
    const uint64_t now_ns = fm_clock_ns();
    records->request_ns = records->waited_until_ns = now_ns;
    records->request_ready = count_ready(loader);
    if (!records->last_return_ns) {
        records->since_work = loader->queue.work;
        records->throttled_ns = fm_throttle_ns(&loader->throttle);
    }
    records->since_ns = records->last_return_ns ? records->last_return_ns : now_ns;
    fm_step *const step = last_step(loader);
    if (step && !step->compute_ns) step->compute_ns = now_ns - records->last_return_ns;
    /* Wall time is counted from the epoch's first request to its last return. */
    if (records->last_return_ns) records->sums.wall_ns += now_ns - records->last_return_ns;
    records->last_return_ns = now_ns;
}

/* Locked. Adds the time inside next() up to now_ns. */
static void add_host_wait(fm_loader *loader, uint64_t now_ns) {
    fm_records *const records = &loader->records;
    records->sums.host_wait_ns += now_ns - records->last_return_ns;
    records->sums.wall_ns += now_ns - records->last_return_ns;
    records->last_return_ns = now_ns;
    records->since_work = loader->queue.work;
}

fm_delivery fm_record_delivery(const fm_pending *batch) {
    const fm_task *const task = batch->last;
    return (fm_delivery){
        .number = batch->number,
        .n_samples = batch->n_samples,
        .has_failed = batch->n_rejected > 0,
        .submitted_ns = batch->submitted_ns,
        .buffer_ns = batch->buffer_ns,
        .ready_ns = fm_pending_ready_ns(batch),
        .fallback_ns = batch->fallback_ns,
        .copy_queued_ns = batch->copy_queued_ns,
        .work_at_buffer = batch->work_at_buffer,
        .index = task->index,
        .read_begin_ns = task->data ? 0 : task->read.started_ns,
        .read_delay_ns = task->data ? 0 : task->read.buffer_wait_ns,
        .bytes_ns = task->data ? batch->submitted_ns : task->read.done_ns,
        .dequeued_ns = task->dequeued_ns,
        .finished_ns = task->finished_ns, /* 0: no decode thread had it */
        .work_decodable = task->work_decodable,
        .work_dequeued = task->work_dequeued,
        .own = task->own,
        .read = task->data ? (fm_read_times){0} : task->read.times,
    };
}

/* Locked. The times of the last sample that was finished in the batch. */
static fm_timeline timeline_of(const fm_loader *loader, const fm_delivery *delivery) {
    const fm_records *const records = &loader->records;
    fm_timeline line = {
        .submitted_ns = delivery->submitted_ns,
        .read_begin_ns = delivery->read_begin_ns,
        .read_delay_ns = delivery->read_delay_ns,
        .bytes_ns = delivery->bytes_ns,
        .buffer_ns = delivery->buffer_ns,
        .dequeued_ns = delivery->dequeued_ns,
        .finished_ns = delivery->finished_ns,
        .fallback_ns = delivery->fallback_ns,
        .copy_queued_ns = delivery->copy_queued_ns,
        .own = delivery->own,
        .read = delivery->read,
    };
    const fm_work *since =
        line.buffer_ns > line.bytes_ns ? &delivery->work_at_buffer : &delivery->work_decodable;
    if (line.read_delay_ns ||
        (records->since_ns > line.bytes_ns && records->since_ns > line.buffer_ns))
        since = &records->since_work;
    if (line.dequeued_ns > records->since_ns)
        line.queue_work = fm_work_since(&delivery->work_dequeued, since);
    return line;
}

static void add_causes(fm_wait_causes *sum, const fm_wait_causes *piece) {
#define FM_X(name, meaning) sum->name += piece->name;
    FM_WAIT_CAUSE_FIELDS(FM_X)
#undef FM_X
}

static void add_parts(fm_storage_parts *sum, const fm_storage_parts *piece) {
#define FM_X(name, meaning) sum->name += piece->name;
    FM_STORAGE_PART_FIELDS(FM_X)
#undef FM_X
}

/* Locked. Adds the step's wait, up to until_ns, to the sums. Returns the wait and sets *causes and
 * *storage; without a delivery all of it is unattributed. With fm_epoch.ahead the caller's own work
 * on the batch, which follows the native part, is python_ns. */
static uint64_t add_data_wait(fm_loader *loader, const fm_delivery *delivery, uint64_t until_ns,
                              fm_wait_causes *causes, fm_storage_parts *storage) {
    fm_records *const records = &loader->records;
    const uint64_t throttled_before_ns = records->throttled_ns;
    records->throttled_ns = fm_throttle_ns(&loader->throttle);
    *causes = (fm_wait_causes){0};
    *storage = (fm_storage_parts){0};
    if (until_ns <= records->request_ns) return 0;
    const uint64_t wait_ns = until_ns - records->request_ns;
    if (delivery) {
        uint64_t native_until_ns = until_ns;
        if (loader->epoch.is_ahead && delivery->ready_ns < until_ns)
            native_until_ns = delivery->ready_ns;
        fm_timeline line = timeline_of(loader, delivery);
        line.throttled_ns = records->throttled_ns - throttled_before_ns;
        const uint64_t since_ns =
            records->since_ns > line.submitted_ns ? records->since_ns : line.submitted_ns;
        *causes = fm_attribute_wait(&line, since_ns, records->request_ns, native_until_ns);
        *storage = fm_attribute_storage(&line, since_ns, records->request_ns, native_until_ns,
                                        causes->storage_ns);
        causes->python_ns +=
            until_ns -
            (native_until_ns > records->request_ns ? native_until_ns : records->request_ns);
    } else {
        causes->unattributed_ns = wait_ns;
    }
    records->sums.data_wait_ns += wait_ns;
    add_causes(&records->sums.causes, causes);
    add_parts(&records->sums.storage, storage);
    return wait_ns;
}

void fm_record_failed_wait(fm_loader *loader, const fm_delivery *delivery, uint64_t until_ns) {
    fm_wait_causes causes;
    fm_storage_parts storage;
    add_data_wait(loader, delivery, until_ns, &causes, &storage);
    add_host_wait(loader, until_ns);
    loader->records.request_ns = 0;
}

/* Locked. Sets the times of a step that returns now, and adds the time up to now to the sums. */
static void set_return(fm_loader *loader, fm_step *step) {
    add_host_wait(loader, fm_clock_ns());
    step->host_wait_ns = loader->records.last_return_ns - step->request_ns;
    step->overhead_ns = step->host_wait_ns - step->data_wait_ns;
}

void fm_record_received(fm_loader *loader, const fm_delivery *delivery) {
    fm_records *const records = &loader->records;
    if (delivery->has_failed) {
        records->sums.errors++;
        return;
    }
    records->sums.batches++;
    records->sums.samples += delivery->n_samples;
}

void fm_record_step(fm_loader *loader, const fm_delivery *delivery, uint64_t ready_ns) {
    fm_records *const records = &loader->records;
    const uint64_t n = records->n_steps++;
    const uint32_t epoch = (uint32_t)records->sums.epochs - 1;
    fm_step *const step = &records->steps[n % FM_N_STEPS];
    *step = (fm_step){
        .step = n,
        .epoch = epoch,
        .phase = n == 0                  ? FM_PHASE_FIRST
                 : delivery->number == 0 ? FM_PHASE_BOUNDARY
                                         : FM_PHASE_STEADY,
        .ready_batches = records->request_ready,
        .n_samples = delivery->n_samples,
        .request_ns = records->request_ns,
        .last_index = delivery->index,
    };
    step->data_wait_ns = add_data_wait(loader, delivery, ready_ns, &step->causes, &step->storage);
    set_return(loader, step);
    records->request_ns = 0;
}

void fm_loader_step_request(fm_loader *loader) {
    if (fm_loader_check(loader, NULL)) return;
    fm_loader_lock(loader);
    /* A wait that the caller gave up ended with its last call, not now. */
    if (loader->records.request_ns)
        fm_record_failed_wait(loader, NULL, loader->records.waited_until_ns);
    fm_record_request(loader);
    fm_loader_unlock(loader);
}

void fm_loader_step_return(fm_loader *loader) {
    if (fm_loader_check(loader, NULL) || loader->records.n_steps == 0) return;
    fm_loader_lock(loader);
    fm_step *const step = &loader->records.steps[(loader->records.n_steps - 1) % FM_N_STEPS];
    /* Only if no other wait or epoch began since that step. */
    if (!loader->records.request_ns &&
        loader->records.last_return_ns == step->request_ns + step->host_wait_ns)
        set_return(loader, step);
    fm_loader_unlock(loader);
}

int fm_loader_step_ready(fm_loader *loader, uint64_t number, uint64_t ready_ns, uint32_t n_ready,
                         fm_error *error) {
    const int status = fm_loader_check(loader, error);
    if (status) return status;
    fm_loader_lock(loader);
    const bool is_known = loader->epoch.is_ahead && number < loader->records.n_handed_out &&
                          number + loader->records.n_deliveries >= loader->records.n_handed_out;
    if (!is_known) {
        const uint64_t n_handed_out = loader->records.n_handed_out;
        fm_loader_unlock(loader);
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "batch %llu was not handed out ahead, or too long ago (%llu were)",
                            (unsigned long long)number, (unsigned long long)n_handed_out);
    }
    const fm_delivery *const delivery =
        &loader->records.deliveries[number % loader->records.n_deliveries];
    /* A large batch may have been submitted in parts. They are one step, recorded with the last. */
    for (; loader->records.n_recorded <= number; loader->records.n_recorded++)
        fm_record_received(
            loader,
            &loader->records.deliveries[loader->records.n_recorded % loader->records.n_deliveries]);
    const uint64_t now_ns = fm_clock_ns();
    fm_record_request(loader);
    loader->records.request_ready = n_ready;
    if (ready_ns > now_ns) ready_ns = now_ns;
    if (delivery->has_failed)
        fm_record_failed_wait(loader, delivery, now_ns);
    else
        fm_record_step(loader, delivery, ready_ns);
    fm_loader_unlock(loader);
    return FM_OK;
}

/* ---- samples --------------------------------------------------------------------------------- */

static uint64_t read_ns(const fm_sample_record *record) {
    return record->read_end_ns - record->read_begin_ns;
}

/* A sample's own time, without waits for other samples. Decides which samples are slow. */
static uint64_t cost_ns(const fm_sample_record *record) {
    return read_ns(record) + record->decode_ns + record->transform_ns;
}

/* Locked. The entry for a slow sample: the one of the same index, a new one, or the fastest one's.
 */
static fm_slow_sample *slow_place(fm_loader *loader, int64_t index) {
    fm_records *const records = &loader->records;
    fm_slow_sample *least = &records->slow[0];
    for (uint32_t i = 0; i < records->n_slow; i++) {
        if (records->slow[i].record.index == index) return &records->slow[i];
        if (cost_ns(&records->slow[i].record) < cost_ns(&least->record)) least = &records->slow[i];
    }
    return records->n_slow < FM_N_SLOW ? &records->slow[records->n_slow++] : least;
}

static void note_slow(fm_loader *loader, const fm_task *task, const fm_sample_record *record) {
    fm_records *const records = &loader->records;
    fm_slow_sample *const place = slow_place(loader, record->index);
    if (cost_ns(&place->record) >= cost_ns(record)) return;
    place->record = *record;
    fm_remote_name_shown(task->read.path, place->path, sizeof(place->path));
    records->slow_limit_ns = 0;
    if (records->n_slow < FM_N_SLOW) return;
    records->slow_limit_ns = UINT64_MAX;
    for (uint32_t i = 0; i < FM_N_SLOW; i++) {
        const uint64_t one_ns = cost_ns(&records->slow[i].record);
        if (one_ns < records->slow_limit_ns) records->slow_limit_ns = one_ns;
    }
}

void fm_record_sample(fm_loader *loader, const fm_task *task) {
    fm_records *const records = &loader->records;
    const fm_pending *const batch = task->batch;
    const fm_sample_record record = {
        .index = task->index,
        .batch = batch->number_all,
        .epoch = (uint32_t)records->sums.epochs - 1,
        .worker = task->worker,
        .slot = batch->buffer ? batch->buffer->number : UINT32_MAX,
        .status = task->cause,
        .file_bytes = task->data ? task->data_bytes : task->read.n_bytes,
        .submitted_ns = batch->submitted_ns,
        .read_begin_ns = task->data ? 0 : task->read.started_ns,
        .read_end_ns = task->data ? 0 : task->read.done_ns,
        .released_ns = batch->buffer ? batch->buffer_freed_ns : 0,
        .slot_ns = batch->buffer_ns,
        .work_begin_ns = task->dequeued_ns,
        .work_end_ns = task->finished_ns,
        .decode_ns = task->own.decode_ns,
        .transform_ns = task->own.transform_ns,
        .starved_ns = task->own.starved_ns,
    };
    fm_work_add(&loader->queue.work, &task->own);
    records->sums.starved_ns += task->own.starved_ns;
    if (loader->config.sample_records)
        records->samples[records->n_samples++ % loader->config.sample_records] = record;
    if (cost_ns(&record) > records->slow_limit_ns) note_slow(loader, task, &record);
}

/* ---- for the caller -------------------------------------------------------------------------- */

/* Most records that are copied with the lock held, in 0.1 ms, as decode threads wait for it. */
#define MAX_COPIED 1024u

/* The number of the oldest record that is still kept, at least `from`. n were made, of which the
 * last n_kept are kept. */
static uint64_t oldest_kept(uint64_t from, uint64_t n, uint64_t n_kept) {
    const uint64_t oldest = n > n_kept ? n - n_kept : 0;
    return from > oldest ? from : oldest;
}

size_t fm_loader_steps(fm_loader *loader, uint64_t from, fm_step *out, size_t capacity) {
    if (fm_loader_check(loader, NULL) || !out) return 0;
    size_t n = 0;
    for (size_t before = 1; n != before;) {
        before = n;
        fm_loader_lock(loader);
        uint64_t step = oldest_kept(from, loader->records.n_steps, FM_N_STEPS);
        for (; step < loader->records.n_steps && n < capacity && n < before + MAX_COPIED; step++)
            out[n++] = loader->records.steps[step % FM_N_STEPS];
        fm_loader_unlock(loader);
        from = step;
    }
    return n;
}

size_t fm_loader_sample_records(fm_loader *loader, uint64_t from, fm_sample_record *out,
                                size_t capacity, uint64_t *first) {
    if (first) *first = from;
    if (fm_loader_check(loader, NULL) || !out || !loader->config.sample_records) return 0;
    const uint64_t n_kept = loader->config.sample_records;
    fm_loader_lock(loader);
    uint64_t number = oldest_kept(from, loader->records.n_samples, n_kept);
    if (first) *first = number;
    size_t n = 0;
    for (; number < loader->records.n_samples && n < capacity && n < MAX_COPIED; number++)
        out[n++] = loader->records.samples[number % n_kept];
    fm_loader_unlock(loader);
    return n;
}

static int compare_cost(const void *a, const void *b) {
    const uint64_t left_ns = cost_ns(&((const fm_slow_sample *)a)->record);
    const uint64_t right_ns = cost_ns(&((const fm_slow_sample *)b)->record);
    return (left_ns < right_ns) - (left_ns > right_ns);
}

size_t fm_loader_slow_samples(fm_loader *loader, fm_slow_sample *out, size_t capacity) {
    if (fm_loader_check(loader, NULL) || !out) return 0;
    fm_slow_sample all[FM_N_SLOW];
    fm_loader_lock(loader);
    const size_t n_all = loader->records.n_slow;
    memcpy(all, loader->records.slow, n_all * sizeof(*all));
    fm_loader_unlock(loader);
    qsort(all, n_all, sizeof(*all), compare_cost);
    const size_t n = n_all < capacity ? n_all : capacity;
    memcpy(out, all, n * sizeof(*all));
    return n;
}
