// A lent batch as a DLPack capsule.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "feedmill/feedmill.h"

namespace feedmill {

// Takes the batch over: a "dltensor" capsule of (n, 3, height, width) on the CPU, with the
// strides of the batch's layout, whose deleter
// releases the loan - once, from any thread, with or without the GIL, also while the interpreter
// ends; it calls no Python. nullptr (the batch is released): a Python exception is set.
PyObject *capsule_from_batch(fm_batch *batch);

} // namespace feedmill
