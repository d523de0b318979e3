/*
 * Seek points (fm_jpeg_set_seek()): boxes of an image that are decoded one after another, each with
 * the points of those before, have the pixels of libjpeg's full decode, and the same outcome as
 * without points: for any sampling, size and box, for damaged files, and for files that change.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cpu.h"
#include "jpeg_boxes.h"
#include "pipeline/seek_index.h"

static uint8_t others[sizeof(pixels)];

static fm_jpeg_seek *new_seek(void) {
    fm_jpeg_seek *const seek = calloc(1, sizeof(*seek));
    assert_non_null(seek);
    seek->max_bytes = UINT32_MAX;
    return seek;
}

/* As an index hands it out. */
static void forget(fm_jpeg_seek *seek) { seek->head = (fm_jpeg_seek_head){0}; }

/* The next image starts as after a copy to an index and back: nothing else is kept. */
static void keep_points_only(fm_jpeg_seek *seek) {
    memset(seek->begin_bits, 0xAA, sizeof(seek->begin_bits));
    memset(seek->ends + seek->head.n, 0xAA,
           (FM_JPEG_SEEK_MAX - seek->head.n) * sizeof(*seek->ends));
    seek->is_changed = false;
}

/* libjpeg, which decodes all by itself on other CPUs, uses no points. */
static bool are_used(void) {
    fm_cpu_tier tier;
    assert_int_equal(fm_cpu_tier_get(&tier, NULL), FM_OK);
    return FM_HAVE_JPEG_INTERNALS && tier > FM_CPU_SCALAR;
}

static kind random_kind(uint32_t number) {
    kind k = SAMPLINGS[number % N_SAMPLINGS];
    k.width = 1 + (int)random_below(number % 5 ? 300 : 40);
    k.height = 1 + (int)random_below(number % 5 ? 200 : 40);
    k.optimized = random_below(2);
    return k;
}

/* Decodes with and without seek points, which must make no difference. Returns the status. */
static int decode_both(fm_jpeg *seeking, fm_jpeg *plain, const file *f, const fm_box *box) {
    const int status = decode(seeking, f, box, pixels);
    assert_int_equal(status, decode(plain, f, box, others));
    if (!status) assert_memory_equal(pixels, others, 3 * (size_t)box->width * (size_t)box->height);
    return status;
}

static void boxes_equal_the_full_decode(void **state) {
    (void)state;
    fm_jpeg *jpeg = open_decoder();
    fm_jpeg_seek *const seek = new_seek();
    fm_jpeg_set_seek(jpeg, seek);
    uint32_t n_known = 0;
    for (uint32_t i = 0; i < 40 * N_SAMPLINGS; i++) {
        const kind k = random_kind(i);
        const file f = make(&k);
        uint8_t *const full = full_decode(&f);
        forget(seek);
        /* Few bytes for points give long intervals, many give short ones. */
        seek->max_bytes = random_below(2) ? UINT32_MAX : random_below(4000);
        for (int n = 0; n < 20; n++) {
            const fm_box box = random_box(&k);
            const uint32_t n_before = seek->head.n;
            keep_points_only(seek);
            assert_int_equal(decode(jpeg, &f, &box, pixels), FM_OK);
            check_pixels(&k, &box, pixels, full);
            assert_true(seek->head.n >= n_before && seek->head.n <= seek->head.n_all);
            assert_int_equal(seek->is_changed, seek->head.n > n_before);
        }
        n_known += seek->head.n;
        free(full);
        test_guarded_close(&f);
    }
    assert_true(are_used() ? n_known > 2000 : n_known == 0);
    free(seek);
    fm_jpeg_close(&jpeg);
}

/* What was read above damage is used, and the damage is found as without points. */
static void damaged_files_have_the_same_outcome(void **state) {
    (void)state;
    fm_jpeg *seeking = open_decoder(), *plain = open_decoder();
    fm_jpeg_seek *const seek = new_seek();
    fm_jpeg_set_seek(seeking, seek);
    int n_accepted = 0, n_refused = 0;
    for (uint32_t i = 0; i < 30 * N_SAMPLINGS; i++) {
        const kind k = random_kind(i);
        const file f = make(&k);
        injure(&f, 1 + random_below(3));
        forget(seek);
        for (int n = 0; n < 20; n++) {
            const fm_box box = random_box(&k);
            keep_points_only(seek);
            const int status = decode_both(seeking, plain, &f, &box);
            assert_true(status == FM_OK || status == FM_ERR_DAMAGED);
            n_accepted += !status;
            n_refused += status != FM_OK;
        }
        test_guarded_close(&f);
    }
    assert_true(n_accepted > 500 && n_refused > 500);
    free(seek);
    fm_jpeg_close(&seeking);
    fm_jpeg_close(&plain);
}

/* Points of a file that has other bytes now, anywhere: in the header, the data, or as a whole. */
static void files_that_change_are_decoded_anew(void **state) {
    (void)state;
    fm_jpeg *seeking = open_decoder(), *plain = open_decoder();
    fm_jpeg_seek *const seek = new_seek();
    fm_jpeg_set_seek(seeking, seek);
    int n_accepted = 0;
    for (uint32_t i = 0; i < 40 * N_SAMPLINGS; i++) {
        kind k = random_kind(i);
        const file f = make(&k);
        const fm_box all = {0, 0, k.width, k.height};
        forget(seek);
        assert_int_equal(decode_both(seeking, plain, &f, &all), FM_OK);
        keep_points_only(seek);
        const size_t data = data_of(&f);
        file changed = f;
        if (random_below(3) == 0) { /* another image */
            k.width = 1 + (int)random_below(200);
            changed = make(&k);
        } else if (random_below(2)) { /* a quantization step: other pixels, no damage */
            f.bytes[30 + random_below(20)] ^= 3;
        } else {
            f.bytes[data + random_below((uint32_t)(f.n - 2 - data))] ^= (uint8_t)random_below(256);
        }
        for (int n = 0; n < 4; n++) {
            const fm_box box = random_box(&k);
            n_accepted += decode_both(seeking, plain, &changed, &box) == FM_OK;
            keep_points_only(seek);
        }
        if (changed.bytes != f.bytes) test_guarded_close(&changed);
        test_guarded_close(&f);
    }
    assert_true(n_accepted > 100);
    free(seek);
    fm_jpeg_close(&seeking);
    fm_jpeg_close(&plain);
}

/* A gray image whose right and left edges differ most: the code of a row's first DC difference
 * begins with 8 ones, so that rows often begin within a byte FF. */
static file make_with_ff(int width, int height) {
    test_jpeg jpeg;
    test_begin_jpeg(&jpeg, width, height, 1, JCS_GRAYSCALE);
    jpeg_set_quality(&jpeg.codec, 100, TRUE);
    jpeg_start_compress(&jpeg.codec, TRUE);
    JSAMPLE row[128];
    for (int y = 0; y < height; y++) {
        for (int i = 0; i < width; i++) row[i] = (JSAMPLE)random_below(i < width - 8 ? 256 : 56);
        for (int i = 0; i < 8; i++) row[i] = (JSAMPLE)(200 + random_below(56));
        JSAMPROW rows[1] = {row};
        jpeg_write_scanlines(&jpeg.codec, rows, 1);
    }
    test_end_jpeg(&jpeg);
    const file f = test_guarded_open(jpeg.bytes, jpeg.n_bytes);
    free(jpeg.bytes);
    return f;
}

/* The zero that is stuffed behind the byte where the points end becomes a marker's second byte. */
static void files_that_end_within_a_byte(void **state) {
    (void)state;
    fm_jpeg *seeking = open_decoder(), *plain = open_decoder();
    fm_jpeg_seek *const seek = new_seek();
    fm_jpeg_set_seek(seeking, seek);
    int n_found = 0;
    for (int i = 0; i < 2000; i++) {
        const fm_box top = {0, 0, 48, 8 * (1 + (int32_t)random_below(4))};
        const file f = make_with_ff(48, 32);
        forget(seek);
        assert_int_equal(decode_both(seeking, plain, &f, &top), FM_OK);
        const uint64_t bit = seek->begin_bits[seek->head.n];
        uint8_t *const last = f.bytes + data_of(&f) + bit / 8;
        if (seek->head.n > 0 && bit % 8 && last[0] == 0xFF && last[1] == 0) {
            keep_points_only(seek);
            last[1] = 0xD9;
            assert_int_equal(decode_both(seeking, plain, &f, &top), FM_ERR_DAMAGED);
            n_found++;
        }
        test_guarded_close(&f);
    }
    assert_true(are_used() ? n_found > 5 : n_found == 0);
    free(seek);
    fm_jpeg_close(&seeking);
    fm_jpeg_close(&plain);
}

/* Points that do not fit the image, with a right checksum, as in an index that another program
 * wrote, are not used. */
static void forged_points_are_dropped(void **state) {
    (void)state;
    fm_jpeg *seeking = open_decoder(), *plain = open_decoder();
    fm_jpeg_seek *const seek = new_seek();
    fm_jpeg_set_seek(seeking, seek);
    const kind k = {.width = 200, .height = 120, .h = 2, .v = 2, .n_components = 3};
    const file f = make(&k);
    const fm_box all = {0, 0, k.width, k.height};
    for (int i = 0; i < 6; i++) {
        forget(seek);
        assert_int_equal(decode_both(seeking, plain, &f, &all), FM_OK);
        fm_jpeg_seek_head *const head = &seek->head;
        if (i == 0)
            for (uint32_t n = 0; n < head->n; n++) seek->ends[n].n_bits = UINT16_MAX;
        if (i == 1) head->row_intervals = 1u << 31;
        if (i == 2) head->interval_mcus = 1;
        if (i == 3) head->interval_mcus = UINT32_MAX;
        if (i == 4) head->n_all = head->n_all * 2;
        if (i == 5) head->row_intervals = 0;
        assert_int_equal(decode_both(seeking, plain, &f, &all), FM_OK);
        assert_int_equal(seek->n_used, 0);
    }
    test_guarded_close(&f);
    free(seek);
    fm_jpeg_close(&seeking);
    fm_jpeg_close(&plain);
}

/* ---- limits ---------------------------------------------------------------------------------- */

/* Three strips of an image, twice, with and without points, in intervals that are as long as can
 * be. Returns how many points there are. */
static uint32_t decode_strips(const file *f, int32_t width, int32_t height) {
    const fm_limits limits = {.max_file_bytes = 1 << 28, .max_image_pixels = 1 << 28};
    fm_jpeg *seeking = NULL, *plain = NULL;
    assert_int_equal(fm_jpeg_open(&seeking, &limits, NULL, NULL), FM_OK);
    assert_int_equal(fm_jpeg_open(&plain, &limits, NULL, NULL), FM_OK);
    fm_jpeg_seek *const seek = new_seek();
    seek->max_bytes = 0;
    fm_jpeg_set_seek(seeking, seek);
    for (int i = 0; i < 6; i++) {
        const fm_box box = {.left = (i % 3) * (width - 100) / 2,
                            .top = (i % 3) * (height - 16) / 2,
                            .width = 100,
                            .height = 16};
        keep_points_only(seek);
        assert_int_equal(decode_both(seeking, plain, f, &box), FM_OK);
    }
    const uint32_t n = seek->head.n, n_all = seek->head.n_all;
    assert_true(n <= n_all && n_all <= FM_JPEG_SEEK_MAX);
    free(seek);
    fm_jpeg_close(&seeking);
    fm_jpeg_close(&plain);
    return n;
}

static uint32_t strips_of_noise(int width, int height, int n_components, int quality) {
    test_jpeg jpeg;
    test_begin_jpeg(&jpeg, width, height, n_components,
                    n_components == 1 ? JCS_GRAYSCALE : JCS_RGB);
    jpeg_set_quality(&jpeg.codec, quality, TRUE);
    jpeg.codec.comp_info[0].h_samp_factor = jpeg.codec.comp_info[0].v_samp_factor = 1;
    jpeg_start_compress(&jpeg.codec, TRUE);
    JSAMPLE *const row = malloc((size_t)(width * n_components));
    for (int y = 0; y < height; y++) {
        for (int i = 0; i < width * n_components; i++) row[i] = (JSAMPLE)random_below(256);
        JSAMPROW rows[1] = {row};
        jpeg_write_scanlines(&jpeg.codec, rows, 1);
    }
    test_end_jpeg(&jpeg);
    const file f = {.bytes = jpeg.bytes, .n = jpeg.n_bytes};
    const uint32_t n = decode_strips(&f, width, height);
    free(row);
    free(jpeg.bytes);
    return n;
}

static void intervals_of_too_many_bits(void **state) {
    (void)state;
    /* Most blocks have over 400 bits, and an interval about 190 blocks. */
    assert_int_equal(strips_of_noise(3000, 64, 3, 100), 0);
}

static void too_many_intervals(void **state) {
    (void)state;
    fm_jpeg_seek *const seek = new_seek();
    /* 138 MCUs of 3 blocks are 3 intervals, of which 16,384 are the most. */
    fm_jpeg_seek_image image = {.row_mcus = 138, .n_rows = 5462, .mcu_blocks = 3, .n_bytes = 1000};
    assert_false(fm_jpeg_seek_begin(seek, &image));
    assert_int_equal(seek->head.n_all, 0);
    image.n_rows--;
    assert_true(fm_jpeg_seek_begin(seek, &image));
    assert_int_equal(seek->head.n_all, 3 * 5461);
    free(seek);
}

static void wide_images(void **state) {
    (void)state;
    const uint32_t n = strips_of_noise(20000, 64, 3, 10);
    assert_true(are_used() ? n > 300 : n == 0);
}

/* DC differences of +2047 in each block, as no encoder writes them: gray, 40 x 30 blocks. */
static void predictions_that_are_too_large(void **state) {
    (void)state;
    enum { WIDTH = 320, HEIGHT = 240 };
    test_jpeg jpeg;
    test_begin_jpeg(&jpeg, WIDTH, HEIGHT, 1, JCS_GRAYSCALE);
    jpeg_start_compress(&jpeg.codec, TRUE);
    JSAMPLE row[WIDTH] = {0};
    for (int y = 0; y < HEIGHT; y++) {
        JSAMPROW rows[1] = {row};
        jpeg_write_scanlines(&jpeg.codec, rows, 1);
    }
    test_end_jpeg(&jpeg);
    const size_t data = data_of(&(file){.bytes = jpeg.bytes, .n = jpeg.n_bytes});
    uint8_t *const bytes = malloc(data + 2 * 3 * WIDTH * HEIGHT / 64 + 4);
    memcpy(bytes, jpeg.bytes, data);
    size_t n = data;
    uint64_t bits = 0;
    int n_bits = 0;
    for (int i = 0; i < WIDTH * HEIGHT / 64; i++) {
        /* The code for 11 bits, these, and that for the block's end, of the standard tables. */
        bits = bits << 24 | 0x1FEu << 15 | 0x7FFu << 4 | 0xAu;
        for (n_bits += 24; n_bits >= 8; n_bits -= 8) {
            bytes[n++] = (uint8_t)(bits >> (n_bits - 8));
            if (bytes[n - 1] == 0xFF) bytes[n++] = 0;
        }
    }
    memcpy(bytes + n, "\xFF\xD9", 2);
    const file f = {.bytes = bytes, .n = n + 2};
    const uint32_t n_points = decode_strips(&f, WIDTH, HEIGHT);
    /* 16 differences fit into 16 bits, and a row has 40 blocks. */
    assert_int_equal(n_points, 0);
    free(bytes);
    free(jpeg.bytes);
}

/* ---- others ---------------------------------------------------------------------------------- */

/* Restart intervals, several scans and other formats have no points, and take none. */
static void other_images_get_no_points(void **state) {
    (void)state;
    fm_jpeg *seeking = open_decoder(), *plain = open_decoder();
    fm_jpeg_seek *const seek = new_seek();
    fm_jpeg_set_seek(seeking, seek);
    const kind k = {.width = 200, .height = 120, .h = 2, .v = 2, .n_components = 3, .interval = 4};
    const file f = make(&k);
    for (int n = 0; n < 10; n++) {
        const fm_box box = random_box(&k);
        assert_int_equal(decode_both(seeking, plain, &f, &box), FM_OK);
        assert_int_equal(seek->head.n, 0);
        assert_false(seek->is_changed);
    }
    test_guarded_close(&f);
    free(seek);
    fm_jpeg_close(&seeking);
    fm_jpeg_close(&plain);
}

/* ---- the index ------------------------------------------------------------------------------- */

static fm_jpeg_seek *random_points(uint32_t n, uint32_t n_all) {
    fm_jpeg_seek *const seek = new_seek();
    seek->head = (fm_jpeg_seek_head){random_below(1000), random_below(1000), n, n_all, 3, 2};
    for (uint32_t i = 0; i < n; i++) seek->ends[i] = (fm_jpeg_seek_end){(uint16_t)i, {1, -2, 3}};
    seek->is_changed = true;
    return seek;
}

static bool are_same(const fm_jpeg_seek *a, const fm_jpeg_seek *b) {
    return !memcmp(&a->head, &b->head, sizeof(a->head)) &&
           !memcmp(a->ends, b->ends, a->head.n * sizeof(*a->ends));
}

enum { N = 50 };

/* What is put into a new index comes out of it again; of an image that was not put, nothing. */
static void check_index(fm_seek_index *index, uint64_t most_bytes) {
    fm_jpeg_seek *kept[N] = {NULL}, *const got = new_seek();
    for (int i = 0; i < 1000; i++) {
        const uint32_t at = random_below(N), n_all = 1 + random_below(60);
        fm_jpeg_seek *const seek = random_points(random_below(n_all + 1), n_all);
        seek->is_changed = random_below(4) > 0;
        fm_seek_index_put(index, at, seek);
        if (seek->is_changed && seek->head.n > 0) {
            free(kept[at]);
            kept[at] = seek;
        } else {
            free(seek);
        }
        const uint32_t other = random_below(N);
        fm_seek_index_get(index, other, got);
        assert_false(got->is_changed);
        if (kept[other])
            assert_true(are_same(got, kept[other]));
        else
            assert_int_equal(got->head.n, 0);
    }
    uint64_t n_images, n_bytes;
    fm_seek_index_usage(index, &n_images, &n_bytes);
    assert_int_equal(n_images, N);
    assert_true(n_bytes <= most_bytes);
    fm_seek_index_get(index, N, got); /* not one of the dataset's */
    assert_int_equal(got->head.n, 0);
    for (int i = 0; i < N; i++) free(kept[i]);
    free(got);
}

static void the_index_keeps_points(void **state) {
    (void)state;
    fm_seek_index *index = NULL;
    assert_int_equal(fm_seek_index_open(&index, N, 1 << 20, NULL), FM_OK);
    assert_non_null(index);
    check_index(index, 1 << 20);
    fm_seek_index_close(&index);
    assert_null(index);
    fm_seek_index_close(&index);
}

/* ---- the index in a file --------------------------------------------------------------------- */

static char path[64];

static int make_path(void **state) {
    (void)state;
    strcpy(path, "/tmp/feedmill-seek-XXXXXX");
    const int fd = mkstemp(path);
    return fd < 0 || close(fd) || unlink(path);
}

static int remove_path(void **state) {
    (void)state;
    unlink(path);
    return 0;
}

static fm_seek_index *open_file_index(void) {
    fm_seek_index *index = NULL;
    fm_error error;
    if (fm_seek_index_open_file(&index, path, N, &error)) fail_msg("%s", error.message);
    return index;
}

static void put(fm_seek_index *index, uint64_t sample, uint32_t n, uint16_t n_bits) {
    fm_jpeg_seek *const seek = random_points(n, n);
    seek->ends[0].n_bits = n_bits;
    fm_seek_index_put(index, sample, seek);
    free(seek);
}

/* The number of points that are known; *n_bits: of the first one. */
static uint32_t get(fm_seek_index *index, uint64_t sample, uint16_t *n_bits) {
    fm_jpeg_seek *const seek = new_seek();
    fm_seek_index_get(index, sample, seek);
    const uint32_t n = seek->head.n;
    *n_bits = n ? seek->ends[0].n_bits : 0;
    free(seek);
    return n;
}

static void a_file_is_shared_and_stays(void **state) {
    (void)state;
    fm_seek_index *one = open_file_index(), *other = open_file_index();
    uint16_t n_bits;
    put(one, 3, 20, 77);
    assert_int_equal(get(other, 3, &n_bits), 20);
    assert_int_equal(n_bits, 77);
    put(other, 3, 20, 78);
    put(other, 4, 10, 79);
    fm_seek_index_close(&other);
    assert_int_equal(get(one, 3, &n_bits), 20);
    assert_int_equal(n_bits, 78);
    fm_seek_index_close(&one);
    one = open_file_index();
    assert_int_equal(get(one, 4, &n_bits), 10);
    assert_int_equal(n_bits, 79);
    uint64_t n_images, n_bytes;
    fm_seek_index_usage(one, &n_images, &n_bytes);
    assert_int_equal(n_images, 2);
    fm_seek_index_close(&one);
}

static void a_file_keeps_points(void **state) {
    (void)state;
    fm_seek_index *index = open_file_index();
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    assert_true(info.st_blocks * 512 >= info.st_size); /* all of it is reserved */
    fm_jpeg_seek *const seek = random_points(40, 40), *const got = new_seek();
    for (uint32_t i = 0; i < N; i++) {
        fm_seek_index_put(index, i, seek);
        fm_seek_index_get(index, i, got);
        assert_true(are_same(seek, got));
    }
    free(seek);
    free(got);
    fm_seek_index_close(&index);
}

/* How many bytes of a fallocate() get reserved before a signal interrupts it; 0: no signals. */
static off_t bytes_to_signal;
static int n_interrupted;

int __real_fallocate(int fd, int mode, off_t offset, off_t n_bytes);
int __wrap_fallocate(int fd, int mode, off_t offset, off_t n_bytes);

/* As on a tmpfs before Linux 6.8 beside a timer: a call is interrupted if it takes too long, or
 * begins too late. */
int __wrap_fallocate(int fd, int mode, off_t offset, off_t n_bytes) {
    static off_t since_signal;
    since_signal += n_bytes;
    if (!bytes_to_signal || since_signal < bytes_to_signal)
        return __real_fallocate(fd, mode, offset, n_bytes);
    since_signal = 0;
    n_interrupted++;
    errno = EINTR;
    return -1;
}

static void signals_while_a_file_is_reserved(void **state) {
    (void)state;
    enum { N_MANY = 100000 };
    fm_seek_index *index = NULL;
    fm_error error;
    bytes_to_signal = 40 << 20;
    const int status = fm_seek_index_open_file(&index, path, N_MANY, &error);
    bytes_to_signal = 0;
    if (status) fail_msg("%s", error.message);
    assert_true(n_interrupted > 0);
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_true(info.st_size > 50 << 20 && info.st_blocks * 512 >= info.st_size);
    fm_seek_index_close(&index);
}

/* Whatever is in the file, what comes out is nothing, or what was put there. */
static void other_bytes_in_the_file(void **state) {
    (void)state;
    fm_seek_index *index = open_file_index();
    for (uint32_t i = 0; i < N; i++) put(index, i, 20, (uint16_t)i);
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    const size_t n = (size_t)info.st_size;
    const int fd = open(path, O_RDWR);
    uint8_t *const bytes = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(bytes != MAP_FAILED);
    close(fd);
    uint32_t n_lost = 0;
    for (int round = 0; round < 3000; round++) {
        const size_t at = 24 + random_below((uint32_t)n - 24);
        const size_t n_others = round % 3 ? 1 : random_below(64);
        for (size_t i = at; i < at + n_others && i < n; i++) bytes[i] = (uint8_t)random_below(256);
        const uint32_t sample = random_below(N);
        uint16_t n_bits;
        const uint32_t n_known = get(index, sample, &n_bits);
        assert_true(n_known == 0 || (n_known == 20 && n_bits == sample));
        n_lost += n_known == 0;
        if (random_below(2)) put(index, sample, 20, (uint16_t)sample);
    }
    assert_true(n_lost > 100);
    munmap(bytes, n);
    fm_seek_index_close(&index);
}

static void refuse(uint64_t n_samples, int wanted, const char *part) {
    fm_seek_index *index = NULL;
    fm_error error = {.message = ""};
    assert_int_equal(fm_seek_index_open_file(&index, path, n_samples, &error), wanted);
    assert_null(index);
    if (!strstr(error.message, part)) fail_msg("'%s' lacks '%s'", error.message, part);
}

static void files_that_are_no_index(void **state) {
    (void)state;
    fm_seek_index *index = open_file_index();
    fm_seek_index_close(&index);
    refuse(N + 1, FM_ERR_ARGUMENT, "of a dataset of 50 samples, not of 51");
    assert_int_equal(truncate(path, 8000), 0);
    refuse(N, FM_ERR_ARGUMENT, "50 samples");
    FILE *const out = fopen(path, "w");
    fputs("something else, of a length that is more than that of a header of the index", out);
    fclose(out);
    refuse(N, FM_ERR_ARGUMENT, "is no index of seek points");
    unlink(path);
    strcat(path, "/none");
    refuse(N, FM_ERR_READ, "No such file");
}

static void a_maker_that_was_killed(void **state) {
    (void)state;
    fm_seek_index *index = open_file_index();
    fm_seek_index_close(&index);
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(truncate(path, 0), 0); /* as after fallocate(): zeros of that size */
    assert_int_equal(truncate(path, info.st_size), 0);
    index = open_file_index();
    uint16_t n_bits;
    put(index, 1, 20, 5);
    assert_int_equal(get(index, 1, &n_bits), 20);
    fm_seek_index_close(&index);
}

/* Processes that change the same points at the same time: what comes out was put by one of them. */
static void processes_at_the_same_time(void **state) {
    (void)state;
    enum { N_PROCESSES = 3, N_ROUNDS = 4000 };
    for (uint16_t number = 0; number < N_PROCESSES; number++) {
        if (fork()) continue;
        fm_seek_index *index = open_file_index();
        for (int round = 0; round < N_ROUNDS; round++) {
            uint16_t n_bits;
            const uint32_t n = 10 + number, sample = random_below(4);
            put(index, sample, n, (uint16_t)(n * 100));
            const uint32_t found = get(index, sample, &n_bits);
            if (found && n_bits != found * 100) _exit(1);
        }
        _exit(0);
    }
    for (int i = 0; i < N_PROCESSES; i++) {
        int status;
        assert_true(wait(&status) > 0);
        assert_int_equal(status, 0);
    }
}

static void a_full_index_keeps_what_it_has(void **state) {
    (void)state;
    fm_seek_index *index = NULL;
    assert_int_equal(fm_seek_index_open(&index, 20, 16384, NULL), FM_OK);
    assert_non_null(index);
    fm_jpeg_seek *const seek = random_points(200, 200), *const got = new_seek();
    for (uint32_t i = 0; i < 20; i++) fm_seek_index_put(index, i, seek);
    uint64_t n_images, n_bytes;
    fm_seek_index_usage(index, &n_images, &n_bytes);
    assert_true(n_images > 5 && n_images < 20 && n_bytes <= 16384);
    for (uint32_t i = 0; i < 20; i++) {
        fm_seek_index_get(index, i, got);
        assert_int_equal(got->head.n, i < n_images ? 200 : 0);
    }
    free(seek);
    free(got);
    fm_seek_index_close(&index);
    assert_int_equal(fm_seek_index_open(&index, 1000, 16384, NULL), FM_OK);
    assert_null(index); /* too little for so many */
    assert_int_equal(fm_seek_index_open(&index, 1000, 0, NULL), FM_OK);
    assert_null(index);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(boxes_equal_the_full_decode),
        cmocka_unit_test(damaged_files_have_the_same_outcome),
        cmocka_unit_test(files_that_change_are_decoded_anew),
        cmocka_unit_test(files_that_end_within_a_byte),
        cmocka_unit_test(forged_points_are_dropped),
        cmocka_unit_test(intervals_of_too_many_bits),
        cmocka_unit_test(too_many_intervals),
        cmocka_unit_test(wide_images),
        cmocka_unit_test(predictions_that_are_too_large),
        cmocka_unit_test(other_images_get_no_points),
        cmocka_unit_test(the_index_keeps_points),
        cmocka_unit_test(a_full_index_keeps_what_it_has),
        cmocka_unit_test_setup_teardown(a_file_keeps_points, make_path, remove_path),
        cmocka_unit_test_setup_teardown(signals_while_a_file_is_reserved, make_path, remove_path),
        cmocka_unit_test_setup_teardown(a_file_is_shared_and_stays, make_path, remove_path),
        cmocka_unit_test_setup_teardown(other_bytes_in_the_file, make_path, remove_path),
        cmocka_unit_test_setup_teardown(files_that_are_no_index, make_path, remove_path),
        cmocka_unit_test_setup_teardown(a_maker_that_was_killed, make_path, remove_path),
        cmocka_unit_test_setup_teardown(processes_at_the_same_time, make_path, remove_path),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
