/* CPU quotas: the process's limit, and how long it was throttled. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "../truth/injure.h"
#include "base/cgroup.h"

#define MS 1000000u

static void a_quota_and_its_pauses_are_seen(void **state) {
    (void)state;
    quota own;
    if (!quota_open(&own)) {
        print_message("skipped: no cgroup with a CPU quota can be made: %s\n", strerror(errno));
        skip();
    }
    fm_throttle throttle;
    fm_throttle_open(&throttle, 1);
    const uint32_t n_before = throttle.n; /* of groups above */
    fm_throttle_close(&throttle);
    assert_int_equal(fm_throttle_ns(&throttle), 0);
    assert_true(quota_set(&own, true));
    const double cpus = fm_cgroup_cpus();
    fm_throttle_open(&throttle, 1);
    const uint64_t before_ns = fm_throttle_ns(&throttle);
    const uint64_t kept_ns = burn_cpu(40 * MS);
    const uint64_t stopped_ns = fm_throttle_ns(&throttle) - before_ns;
    quota_set(&own, false);
    const uint32_t n = throttle.n;
    fm_throttle_close(&throttle);
    quota_close(&own);
    assert_true(cpus > 0 && cpus <= 0.4);
    assert_int_equal(n, n_before + 1);
    /* 40 ms of work at 8 ms in each 20: stopped four times, for at most 12 ms. */
    assert_true(stopped_ns >= 10 * MS);
    assert_true(stopped_ns <= kept_ns + MS);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_quota_and_its_pauses_are_seen)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
