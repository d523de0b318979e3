// A lent batch as a DLPack capsule.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <vector>

#include "feedmill/feedmill.h"

namespace feedmill {

// Takes the batch over: a "dltensor" capsule of (n, 3, height, width) on the CPU, with the
// strides of the batch's layout, whose deleter
// releases the loan - once, from any thread, with or without the GIL, also while the interpreter
// ends; it calls no Python. nullptr (the batch is released): a Python exception is set.
PyObject *capsule_from_batch(fm_batch *batch);

// What a batch holds of an array: values of a DLPack type, each row of that shape.
struct Section {
    size_t offset = 0; // from fm_batch.images on
    uint8_t code = 0, bits = 0;
    std::vector<int64_t> shape, order; // of a row; its dimensions as they lie, innermost first
};

// Sets a section's type to that of images.
void set_image_type(Section *section, fm_dtype dtype);

// The same for a batch of arrays: a list of capsules, the last of which returns the loan.
PyObject *capsules_from_batch(fm_batch *batch, const std::vector<Section> &sections);

} // namespace feedmill
