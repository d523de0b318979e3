#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "read/arena.h"

static fm_arena open_arena(uint64_t bytes) {
    fm_arena arena;
    assert_int_equal(fm_arena_init(&arena, bytes, NULL), FM_OK);
    return arena;
}

/* Checks that the lists are consistent, and that no two free blocks are adjacent. */
static void check(const fm_arena *arena) {
    uint32_t index = 0, n_used = 0, free_index = arena->first_free;
    uint64_t offset = 0, used_bytes = 0;
    /* Node 0 always begins the block: it is only ever cut at its end. */
    for (bool last_free = false; index != UINT32_MAX; index = arena->nodes[index].next) {
        const fm_arena_node *const node = &arena->nodes[index];
        assert_int_equal(node->offset, offset);
        assert_true(node->bytes > 0 && node->bytes % 64 == 0);
        if (node->next != UINT32_MAX) assert_int_equal(arena->nodes[node->next].previous, index);
        if (node->free) {
            assert_false(last_free);
            assert_int_equal(free_index, index);
            free_index = node->free_next;
        } else {
            n_used++;
            used_bytes += node->bytes;
        }
        last_free = node->free;
        offset += node->bytes;
    }
    assert_int_equal(offset, arena->block_bytes);
    assert_int_equal(free_index, UINT32_MAX);
    assert_int_equal(n_used, arena->n_used);
    assert_int_equal(used_bytes, arena->used_bytes);
}

static void buffers_are_aligned_and_padded(void **state) {
    (void)state;
    fm_arena arena = open_arena(1 << 20);
    static const uint64_t sizes[] = {1, 63, 64, 65, 1000, 4096, 100001};
    uint8_t *last_end = arena.block;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        uint64_t capacity = 0;
        uint8_t *const buffer = fm_arena_alloc(&arena, sizes[i], &capacity);
        assert_non_null(buffer);
        assert_true(fm_arena_owns(&arena, buffer));
        assert_int_equal((uintptr_t)buffer % 64, 0);
        assert_true(capacity >= sizes[i]);
        assert_true(capacity < sizes[i] + 64);
        assert_true(buffer >= last_end);
        last_end = buffer + capacity;
        assert_true(last_end <= arena.block + arena.block_bytes);
        memset(buffer, 0xFF, capacity);
        check(&arena);
    }
    uint8_t other;
    assert_false(fm_arena_owns(&arena, &other));
    assert_false(fm_arena_owns(&arena, arena.block + arena.block_bytes));
    fm_arena_fini(&arena);
    fm_arena_fini(&arena);
}

static void lowest_address_first(void **state) {
    (void)state;
    fm_arena arena = open_arena(1 << 20);
    uint64_t capacity;
    uint8_t *const a = fm_arena_alloc(&arena, 10000, &capacity);
    uint8_t *const b = fm_arena_alloc(&arena, 10000, &capacity);
    uint8_t *const c = fm_arena_alloc(&arena, 10000, &capacity);
    assert_true(a < b && b < c);
    fm_arena_free(&arena, c);
    fm_arena_free(&arena, a);
    assert_ptr_equal(fm_arena_alloc(&arena, 9000, &capacity), a);
    assert_ptr_equal(fm_arena_alloc(&arena, 20000, &capacity), c);
    check(&arena);
    fm_arena_fini(&arena);
}

static void all_of_it_can_be_had(void **state) {
    (void)state;
    fm_arena arena = open_arena(1 << 20);
    const uint64_t limit = fm_arena_limit(&arena);
    uint64_t capacity;
    for (int i = 0; i < 3; i++) {
        uint8_t *const all = fm_arena_alloc(&arena, limit, &capacity);
        assert_non_null(all);
        assert_int_equal(capacity, limit);
        assert_null(fm_arena_alloc(&arena, 1, &capacity));
        fm_arena_free(&arena, all);
        check(&arena);
    }
    assert_null(fm_arena_alloc(&arena, limit + 1, &capacity));
    assert_null(fm_arena_alloc(&arena, UINT64_MAX, &capacity));
    fm_arena_fini(&arena);
}

static void growing_and_trimming_stay_in_place(void **state) {
    (void)state;
    fm_arena arena = open_arena(1 << 20);
    uint64_t capacity;
    uint8_t *const a = fm_arena_alloc(&arena, 10000, &capacity);
    assert_true(fm_arena_grow(&arena, a, 50000, &capacity));
    assert_true(capacity >= 50000);
    check(&arena);
    uint8_t *const b = fm_arena_alloc(&arena, 10000, &capacity);
    assert_false(fm_arena_grow(&arena, a, 60000, &capacity));
    assert_false(fm_arena_grow(&arena, b, 2 << 20, &capacity));
    fm_arena_trim(&arena, a, 20000);
    check(&arena);
    uint8_t *const c = fm_arena_alloc(&arena, 25000, &capacity);
    assert_true(c > a && c < b);
    fm_arena_trim(&arena, c, 24900); /* the remainder is too small to be freed */
    fm_arena_free(&arena, b);
    fm_arena_free(&arena, a);
    fm_arena_free(&arena, c);
    check(&arena);
    assert_int_equal(arena.n_used, 0);
    assert_int_equal(arena.used_bytes, 0);
    fm_arena_fini(&arena);
}

/* More small buffers than nodes: refused, nothing lost. */
static void nodes_run_out(void **state) {
    (void)state;
    fm_arena arena = open_arena(4 << 20);
    uint8_t *buffers[4096];
    uint64_t capacity;
    uint32_t n = 0;
    while (n < 4096 && (buffers[n] = fm_arena_alloc(&arena, 16, &capacity))) n++;
    assert_true(n >= 64 && n < 4096);
    check(&arena);
    while (n > 0) fm_arena_free(&arena, buffers[--n]);
    check(&arena);
    assert_int_equal(arena.nodes[0].bytes, arena.block_bytes);
    fm_arena_fini(&arena);
}

typedef struct piece {
    uint8_t *buffer;
    uint64_t bytes;
    uint8_t mark;
} piece;

static void check_piece(const piece *p) {
    for (uint64_t i = 0; i < p->bytes; i += 61) assert_int_equal(p->buffer[i], p->mark);
}

/* Random calls against a simple model: no buffer's bytes are ever touched by another call. */
static void random_calls_keep_the_bytes(void **state) {
    (void)state;
    const char *const given = getenv("FM_TEST_SEED");
    unsigned seed = given ? (unsigned)strtoul(given, NULL, 10) : 20240611u;
    print_message("seed %u\n", seed);
    fm_arena arena = open_arena(1 << 20);
    piece pieces[64] = {0};
    for (int i = 0; i < 20000; i++) {
        piece *const p = &pieces[rand_r(&seed) % 64];
        const uint64_t bytes = 1u + (uint64_t)rand_r(&seed) % (1u << rand_r(&seed) % 18);
        uint64_t capacity;
        if (!p->buffer) {
            p->buffer = fm_arena_alloc(&arena, bytes, &capacity);
            if (!p->buffer) continue;
            assert_true(capacity >= bytes);
            p->bytes = bytes;
            p->mark = (uint8_t)rand_r(&seed);
            memset(p->buffer, p->mark, bytes);
        } else if (rand_r(&seed) % 3) {
            check_piece(p);
            fm_arena_free(&arena, p->buffer);
            p->buffer = NULL;
        } else if (bytes > p->bytes) {
            if (!fm_arena_grow(&arena, p->buffer, bytes, &capacity)) continue;
            assert_true(capacity >= bytes);
            check_piece(p);
            p->bytes = bytes;
            memset(p->buffer, p->mark, bytes);
        } else {
            fm_arena_trim(&arena, p->buffer, bytes);
            p->bytes = bytes;
            check_piece(p);
        }
        if (i % 16 == 0) check(&arena);
    }
    for (int i = 0; i < 64; i++)
        if (pieces[i].buffer) fm_arena_free(&arena, pieces[i].buffer);
    check(&arena);
    assert_int_equal(arena.nodes[0].bytes, arena.block_bytes);
    fm_arena_fini(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buffers_are_aligned_and_padded),
        cmocka_unit_test(lowest_address_first),
        cmocka_unit_test(all_of_it_can_be_had),
        cmocka_unit_test(growing_and_trimming_stay_in_place),
        cmocka_unit_test(nodes_run_out),
        cmocka_unit_test(random_calls_keep_the_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
