// Conversions of images for tensors (tensor.h of the C library).
#pragma once
#include "python.h"

namespace feedmill {

// scale_pixels(pixels, n_px, address): see _native.pyi.
PyObject *scale_pixels(PyObject *module, PyObject *args);

// normalize(...): see _native.pyi.
PyObject *normalize(PyObject *module, PyObject *args);

// normalize_pixels(...): see _native.pyi.
PyObject *normalize_pixels(PyObject *module, PyObject *args);

// scale_bytes(out, values, n, (factor, divisor)): see _native.pyi.
PyObject *scale_bytes(PyObject *module, PyObject *args);

// keep_freed_memory(n_bytes): see _native.pyi.
PyObject *keep_freed_memory(PyObject *module, PyObject *args);

} // namespace feedmill
