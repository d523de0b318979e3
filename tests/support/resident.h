/* Memory of this process that is resident, as the kernel counts it. */
#ifndef FM_TEST_RESIDENT_H
#define FM_TEST_RESIDENT_H

#include <stdio.h>
#include <unistd.h>

static inline size_t resident_bytes(void) {
    size_t n_pages = 0;
    FILE *const in = fopen("/proc/self/statm", "r");
    assert_non_null(in);
    assert_int_equal(fscanf(in, "%*u %zu", &n_pages), 1);
    fclose(in);
    return n_pages * (size_t)sysconf(_SC_PAGESIZE);
}

#endif
