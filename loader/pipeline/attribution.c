#include "pipeline/attribution.h"

__extension__ typedef unsigned __int128 wide;

/* total_ns * part / whole, rounded down; part is at most whole. */
static uint64_t share(uint64_t total_ns, uint64_t part, uint64_t whole) {
    return whole ? (uint64_t)((wide)total_ns * part / whole) : 0;
}

fm_work fm_work_of(uint64_t decode_ns, uint64_t transform_ns, uint64_t wall_ns, uint64_t cpu_ns) {
    /* The clocks are read at different moments, so sums may exceed wall_ns slightly. */
    if (cpu_ns > wall_ns) cpu_ns = wall_ns;
    if (decode_ns > wall_ns) decode_ns = wall_ns;
    if (transform_ns > wall_ns - decode_ns) transform_ns = wall_ns - decode_ns;
    return (fm_work){
        .decode_ns = share(decode_ns, cpu_ns, wall_ns),
        .transform_ns = share(transform_ns, cpu_ns, wall_ns),
        .starved_ns = wall_ns - cpu_ns,
    };
}

/* Moves *cursor_ns to stamp_ns, at most to to_ns, and returns the time passed. */
static uint64_t advance(uint64_t *cursor_ns, uint64_t stamp_ns, uint64_t to_ns) {
    const uint64_t end_ns = stamp_ns < to_ns ? stamp_ns : to_ns;
    if (end_ns <= *cursor_ns) return 0;
    const uint64_t passed_ns = end_ns - *cursor_ns;
    *cursor_ns = end_ns;
    return passed_ns;
}

static void divide_queue(const fm_work *queued, uint64_t total_ns, fm_wait_causes *out) {
    const uint64_t sum_ns =
        queued->decode_ns + queued->transform_ns + queued->starved_ns + queued->storage_ns;
    const uint64_t storage_ns = share(total_ns, queued->storage_ns, sum_ns);
    out->cpu_queue_decode_ns = share(total_ns, queued->decode_ns, sum_ns);
    out->cpu_queue_transform_ns = share(total_ns, queued->transform_ns, sum_ns);
    out->storage_ns += storage_ns;
    /* Includes the rounding error, a nanosecond or two. */
    out->starved_ns +=
        total_ns - out->cpu_queue_decode_ns - out->cpu_queue_transform_ns - storage_ns;
}

static void divide_own(const fm_work *own, uint64_t wall_ns, uint64_t total_ns,
                       fm_wait_causes *out) {
    fm_work work = *own;
    /* The parts should not exceed wall_ns; if they do, they are scaled by their sum. */
    const uint64_t sum_ns = own->decode_ns + own->transform_ns + own->starved_ns + own->storage_ns;
    const uint64_t whole_ns = sum_ns > wall_ns ? sum_ns : wall_ns;
    work.decode_ns = share(total_ns, own->decode_ns, whole_ns);
    work.transform_ns = share(total_ns, own->transform_ns, whole_ns);
    work.starved_ns = share(total_ns, own->starved_ns, whole_ns);
    work.storage_ns = share(total_ns, own->storage_ns, whole_ns);
    out->decode_ns += work.decode_ns;
    out->transform_ns += work.transform_ns;
    out->starved_ns += work.starved_ns;
    out->storage_ns += work.storage_ns;
    out->unattributed_ns +=
        total_ns - work.decode_ns - work.transform_ns - work.starved_ns - work.storage_ns;
}

/* The share of part_ns, a part of the time before the read began, that was waiting for read
 * buffers.
 */
static uint64_t read_delay_part(const fm_timeline *line, uint64_t part_ns) {
    if (line->read_begin_ns <= line->submitted_ns) return 0;
    const uint64_t whole_ns = line->read_begin_ns - line->submitted_ns;
    return share(part_ns, line->read_delay_ns < whole_ns ? line->read_delay_ns : whole_ns,
                 whole_ns);
}

/* Splits the time until the sample was finished. */
static fm_wait_causes attribute_native(const fm_timeline *line, uint64_t from_ns, uint64_t to_ns) {
    fm_wait_causes out = {0};
    uint64_t cursor_ns = from_ns;
    out.python_ns = advance(&cursor_ns, line->submitted_ns, to_ns);
    const uint64_t unread_ns = advance(&cursor_ns, line->read_begin_ns, to_ns);
    const uint64_t read_delay_ns = read_delay_part(line, unread_ns);
    out.storage_ns = unread_ns - read_delay_ns + advance(&cursor_ns, line->bytes_ns, to_ns);
    out.slot_wait_ns = advance(&cursor_ns, line->buffer_ns, to_ns);
    divide_queue(&line->queue_work, read_delay_ns + advance(&cursor_ns, line->dequeued_ns, to_ns),
                 &out);
    const uint64_t wall_ns =
        line->finished_ns > line->dequeued_ns ? line->finished_ns - line->dequeued_ns : 0;
    divide_own(&line->own, wall_ns, advance(&cursor_ns, to_ns, to_ns), &out);
    return out;
}

/* Moves throttled time that decode threads did not see from storage to starved. */
static void starve_reads(uint64_t throttled_ns, fm_wait_causes *out) {
    if (throttled_ns <= out->starved_ns) return;
    const uint64_t unseen_ns = throttled_ns - out->starved_ns;
    const uint64_t moved_ns = unseen_ns < out->storage_ns ? unseen_ns : out->storage_ns;
    out->storage_ns -= moved_ns;
    out->starved_ns += moved_ns;
}

/* When the decode threads were done: the latest time stamp before the caller's own work. */
static uint64_t end_of(const fm_timeline *line) {
    const uint64_t stamps[] = {line->submitted_ns, line->read_begin_ns, line->bytes_ns,
                               line->buffer_ns, line->dequeued_ns};
    uint64_t end_ns = line->finished_ns;
    for (int i = 0; i < 5; i++)
        if (stamps[i] > end_ns) end_ns = stamps[i];
    return end_ns;
}

/* ---- the parts of storage -------------------------------------------------------------------- */

static void add_stages(fm_storage_parts *out, const fm_read_stages *stages, uint64_t total_ns,
                       uint64_t whole_ns) {
    out->storage_connect_ns += share(total_ns, stages->connect_ns, whole_ns);
    out->storage_first_byte_ns += share(total_ns, stages->first_byte_ns, whole_ns);
    out->storage_transfer_ns += share(total_ns, stages->transfer_ns, whole_ns);
    out->storage_retry_ns += share(total_ns, stages->retry_ns, whole_ns);
    out->storage_throttled_ns += share(total_ns, stages->throttled_ns, whole_ns);
}

/* total_ns of the time from the submission of the read to its start, without that for buffers. */
static void add_queue(fm_storage_parts *out, const fm_timeline *line, uint64_t total_ns) {
    if (!total_ns) return;
    const uint64_t unread_ns = line->read_begin_ns - line->submitted_ns;
    const uint64_t whole_ns = unread_ns - read_delay_part(line, unread_ns);
    const uint64_t held_ns = line->read.held_ns < whole_ns ? line->read.held_ns : whole_ns;
    const uint64_t throttled_ns = share(total_ns, held_ns, whole_ns);
    /* If none has ended meanwhile, the read's own stages tell best what those ahead of it did. */
    fm_read_stages others = line->read.queue;
    if (!fm_read_stages_ns(&others)) {
        others = line->read.earlier;
        fm_read_stages_add(&others, &line->read.last);
    }
    out->storage_throttled_ns += throttled_ns;
    add_stages(out, &others, total_ns - throttled_ns, fm_read_stages_ns(&others));
}

/* The latest part of *left_ns, of at most stage_ns. */
static uint64_t take(uint64_t stage_ns, uint64_t *left_ns) {
    const uint64_t taken_ns = stage_ns < *left_ns ? stage_ns : *left_ns;
    *left_ns -= taken_ns;
    return taken_ns;
}

/* The last total_ns of the read. */
static void add_read(fm_storage_parts *out, const fm_timeline *line, uint64_t total_ns) {
    if (!total_ns) return;
    const fm_read_times *const read = &line->read;
    uint64_t left_ns = total_ns;
    out->storage_transfer_ns += take(read->last.transfer_ns, &left_ns);
    out->storage_first_byte_ns += take(read->last.first_byte_ns, &left_ns);
    out->storage_connect_ns += take(read->last.connect_ns, &left_ns);
    /* Time of the read that is in no stage counts as well. */
    const uint64_t last_ns = fm_read_stages_ns(&read->last);
    uint64_t whole_ns = line->bytes_ns - line->read_begin_ns;
    whole_ns = whole_ns > last_ns ? whole_ns - last_ns : 0;
    const uint64_t earlier_ns = fm_read_stages_ns(&read->earlier);
    add_stages(out, &read->earlier, left_ns, whole_ns > earlier_ns ? whole_ns : earlier_ns);
}

/* Scales the parts of whole_ns to a sum of to_ns; what is in no part goes to the last one. */
static fm_storage_parts scale_storage(const fm_storage_parts *whole, uint64_t whole_ns,
                                      uint64_t to_ns) {
    fm_storage_parts out;
    uint64_t sum_ns = 0, given_ns = 0;
#define FM_X(name, meaning)                               \
    sum_ns += whole->name;                                \
    out.name = share(to_ns, sum_ns, whole_ns) - given_ns; \
    given_ns += out.name;
    FM_STORAGE_PART_FIELDS(FM_X)
#undef FM_X
    out.storage_local_ns += to_ns - given_ns;
    return out;
}

fm_storage_parts fm_attribute_storage(const fm_timeline *line, uint64_t since_ns, uint64_t from_ns,
                                      uint64_t to_ns, uint64_t storage_ns) {
    fm_storage_parts parts = {0};
    uint64_t cursor_ns = since_ns < from_ns ? since_ns : from_ns;
    const uint64_t begin_ns = cursor_ns;
    if (!storage_ns) return parts;
    advance(&cursor_ns, line->submitted_ns, to_ns);
    const uint64_t unread_ns = advance(&cursor_ns, line->read_begin_ns, to_ns);
    add_queue(&parts, line, unread_ns - read_delay_part(line, unread_ns));
    add_read(&parts, line, advance(&cursor_ns, line->bytes_ns, to_ns));
    const uint64_t end_ns = end_of(line) < to_ns ? end_of(line) : to_ns;
    return scale_storage(&parts, attribute_native(line, begin_ns, end_ns).storage_ns, storage_ns);
}

/* ---- a wait ---------------------------------------------------------------------------------- */

/* Scales the causes of whole_ns to a sum of to_ns. */
static fm_wait_causes scale(const fm_wait_causes *whole, uint64_t whole_ns, uint64_t to_ns) {
    fm_wait_causes out;
    /* Rounds the running sum, not each cause, so that the causes add up to to_ns. */
    uint64_t sum_ns = 0, given_ns = 0;
#define FM_X(name, meaning)                               \
    sum_ns += whole->name;                                \
    out.name = share(to_ns, sum_ns, whole_ns) - given_ns; \
    given_ns += out.name;
    FM_WAIT_CAUSE_FIELDS(FM_X)
#undef FM_X
    return out;
}

fm_wait_causes fm_attribute_wait(const fm_timeline *line, uint64_t since_ns, uint64_t from_ns,
                                 uint64_t to_ns) {
    fm_wait_causes out = {0};
    if (to_ns <= from_ns) return out;
    if (since_ns > from_ns) since_ns = from_ns;
    uint64_t cursor_ns = from_ns;
    const uint64_t waited_ns = advance(&cursor_ns, end_of(line), to_ns);
    if (waited_ns) {
        fm_wait_causes whole = attribute_native(line, since_ns, cursor_ns);
        starve_reads(line->throttled_ns, &whole);
        out = scale(&whole, cursor_ns - since_ns, waited_ns);
    }
    out.python_ns += advance(&cursor_ns, line->fallback_ns, to_ns);
    out.h2d_ns = advance(&cursor_ns, line->copy_queued_ns, to_ns);
    out.unattributed_ns += advance(&cursor_ns, to_ns, to_ns);
    return out;
}
