#include "decode/jpeg_mem.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* jpeglib.h uses FILE and size_t without including their headers. */
#include <jerror.h>
#include <jpeglib.h>

/* What a baseline image with rows of 8,192 pixels needs in common samplings. */
#define RESERVED_BYTES ((size_t)1 << 20)
/* Limit of rounding up: enough for all but the widest images with the most coefficients. */
#define MAX_BYTES (FM_JPEG_MEM_COEFFICIENT_BYTES + 4 * RESERVED_BYTES)
/* What libjpeg keeps between images: all tables that a file can define. */
#define TABLES_BYTES                                        \
    (NUM_QUANT_TBLS * fm_mem_round_up(sizeof(JQUANT_TBL)) + \
     2 * NUM_HUFF_TBLS * fm_mem_round_up(sizeof(JHUFF_TBL)))
/* Minimum of an image's further blocks. */
#define MORE_BYTES ((size_t)64 << 10)
/* libjpeg-turbo's own limit for one object; more can only come from damaged sizes. */
#define MAX_OBJECT_BYTES ((size_t)1000000000)

/* A block of memory. Its objects begin FM_MEM_ALIGN bytes after its start. */
typedef struct block {
    struct block *next;
    size_t n_bytes, n_used; /* both without the header */
} block;
_Static_assert(sizeof(block) <= FM_MEM_ALIGN, "the header fits before the first object");

/* libjpeg's type for the coefficients of one component, here always completely in memory. */
struct jvirt_barray_control {
    JBLOCKARRAY rows; /* NULL before realize_virt_arrays() */
    JDIMENSION n_rows, row_blocks, max_access;
    JDIMENSION n_defined; /* rows that have been accessed for writing */
    boolean pre_zero;
    struct jvirt_barray_control *next;
};

typedef struct manager {
    struct jpeg_memory_mgr methods; /* first: codec->mem points to it */
    /* libjpeg's own, which holds what was allocated before fm_jpeg_mem_install(). */
    struct jpeg_memory_mgr *standard;
    fm_mem_counter *counter;
    block *pools[JPOOL_NUMPOOLS]; /* newest block first; new objects come from that one only */
    size_t n_touched; /* bytes of the kept block that images have written since it was trimmed */
    int n_small;      /* images in a row that were not large, at most FM_JPEG_MEM_PATIENCE */
    jvirt_barray_ptr arrays; /* of this image */
} manager;

/* ---- blocks ---------------------------------------------------------------------------------- */

/* NULL when out of memory. */
static block *add_block(manager *memory, int pool, size_t n_bytes) {
    block *const added = fm_mem_alloc(memory->counter, FM_MEM_ALIGN + n_bytes, 1);
    if (!added) return NULL;
    *added = (block){.next = memory->pools[pool], .n_bytes = n_bytes};
    memory->pools[pool] = added;
    return added;
}

static void free_blocks(manager *memory, int pool) {
    for (block *first; (first = memory->pools[pool]);) {
        memory->pools[pool] = first->next;
        fm_mem_free(first);
    }
}

/* Returns the kept block's pages to the kernel, from n_kept bytes on. */
static void trim_beyond(manager *memory, size_t n_kept) {
    fm_mem_trim(memory->pools[JPOOL_IMAGE], FM_MEM_ALIGN + n_kept,
                FM_MEM_ALIGN + memory->n_touched);
    memory->n_touched = n_kept;
}

/* Before a further block is added: returns the pages of the kept block that this image does not
 * use, so that they do not add to its peak. */
static void leave_block(manager *memory) {
    const block *const kept = memory->pools[JPOOL_IMAGE];
    if (kept && !kept->next && memory->n_touched > FM_JPEG_MEM_KEPT_BYTES &&
        memory->n_touched > kept->n_used)
        trim_beyond(memory, kept->n_used);
}

/* Leaves by error_exit(), of which the compiler does not know that it never returns. */
_Noreturn static void fail(j_common_ptr codec, int code, int parameter) {
    ERREXIT1(codec, code, parameter);
    abort();
}

/* Allocates an object. Never returns NULL. Rounding up gives the alignment and the padding that
 * libjpeg-turbo's SIMD code expects (32 bytes, and rows in multiples of 64). */
static void *alloc_object(j_common_ptr codec, int pool, size_t n, size_t size) {
    manager *const memory = (manager *)codec->mem;
    if (pool < 0 || pool >= JPOOL_NUMPOOLS) fail(codec, JERR_BAD_POOL_ID, pool);
    size_t n_bytes;
    if (__builtin_mul_overflow(n, size, &n_bytes) || n_bytes > MAX_OBJECT_BYTES)
        fail(codec, JERR_OUT_OF_MEMORY, 1);
    n_bytes = fm_mem_round_up(n_bytes);
    block *from = memory->pools[pool];
    if (!from || from->n_bytes - from->n_used < n_bytes) {
        if (pool == JPOOL_IMAGE) leave_block(memory);
        from = add_block(memory, pool, n_bytes > MORE_BYTES ? n_bytes : MORE_BYTES);
    }
    if (!from) fail(codec, JERR_OUT_OF_MEMORY, 2);
    uint8_t *const object = (uint8_t *)from + FM_MEM_ALIGN + from->n_used;
    from->n_used += n_bytes;
    return object;
}

/*
 * Replaces several blocks by one that would have held them all; a power of two below MAX_BYTES, so
 * that this happens only a few times in a decoder's life. If memory is short, the next image starts
 * without a block. The pages are returned to the kernel first, as the C library keeps freed memory,
 * up to some 64 MiB per thread.
 */
static void merge_blocks(manager *memory, size_t n_used) {
    size_t n_bytes = RESERVED_BYTES;
    while (n_bytes < n_used) n_bytes *= 2;
    if (n_bytes > MAX_BYTES) n_bytes = n_used > MAX_BYTES ? n_used : MAX_BYTES;
    for (block *each = memory->pools[JPOOL_IMAGE]; each; each = each->next)
        fm_mem_trim(each, FM_MEM_ALIGN, FM_MEM_ALIGN + each->n_used);
    free_blocks(memory, JPOOL_IMAGE);
    /* The C library may return pages that are already in memory. */
    memory->n_touched = add_block(memory, JPOOL_IMAGE, n_bytes) ? n_used : 0;
}

/* Returns the pages of a large image if no image has needed them for a while. */
static void trim_block(manager *memory, size_t n_used) {
    if (n_used > memory->n_touched) memory->n_touched = n_used;
    if (n_used > FM_JPEG_MEM_KEPT_BYTES)
        memory->n_small = 0;
    else if (memory->n_small < FM_JPEG_MEM_PATIENCE)
        memory->n_small++;
    if (memory->n_touched > FM_JPEG_MEM_KEPT_BYTES && memory->n_small == FM_JPEG_MEM_PATIENCE)
        trim_beyond(memory, FM_JPEG_MEM_KEPT_BYTES);
}

/* Frees all objects of an image and keeps the memory for the next one. */
static void reset_image_pool(manager *memory) {
    block *const newest = memory->pools[JPOOL_IMAGE];
    if (!newest) return;
    size_t n_used = 0;
    for (const block *each = newest; each; each = each->next) n_used += each->n_used;
    if (newest->next) {
        merge_blocks(memory, n_used);
        return;
    }
    newest->n_used = 0;
    trim_block(memory, n_used);
}

bool fm_jpeg_mem_is_large(const struct jpeg_decompress_struct *codec) {
    return ((const manager *)codec->mem)->n_touched > FM_JPEG_MEM_KEPT_BYTES;
}

void fm_jpeg_mem_trim(struct jpeg_decompress_struct *codec) {
    if (fm_jpeg_mem_is_large(codec)) trim_beyond((manager *)codec->mem, FM_JPEG_MEM_KEPT_BYTES);
}

/* ---- libjpeg's calls: objects and arrays ----------------------------------------------------- */

static void *on_alloc(j_common_ptr codec, int pool, size_t n_bytes) {
    return alloc_object(codec, pool, n_bytes, 1);
}

static JSAMPARRAY on_alloc_sarray(j_common_ptr codec, int pool, JDIMENSION row_samples,
                                  JDIMENSION n_rows) {
    /* From libjpeg-turbo 3 on, such samples have two bytes. jpeg_scan.c has refused these files. */
    const int n_bits = ((j_decompress_ptr)codec)->data_precision;
    if (n_bits > 8) fail(codec, JERR_BAD_PRECISION, n_bits);
    const size_t row_bytes = fm_mem_round_up(row_samples);
    const JSAMPARRAY rows = alloc_object(codec, pool, n_rows, sizeof(*rows));
    JSAMPROW const samples = alloc_object(codec, pool, n_rows, row_bytes);
    for (JDIMENSION i = 0; i < n_rows; i++) rows[i] = samples + i * row_bytes;
    return rows;
}

static JBLOCKARRAY on_alloc_barray(j_common_ptr codec, int pool, JDIMENSION row_blocks,
                                   JDIMENSION n_rows) {
    const JBLOCKARRAY rows = alloc_object(codec, pool, n_rows, sizeof(*rows));
    JBLOCKROW const blocks = alloc_object(codec, pool, n_rows, row_blocks * sizeof(*blocks));
    for (JDIMENSION i = 0; i < n_rows; i++) rows[i] = blocks + (size_t)i * row_blocks;
    return rows;
}

/* ---- libjpeg's calls: virtual arrays --------------------------------------------------------- */

/* Only lossless files and palettes, which are not decoded here, need virtual arrays of samples. */
static jvirt_sarray_ptr on_request_sarray(j_common_ptr codec, int pool, boolean pre_zero,
                                          JDIMENSION row_samples, JDIMENSION n_rows,
                                          JDIMENSION max_access) {
    (void)pool, (void)pre_zero, (void)row_samples, (void)n_rows, (void)max_access;
    ERREXIT(codec, JERR_NOT_COMPILED);
    return NULL;
}

static JSAMPARRAY on_access_sarray(j_common_ptr codec, jvirt_sarray_ptr array, JDIMENSION start,
                                   JDIMENSION n_rows, boolean writable) {
    (void)array, (void)start, (void)n_rows, (void)writable;
    ERREXIT(codec, JERR_NOT_COMPILED);
    return NULL;
}

static jvirt_barray_ptr on_request_barray(j_common_ptr codec, int pool, boolean pre_zero,
                                          JDIMENSION row_blocks, JDIMENSION n_rows,
                                          JDIMENSION max_access) {
    manager *const memory = (manager *)codec->mem;
    if (pool != JPOOL_IMAGE) fail(codec, JERR_BAD_POOL_ID, pool);
    const jvirt_barray_ptr array = alloc_object(codec, pool, 1, sizeof(*array));
    *array = (struct jvirt_barray_control){.n_rows = n_rows,
                                           .row_blocks = row_blocks,
                                           .max_access = max_access,
                                           .pre_zero = pre_zero,
                                           .next = memory->arrays};
    memory->arrays = array;
    return array;
}

static void on_realize(j_common_ptr codec) {
    const manager *const memory = (manager *)codec->mem;
    for (jvirt_barray_ptr array = memory->arrays; array; array = array->next)
        if (!array->rows)
            array->rows = on_alloc_barray(codec, JPOOL_IMAGE, array->row_blocks, array->n_rows);
}

/* Rows are cleared when they are first accessed, so that they are in the cache for the first scan.
 */
static JBLOCKARRAY on_access_barray(j_common_ptr codec, jvirt_barray_ptr array, JDIMENSION start,
                                    JDIMENSION n_rows, boolean writable) {
    if (!array->rows || n_rows > array->max_access || n_rows > array->n_rows ||
        start > array->n_rows - n_rows)
        ERREXIT(codec, JERR_BAD_VIRTUAL_ACCESS);
    const JDIMENSION end = start + n_rows;
    if (array->n_defined < end) {
        const bool skips = writable && array->n_defined < start;
        const bool reads_nothing = !writable && !array->pre_zero;
        if (skips || reads_nothing) ERREXIT(codec, JERR_BAD_VIRTUAL_ACCESS);
        const JDIMENSION from = array->n_defined > start ? array->n_defined : start;
        if (array->pre_zero)
            memset(array->rows[from], 0,
                   (size_t)(end - from) * array->row_blocks * sizeof(*array->rows[0]));
        if (writable) array->n_defined = end;
    }
    return array->rows + start;
}

/* ---- libjpeg's calls: the end ---------------------------------------------------------------- */

static void on_free_pool(j_common_ptr codec, int pool) {
    manager *const memory = (manager *)codec->mem;
    if (pool == JPOOL_IMAGE) {
        memory->arrays = NULL;
        reset_image_pool(memory);
    } else if (pool == JPOOL_PERMANENT) {
        free_blocks(memory, pool);
    } else {
        fail(codec, JERR_BAD_POOL_ID, pool);
    }
}

static void free_manager(manager *memory) {
    for (int pool = 0; pool < JPOOL_NUMPOOLS; pool++) free_blocks(memory, pool);
    fm_mem_free(memory);
}

static void on_self_destruct(j_common_ptr codec) {
    manager *const memory = (manager *)codec->mem;
    codec->mem = memory->standard;
    free_manager(memory);
    codec->mem->self_destruct(codec);
}

int fm_jpeg_mem_install(struct jpeg_decompress_struct *codec, fm_mem_counter *counter,
                        fm_error *error) {
    manager *const memory = fm_mem_zalloc(counter, 1, sizeof(*memory));
    if (!memory) return fm_error_set(error, FM_ERR_NOMEM, "no memory for a JPEG decoder");
    memory->counter = counter;
    if (!add_block(memory, JPOOL_PERMANENT, TABLES_BYTES) ||
        !add_block(memory, JPOOL_IMAGE, RESERVED_BYTES)) {
        free_manager(memory);
        return fm_error_set(error, FM_ERR_NOMEM, "no memory for the rows of a JPEG decoder");
    }
    memory->standard = codec->mem;
    memory->methods = *codec->mem; /* keeps its limits */
    memory->methods.alloc_small = on_alloc;
    memory->methods.alloc_large = on_alloc;
    memory->methods.alloc_sarray = on_alloc_sarray;
    memory->methods.alloc_barray = on_alloc_barray;
    memory->methods.request_virt_sarray = on_request_sarray;
    memory->methods.request_virt_barray = on_request_barray;
    memory->methods.realize_virt_arrays = on_realize;
    memory->methods.access_virt_sarray = on_access_sarray;
    memory->methods.access_virt_barray = on_access_barray;
    memory->methods.free_pool = on_free_pool;
    memory->methods.self_destruct = on_self_destruct;
    codec->mem = &memory->methods;
    return FM_OK;
}
