// Operations on images in memory (operations.h of the C library).
#pragma once
#include "python.h"

namespace feedmill {

// operate(...), map_pixels(...), table_bytes(list), histogram(pixels), gray_sum(pixels),
// mix_pixels(...): see _native.pyi.
PyObject *operate(PyObject *module, PyObject *args);
PyObject *map_pixels(PyObject *module, PyObject *args);
PyObject *table_bytes(PyObject *module, PyObject *args);
PyObject *histogram(PyObject *module, PyObject *args);
PyObject *gray_sum(PyObject *module, PyObject *args);
PyObject *mix_pixels(PyObject *module, PyObject *args);

} // namespace feedmill
