/*
 * Checks the ops of a transform one by one, as far as they do not depend on each other; plan.c
 * checks how they fit together. Pure functions, for any thread.
 */
#ifndef FM_TRANSFORM_OP_CHECK_H
#define FM_TRANSFORM_OP_CHECK_H

#include <stdbool.h>

#include "transform/geometry.h"

/* torchvision's name of an op's kind, such as "CenterCrop", or "unknown kind". */
const char *fm_op_kind_name(fm_op_kind kind);

static inline bool fm_op_resizes(const fm_op *op) {
    return op->kind == FM_OP_RESIZE || op->kind == FM_OP_RANDOM_RESIZED_CROP ||
           op->kind == FM_OP_RESIZE_KEEP_RATIO || op->kind == FM_OP_HALVING_CENTER_CROP;
}

/* Whether it may apply an affine transform, as torchvision defines it. */
static inline bool fm_op_is_affine(const fm_op *op) {
    return op->kind == FM_OP_RANDOM_ROTATION || op->kind == FM_OP_RANDOM_AFFINE ||
           op->kind == FM_OP_TRIVIAL_AUGMENT_WIDE || op->kind == FM_OP_RAND_AUGMENT ||
           op->kind == FM_OP_AUTO_AUGMENT;
}

static inline bool fm_op_changes_size(const fm_op *op) {
    return fm_op_resizes(op) || op->kind == FM_OP_CENTER_CROP || op->kind == FM_OP_RANDOM_CROP ||
           op->kind == FM_OP_PAD;
}

static inline bool fm_op_holds_ops(const fm_op *op) {
    return op->kind == FM_OP_RANDOM_APPLY || op->kind == FM_OP_RANDOM_CHOICE ||
           op->kind == FM_OP_RANDOM_ORDER;
}

/* The filter that an op which resizes may draw in place of op->filter; if none, op->filter. */
fm_filter fm_op_second_filter(const fm_op *op);

/* How many filters the original's random.choice() draws one of, for an op that resizes; 0: it draws
 * none. */
uint32_t fm_op_n_filters(const fm_op *op);

/*
 * Checks the parameters of ops[number], and those of an op that holds ops together with the ops
 * after it. FM_ERR_ARGUMENT names the op, the parameter and what is allowed.
 */
int fm_op_check(size_t number, const fm_op *ops, size_t n_ops, fm_error *error);

#endif
