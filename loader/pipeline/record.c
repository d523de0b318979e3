/* Records of steps and samples, and the sums of their waits. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "pipeline/pipeline.h"

/* ---- a step's wait --------------------------------------------------------------------------- */

/* Locked. Batches at the front that could be delivered right now. With `ahead` the caller knows
 * how many are collated: fm_loader_step_ready(). */
static uint32_t count_ready(fm_loader *loader) {
    if (loader->ahead) return 0;
    if (loader->stage.calls) return fm_stage_n_ahead(&loader->stage);
    uint32_t n = 0;
    for (; n < loader->n_groups; n++) {
        const fm_group *const group = fm_group_at(loader, n);
        if (group->n_left || group->n_rejected) break;
    }
    return n;
}

/* Locked. The last step, if no other epoch has begun since. */
static fm_step *last_step(fm_loader *loader) {
    if (!loader->n_steps || !loader->last_return_ns) return NULL;
    fm_step *const step = &loader->steps[(loader->n_steps - 1) % FM_N_STEPS];
    return step->epoch + 1 == loader->sums.epochs ? step : NULL;
}

void fm_record_request(fm_loader *loader) {
    if (loader->request_ns) return;
    const uint64_t now_ns = fm_clock_ns();
    loader->request_ns = loader->waited_until_ns = now_ns;
    loader->request_ready = count_ready(loader);
    if (!loader->last_return_ns) {
        loader->since_work = loader->work;
        loader->throttled_ns = fm_throttle_ns(&loader->throttle);
    }
    loader->since_ns = loader->last_return_ns ? loader->last_return_ns : now_ns;
    fm_step *const step = last_step(loader);
    if (step && !step->compute_ns) step->compute_ns = now_ns - loader->last_return_ns;
    /* The wall time runs from the epoch's first request to its last return. */
    if (loader->last_return_ns) loader->sums.wall_ns += now_ns - loader->last_return_ns;
    loader->last_return_ns = now_ns;
}

/* Locked. Time inside next() up to now_ns. */
static void add_host_wait(fm_loader *loader, uint64_t now_ns) {
    loader->sums.host_wait_ns += now_ns - loader->last_return_ns;
    loader->sums.wall_ns += now_ns - loader->last_return_ns;
    loader->last_return_ns = now_ns;
    loader->since_work = loader->work;
}

fm_delivery fm_record_delivery(const fm_group *group) {
    const fm_task *const task = group->last;
    return (fm_delivery){
        .number = group->number,
        .n_samples = group->n_samples,
        .failed = group->n_rejected > 0,
        .submitted_ns = group->submitted_ns,
        .slot_ns = group->slot_ns,
        .ready_ns = fm_group_ready_ns(group),
        .returned_ns = group->returned_ns,
        .queued_ns = group->queued_ns,
        .slot_work = group->slot_work,
        .index = task->index,
        .in_memory = task->data != NULL,
        .started_ns = task->data ? 0 : task->read.started_ns,
        .short_ns = task->data ? 0 : task->read.short_ns,
        .bytes_ns = task->data ? group->submitted_ns : task->read.done_ns,
        .claimed_ns = task->claimed_ns,
        .finished_ns = task->finished_ns, /* 0: it was rejected when it had its bytes */
        .offered = task->offered,
        .claimed = task->claimed,
        .own = task->own,
    };
}

/* Locked. What the batch's last sample passed. */
static fm_timeline timeline_of(const fm_loader *loader, const fm_delivery *delivery) {
    fm_timeline line = {
        .submitted_ns = delivery->submitted_ns,
        .started_ns = delivery->started_ns,
        .short_ns = delivery->short_ns,
        .bytes_ns = delivery->bytes_ns,
        .slot_ns = delivery->slot_ns,
        .claimed_ns = delivery->claimed_ns,
        .finished_ns = delivery->finished_ns,
        .returned_ns = delivery->returned_ns,
        .queued_ns = delivery->queued_ns,
        .own = delivery->own,
    };
    const fm_work *since = line.slot_ns > line.bytes_ns ? &delivery->slot_work : &delivery->offered;
    if (line.short_ns || (loader->since_ns > line.bytes_ns && loader->since_ns > line.slot_ns))
        since = &loader->since_work;
    if (line.claimed_ns > loader->since_ns) line.queued = fm_work_since(&delivery->claimed, since);
    return line;
}

static void add_blame(fm_blame *sum, const fm_blame *piece) {
#define FM_X(name, meaning) sum->name += piece->name;
    FM_BLAME_FIELDS(FM_X)
#undef FM_X
}

/* Locked. The part of the step's wait before until_ns, in which there was no batch, and its causes;
 * without a delivery none is known. With `ahead` the caller's own work on the batch, which follows
 * the native part, is Python's. */
static uint64_t add_data_wait(fm_loader *loader, const fm_delivery *delivery, uint64_t until_ns,
                              fm_blame *blame) {
    const uint64_t throttled_before_ns = loader->throttled_ns;
    loader->throttled_ns = fm_throttle_ns(&loader->throttle);
    *blame = (fm_blame){0};
    if (until_ns <= loader->request_ns) return 0;
    const uint64_t wait_ns = until_ns - loader->request_ns;
    if (delivery) {
        uint64_t native_until_ns = until_ns;
        if (loader->ahead && delivery->ready_ns < until_ns) native_until_ns = delivery->ready_ns;
        fm_timeline line = timeline_of(loader, delivery);
        line.throttled_ns = loader->throttled_ns - throttled_before_ns;
        const uint64_t since_ns =
            loader->since_ns > line.submitted_ns ? loader->since_ns : line.submitted_ns;
        *blame = fm_blame_wait(&line, since_ns, loader->request_ns, native_until_ns);
        blame->python_ns += until_ns - (native_until_ns > loader->request_ns ? native_until_ns
                                                                             : loader->request_ns);
    } else {
        blame->unattributed_ns = wait_ns;
    }
    loader->sums.data_wait_ns += wait_ns;
    add_blame(&loader->sums.blame, blame);
    return wait_ns;
}

void fm_record_failed_wait(fm_loader *loader, const fm_delivery *delivery, uint64_t until_ns) {
    fm_blame blame;
    add_data_wait(loader, delivery, until_ns, &blame);
    add_host_wait(loader, until_ns);
    loader->request_ns = 0;
}

/* Locked. Moves the step's return to now, the end of the sums. */
static void set_return(fm_loader *loader, fm_step *step) {
    add_host_wait(loader, fm_clock_ns());
    step->host_wait_ns = loader->last_return_ns - step->request_ns;
    step->overhead_ns = step->host_wait_ns - step->data_wait_ns;
}

void fm_record_taken(fm_loader *loader, const fm_delivery *delivery) {
    if (delivery->failed) {
        loader->sums.errors++;
        return;
    }
    loader->sums.batches++;
    loader->sums.samples += delivery->n_samples;
}

void fm_record_step(fm_loader *loader, const fm_delivery *delivery, uint64_t ready_ns) {
    const uint64_t n = loader->n_steps++;
    const uint32_t epoch = (uint32_t)loader->sums.epochs - 1;
    fm_step *const step = &loader->steps[n % FM_N_STEPS];
    *step = (fm_step){
        .step = n,
        .epoch = epoch,
        .phase = n == 0                  ? FM_PHASE_FIRST
                 : delivery->number == 0 ? FM_PHASE_BOUNDARY
                                         : FM_PHASE_STEADY,
        .ready_batches = loader->request_ready,
        .n_samples = delivery->n_samples,
        .request_ns = loader->request_ns,
        .last_index = delivery->index,
    };
    step->data_wait_ns = add_data_wait(loader, delivery, ready_ns, &step->blame);
    set_return(loader, step);
    loader->request_ns = 0;
}

void fm_loader_step_request(fm_loader *loader) {
    if (fm_loader_check(loader, NULL)) return;
    fm_ring_lock(loader->ring);
    /* A wait that was given up ends where it was last looked at, not here. */
    if (loader->request_ns) fm_record_failed_wait(loader, NULL, loader->waited_until_ns);
    fm_record_request(loader);
    fm_ring_unlock(loader->ring);
}

void fm_loader_step_return(fm_loader *loader) {
    if (fm_loader_check(loader, NULL) || loader->n_steps == 0) return;
    fm_ring_lock(loader->ring);
    fm_step *const step = &loader->steps[(loader->n_steps - 1) % FM_N_STEPS];
    /* Only directly after that step: no other wait has begun, nor another epoch. */
    if (!loader->request_ns && loader->last_return_ns == step->request_ns + step->host_wait_ns)
        set_return(loader, step);
    fm_ring_unlock(loader->ring);
}

int fm_loader_step_ready(fm_loader *loader, uint64_t number, uint64_t ready_ns, uint32_t n_ready,
                         fm_error *error) {
    const int status = fm_loader_check(loader, error);
    if (status) return status;
    fm_ring_lock(loader->ring);
    const bool is_known = loader->ahead && number < loader->n_handed_out &&
                          number + loader->n_deliveries >= loader->n_handed_out;
    if (!is_known) {
        const uint64_t n_handed_out = loader->n_handed_out;
        fm_ring_unlock(loader->ring);
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "batch %llu was not handed out ahead, or too long ago (%llu were)",
                            (unsigned long long)number, (unsigned long long)n_handed_out);
    }
    const fm_delivery *const delivery = &loader->deliveries[number % loader->n_deliveries];
    /* A large batch may have been submitted in parts; its step is that of the last one. */
    for (; loader->n_taken <= number; loader->n_taken++)
        fm_record_taken(loader, &loader->deliveries[loader->n_taken % loader->n_deliveries]);
    const uint64_t now_ns = fm_clock_ns();
    fm_record_request(loader);
    loader->request_ready = n_ready;
    if (ready_ns > now_ns) ready_ns = now_ns;
    if (delivery->failed)
        fm_record_failed_wait(loader, delivery, now_ns);
    else
        fm_record_step(loader, delivery, ready_ns);
    fm_ring_unlock(loader->ring);
    return FM_OK;
}

/* ---- samples --------------------------------------------------------------------------------- */

static uint64_t read_ns(const fm_sample_record *record) {
    return record->read_end_ns - record->read_begin_ns;
}

/* What counts for being slow: not the waits for others. */
static uint64_t cost_ns(const fm_sample_record *record) {
    return read_ns(record) + record->decode_ns + record->transform_ns;
}

/* Locked. The place for a slow sample: its index's own, an empty one, or that of the least slow. */
static fm_slow_sample *slow_place(fm_loader *loader, int64_t index) {
    fm_slow_sample *least = &loader->slow[0];
    for (uint32_t i = 0; i < loader->n_slow; i++) {
        if (loader->slow[i].record.index == index) return &loader->slow[i];
        if (cost_ns(&loader->slow[i].record) < cost_ns(&least->record)) least = &loader->slow[i];
    }
    return loader->n_slow < FM_N_SLOW ? &loader->slow[loader->n_slow++] : least;
}

static void note_slow(fm_loader *loader, const fm_task *task, const fm_sample_record *record) {
    fm_slow_sample *const place = slow_place(loader, record->index);
    if (cost_ns(&place->record) >= cost_ns(record)) return;
    const size_t n = strlen(task->read.path);
    const size_t skipped = n < FM_SLOW_PATH_BYTES ? 0 : n - FM_SLOW_PATH_BYTES + 1;
    place->record = *record;
    memcpy(place->path, task->read.path + skipped, n - skipped + 1);
    loader->slow_limit_ns = 0;
    if (loader->n_slow < FM_N_SLOW) return;
    loader->slow_limit_ns = UINT64_MAX;
    for (uint32_t i = 0; i < FM_N_SLOW; i++) {
        const uint64_t one_ns = cost_ns(&loader->slow[i].record);
        if (one_ns < loader->slow_limit_ns) loader->slow_limit_ns = one_ns;
    }
}

void fm_record_sample(fm_loader *loader, const fm_task *task) {
    const fm_group *const group = task->group;
    const fm_sample_record record = {
        .index = task->index,
        .batch = group->batch,
        .epoch = (uint32_t)loader->sums.epochs - 1,
        .worker = task->worker,
        .slot = group->slot ? group->slot->loan.slot : UINT32_MAX,
        .status = task->cause,
        .file_bytes = task->data ? task->data_bytes : task->read.n_bytes,
        .submitted_ns = group->submitted_ns,
        .read_begin_ns = task->data ? 0 : task->read.started_ns,
        .read_end_ns = task->data ? 0 : task->read.done_ns,
        .released_ns = group->slot ? group->released_ns : 0,
        .slot_ns = group->slot_ns,
        .work_begin_ns = task->claimed_ns,
        .work_end_ns = task->finished_ns,
        .decode_ns = task->own.decode_ns,
        .transform_ns = task->own.transform_ns,
        .starved_ns = task->own.starved_ns,
    };
    fm_work_add(&loader->work, &task->own);
    loader->sums.starved_ns += task->own.starved_ns;
    if (loader->config.sample_records)
        loader->records[loader->n_records++ % loader->config.sample_records] = record;
    if (cost_ns(&record) > loader->slow_limit_ns) note_slow(loader, task, &record);
}

/* ---- for the caller -------------------------------------------------------------------------- */

/* Records copied at most under one lock, which the decode threads wait for: some 0.1 ms. */
#define AT_ONCE 1024u

/* The first of n records that is asked for and still kept in a ring of so many. */
static uint64_t oldest_kept(uint64_t from, uint64_t n, uint64_t n_kept) {
    const uint64_t oldest = n > n_kept ? n - n_kept : 0;
    return from > oldest ? from : oldest;
}

size_t fm_loader_steps(fm_loader *loader, uint64_t from, fm_step *out, size_t capacity) {
    if (fm_loader_check(loader, NULL) || !out) return 0;
    size_t n = 0;
    for (size_t before = 1; n != before;) {
        before = n;
        fm_ring_lock(loader->ring);
        uint64_t step = oldest_kept(from, loader->n_steps, FM_N_STEPS);
        for (; step < loader->n_steps && n < capacity && n < before + AT_ONCE; step++)
            out[n++] = loader->steps[step % FM_N_STEPS];
        fm_ring_unlock(loader->ring);
        from = step;
    }
    return n;
}

size_t fm_loader_sample_records(fm_loader *loader, uint64_t from, fm_sample_record *out,
                                size_t capacity, uint64_t *first) {
    if (first) *first = from;
    if (fm_loader_check(loader, NULL) || !out || !loader->config.sample_records) return 0;
    const uint64_t n_kept = loader->config.sample_records;
    fm_ring_lock(loader->ring);
    uint64_t number = oldest_kept(from, loader->n_records, n_kept);
    if (first) *first = number;
    size_t n = 0;
    for (; number < loader->n_records && n < capacity && n < AT_ONCE; number++)
        out[n++] = loader->records[number % n_kept];
    fm_ring_unlock(loader->ring);
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
    fm_ring_lock(loader->ring);
    const size_t n_all = loader->n_slow;
    memcpy(all, loader->slow, n_all * sizeof(*all));
    fm_ring_unlock(loader->ring);
    qsort(all, n_all, sizeof(*all), compare_cost);
    const size_t n = n_all < capacity ? n_all : capacity;
    memcpy(out, all, n * sizeof(*all));
    return n;
}
