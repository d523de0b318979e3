/*
 * Times the transform's kernels, the resize, and the whole transform of a crop of mean size, for
 * each tier that the CPU has: nanoseconds per output pixel and the ratio to scalar, as a Markdown
 * table. Tiers take turns, and the fastest of the rounds counts, so that ratios hold on a busy
 * machine, too. Each output is compared with the scalar one before it is timed; a difference ends
 * the program with 1.
 *
 *     bench_kernels [ROUNDS]      (default 101)
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "transform/kernels.h"
#include "transform/resample.h"
#include "transform/store.h"

/* The mean crop of RandomResizedCrop(224) on photographs of ImageNet, and its result. */
enum { IN_WIDTH = 276, IN_HEIGHT = 269, OUT = 224, BLOCK = 16 };
/* As far apart as the transform's rows. */
enum { IN_STRIDE = 896, OUT_STRIDE = 736 };
enum { N_TIERS = FM_CPU_N_TIERS, MOST_ROUNDS = 10000, RUNS = 2 };
enum { N_DTYPES = FM_BFLOAT16 + 1, N_LAYOUTS = 2 };
enum { N_STORES = (FM_BFLOAT16 - FM_UINT8 + 1) * N_LAYOUTS };

static struct {
    fm_kernels kernels[N_TIERS];
    fm_coeffs columns[N_TIERS], rows[N_TIERS], rows_clipped[N_TIERS];
    fm_plan plans[N_DTYPES][N_LAYOUTS];
    fm_store stores[N_TIERS][N_DTYPES][N_LAYOUTS];
    fm_resample *resamples[N_TIERS][N_DTYPES][N_LAYOUTS];
    uint8_t image[IN_HEIGHT * IN_STRIDE], wide[IN_HEIGHT * OUT_STRIDE], small[OUT * OUT_STRIDE];
    const uint8_t *image_rows[IN_HEIGHT], *wide_rows[IN_HEIGHT];
    _Alignas(64) float out[3 * OUT * OUT];
} bench;

static void check(int status, const fm_error *error) {
    if (!status) return;
    fprintf(stderr, "bench_kernels: %s\n", error->message);
    exit(1);
}

/* ---- timed functions: each processes a whole crop -------------------------------------------- */

static void horizontal(int tier) {
    for (int32_t row = 0; row < IN_HEIGHT; row += BLOCK) {
        const int32_t n = IN_HEIGHT - row < BLOCK ? IN_HEIGHT - row : BLOCK;
        uint8_t *out[BLOCK];
        for (int32_t i = 0; i < n; i++) out[i] = bench.wide + (row + i) * OUT_STRIDE;
        bench.kernels[tier].horizontal(out, bench.image_rows + row, n, &bench.columns[tier]);
    }
}

static void vertical(int tier) {
    const fm_coeffs *const rows = &bench.rows[tier];
    for (int32_t i = 0; i < OUT; i++)
        bench.kernels[tier].vertical(bench.small + i * OUT_STRIDE, bench.wide_rows + rows->first[i],
                                     rows, i, 3 * OUT);
}

/* The kernels' tables, made from the weights for each sample. */
static void prepare(int tier) {
    const fm_kernels *const kernels = &bench.kernels[tier];
    fm_error error;
    check(kernels->prepare_columns(&bench.columns[tier], NULL, &error), &error);
    check(kernels->prepare_rows(&bench.rows[tier], NULL, &error), &error);
}

static void resize(int tier) {
    prepare(tier);
    horizontal(tier);
    vertical(tier);
}

/* The same where sums must be clipped, as those of bicubic and lanczos must: same weights. */
static void resize_clipped(int tier) {
    const fm_coeffs kept = bench.rows[tier];
    bench.rows[tier] = bench.rows_clipped[tier];
    bench.columns[tier].clips = true;
    resize(tier);
    bench.columns[tier].clips = false;
    bench.rows_clipped[tier] = bench.rows[tier];
    bench.rows[tier] = kept;
}

static void mirror(int tier) {
    for (int32_t i = 0; i < OUT; i++)
        bench.kernels[tier].mirror(bench.small + i * OUT_STRIDE, bench.wide + i * OUT_STRIDE, OUT);
}

static void store(int tier, fm_dtype dtype, fm_layout layout) {
    const fm_store *const store = &bench.stores[tier][dtype][layout];
    uint8_t *const out = (uint8_t *)bench.out;
    for (size_t i = 0; i < OUT; i++)
        store->row(store, out + i * OUT * store->px_bytes, bench.wide_rows[i], OUT);
}

static void store_u8(int tier) { store(tier, FM_UINT8, FM_NCHW); }
static void store_u8_last(int tier) { store(tier, FM_UINT8, FM_NHWC); }
static void store_f32(int tier) { store(tier, FM_FLOAT32, FM_NCHW); }
static void store_f32_last(int tier) { store(tier, FM_FLOAT32, FM_NHWC); }
static void store_f16(int tier) { store(tier, FM_FLOAT16, FM_NCHW); }
static void store_f16_last(int tier) { store(tier, FM_FLOAT16, FM_NHWC); }
static void store_bf16(int tier) { store(tier, FM_BFLOAT16, FM_NCHW); }
static void store_bf16_last(int tier) { store(tier, FM_BFLOAT16, FM_NHWC); }

static void transform(fm_resample *resample) {
    const fm_geometry geometry = {.source = {.width = IN_WIDTH, .height = IN_HEIGHT},
                                  .resized_width = OUT,
                                  .resized_height = OUT,
                                  .window = {.width = OUT, .height = OUT}};
    fm_box needed;
    fm_error error;
    check(fm_resample_begin(resample, &geometry, &needed, &error), &error);
    check(fm_resample_start(resample, 0, IN_WIDTH, bench.out, &error), &error);
    uint8_t *rows[BLOCK];
    const uint8_t *from = bench.image;
    for (int32_t n; (n = fm_resample_rows(resample, rows, BLOCK)) > 0;) {
        /* In place of the decoder, whose rows would also be in the cache. */
        for (int32_t i = 0; i < n; i++, from += IN_STRIDE) memcpy(rows[i], from, 3 * IN_WIDTH);
        fm_resample_push(resample, n);
    }
}

static void transform_u8(int tier) { transform(bench.resamples[tier][FM_UINT8][FM_NCHW]); }
static void transform_f32(int tier) { transform(bench.resamples[tier][FM_FLOAT32][FM_NCHW]); }
static void transform_f16_last(int tier) { transform(bench.resamples[tier][FM_FLOAT16][FM_NHWC]); }

/* Pixels that a figure counts are the kernel's outputs. */
static const struct {
    const char *name;
    void (*run)(int tier);
    double n_px;
} cases[] = {{"horizontal", horizontal, (double)OUT *IN_HEIGHT},
             {"vertical", vertical, (double)OUT *OUT},
             {"tables of weights", prepare, (double)OUT *OUT},
             {"resize (all three)", resize, (double)OUT *OUT},
             {"resize, clipped", resize_clipped, (double)OUT *OUT},
             {"mirror", mirror, (double)OUT *OUT},
             {"store uint8", store_u8, (double)OUT *OUT},
             {"... channels last", store_u8_last, (double)OUT *OUT},
             {"store float32", store_f32, (double)OUT *OUT},
             {"... channels last", store_f32_last, (double)OUT *OUT},
             {"store float16", store_f16, (double)OUT *OUT},
             {"... channels last", store_f16_last, (double)OUT *OUT},
             {"store bfloat16", store_bf16, (double)OUT *OUT},
             {"... channels last", store_bf16_last, (double)OUT *OUT},
             {"transform uint8", transform_u8, (double)OUT *OUT},
             {"transform float32", transform_f32, (double)OUT *OUT},
             {"... float16 last", transform_f16_last, (double)OUT *OUT}};
enum { N_CASES = sizeof(cases) / sizeof(*cases) };

/* ---- setup, check, timing -------------------------------------------------------------------- */

static void setup_coeffs(int tier) {
    fm_error error;
    fm_coeffs *const columns = &bench.columns[tier];
    check(fm_coeffs_compute(columns, FM_FILTER_BILINEAR, IN_WIDTH, OUT, 0, OUT, NULL, &error),
          &error);
    fm_coeffs_even_taps(columns, IN_WIDTH);
    fm_coeffs *const rows[] = {&bench.rows[tier], &bench.rows_clipped[tier]};
    for (int i = 0; i < 2; i++)
        check(fm_coeffs_compute(rows[i], FM_FILTER_BILINEAR, IN_HEIGHT, OUT, 0, OUT, NULL, &error),
              &error);
    rows[1]->clips = true;
    prepare(tier);
}

static void setup(int n_tiers) {
    fm_error error;
    for (int i = 0; i < (int)sizeof(bench.image); i++)
        bench.image[i] = (uint8_t)((uint32_t)(i * 2654435761u) * 2246822519u >> 24);
    for (int i = 0; i < IN_HEIGHT; i++) {
        bench.image_rows[i] = bench.image + i * IN_STRIDE;
        bench.wide_rows[i] = bench.wide + i * OUT_STRIDE;
    }
    const fm_op op = {.kind = FM_OP_RESIZE, .height = OUT, .width = OUT};
    for (int i = 0; i < N_STORES; i++) {
        const fm_transform plan = {.ops = &op,
                                   .n_ops = 1,
                                   .mean = {0.485f, 0.456f, 0.406f},
                                   .std = {0.229f, 0.224f, 0.225f},
                                   .dtype = (fm_dtype)(FM_UINT8 + i / N_LAYOUTS),
                                   .layout = (fm_layout)(i % N_LAYOUTS)};
        check(fm_plan_init(&bench.plans[plan.dtype][plan.layout], &plan, &error), &error);
    }
    for (int tier = 0; tier < n_tiers; tier++) {
        fm_kernels_init(&bench.kernels[tier], (fm_cpu_tier)tier);
        setup_coeffs(tier);
        setenv("FEEDMILL_CPU", fm_cpu_tier_name((fm_cpu_tier)tier), 1);
        for (int i = 0; i < N_STORES; i++) {
            const int dtype = FM_UINT8 + i / N_LAYOUTS, layout = i % N_LAYOUTS;
            const fm_plan *const plan = &bench.plans[dtype][layout];
            fm_store_init(&bench.stores[tier][dtype][layout], plan, (fm_cpu_tier)tier);
            check(fm_resample_open(&bench.resamples[tier][dtype][layout], plan, NULL, &error),
                  &error);
        }
    }
}

/* FNV-1a over all that a case may have written; slack left out. */
static uint64_t sum_outputs(void) {
    uint64_t sum = 14695981039346656037u;
    for (int row = 0; row < IN_HEIGHT; row++)
        for (int i = 0; i < 3 * OUT; i++)
            sum = (sum ^ bench.wide[row * OUT_STRIDE + i]) * 1099511628211u;
    for (int row = 0; row < OUT; row++)
        for (int i = 0; i < 3 * OUT; i++)
            sum = (sum ^ bench.small[row * OUT_STRIDE + i]) * 1099511628211u;
    const uint8_t *const out = (const uint8_t *)bench.out;
    for (size_t i = 0; i < sizeof(bench.out); i++) sum = (sum ^ out[i]) * 1099511628211u;
    return sum;
}

static void compare(int n_tiers) {
    for (int c = 0; c < N_CASES; c++) {
        uint64_t want = 0;
        for (int tier = 0; tier < n_tiers; tier++) {
            memset(bench.out, 0, sizeof(bench.out));
            memset(bench.small, 0, sizeof(bench.small));
            /* The other cases read the output of the first one. */
            if (c == 0) memset(bench.wide, 0, sizeof(bench.wide));
            cases[c].run(tier);
            const uint64_t sum = sum_outputs();
            if (tier == 0) want = sum;
            if (sum == want) continue;
            fprintf(stderr, "bench_kernels: %s, %s: differs from scalar\n", cases[c].name,
                    fm_cpu_tier_name((fm_cpu_tier)tier));
            exit(1);
        }
    }
}

static double now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

/* Fastest of the rounds, by tier, in nanoseconds. */
static void time_case(int c, int n_tiers, int n_rounds, double *fastest) {
    for (int round = 0; round < n_rounds; round++) {
        for (int tier = 0; tier < n_tiers; tier++) {
            const double start = now_ns();
            for (int i = 0; i < RUNS; i++) cases[c].run(tier);
            const double ns = (now_ns() - start) / RUNS;
            if (round == 0 || ns < fastest[tier]) fastest[tier] = ns;
        }
    }
}

static void print_head(int n_tiers) {
    printf("| %-18s |", "");
    for (int tier = 0; tier < n_tiers; tier++)
        printf(" %-24s |", fm_cpu_tier_name((fm_cpu_tier)tier));
    printf("\n|---|");
    for (int tier = 0; tier < n_tiers; tier++) printf("---|");
    printf("\n");
}

int main(int argc, char **argv) {
    const int n_rounds = argc > 1 ? atoi(argv[1]) : 101;
    if (argc > 2 || n_rounds < 1 || n_rounds > MOST_ROUNDS) {
        fprintf(stderr, "usage: bench_kernels [ROUNDS, 1 to %d]\n", MOST_ROUNDS);
        return 2;
    }
    int n_tiers = (int)fm_cpu_best_tier() + 1;
    if (n_tiers > N_TIERS) n_tiers = N_TIERS;
    setup(n_tiers);
    compare(n_tiers);
    printf("%d x %d to %d x %d, fastest of %d rounds: ns per output pixel, us per crop, times "
           "scalar's speed\n\n",
           IN_WIDTH, IN_HEIGHT, OUT, OUT, n_rounds);
    print_head(n_tiers);
    for (int c = 0; c < N_CASES; c++) {
        double fastest[N_TIERS];
        time_case(c, n_tiers, n_rounds, fastest);
        printf("| %-18s |", cases[c].name);
        for (int tier = 0; tier < n_tiers; tier++)
            printf(" %5.3f ns %5.1f us %5.2fx |", fastest[tier] / cases[c].n_px,
                   fastest[tier] / 1e3, fastest[0] / fastest[tier]);
        printf("\n");
    }
    for (int tier = 0; tier < n_tiers; tier++) {
        for (int i = 0; i < N_STORES; i++)
            fm_resample_close(&bench.resamples[tier][FM_UINT8 + i / N_LAYOUTS][i % N_LAYOUTS]);
        fm_coeffs_fini(&bench.columns[tier]);
        fm_coeffs_fini(&bench.rows[tier]);
        fm_coeffs_fini(&bench.rows_clipped[tier]);
    }
    return 0;
}
