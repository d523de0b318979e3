/*
 * torch.empty(n).normal_(), float32, as torch computes it on x86-64 CPUs with AVX2:
 *
 *     n < 16   one number after the other: fm_torch_normal() of base/streams.h
 *     else     ATen/native/cpu/DistributionTemplates.h, normal_fill(): n uniform numbers, of which
 *              each block of 16 goes through Box-Muller; if n is no multiple of 16, the last 16
 *              numbers are made once more from new ones
 *
 * ATen's logarithm, sine and cosine are those of its avx_mathfun.h, where the compiler contracts
 * multiplications and additions; fmaf() says here which ones. torch on other CPUs, or with
 * ATEN_CPU_CAPABILITY=default, uses libm's and differs in the last bits: callers compare with the
 * installed torch before they rely on these numbers.
 *
 * Only one thread may use a generator at a time.
 */
#ifndef FM_BASE_NORMALS_H
#define FM_BASE_NORMALS_H

#include <stddef.h>

#include "base/streams.h"

/* Gets values [first, first + n) of a tensor. May get some of the last 16 twice: the later ones
 * count. */
typedef void fm_write_normals(void *user, size_t first, const float *values, size_t n);

void fm_torch_normals(fm_streams *streams, size_t n, fm_write_normals *write, void *user);

/* Advances the generator as fm_torch_normals() does. */
void fm_torch_skip_normals(fm_streams *streams, size_t n);

/* Makes normally distributed numbers of uniform ones, 16 at a time, in place; n is a multiple of
 * 16. fm_box_muller_scalar() defines the result; the other one uses what the CPU has. */
void fm_box_muller(float *values, size_t n);
void fm_box_muller_scalar(float *values, size_t n);

#endif
