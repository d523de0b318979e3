// Methods of _native.Loader that tell what it did and would do. Any thread may call them, also
// while another one is in an ExclusiveCall: they keep the GIL, so that no close() comes in between.
#pragma once
#include "python.h"

namespace feedmill {

// As _native.pyi describes them.
PyObject *loader_draws(PyObject *self, PyObject *args);
PyObject *loader_stats(PyObject *self, PyObject *args);
PyObject *loader_steps(PyObject *self, PyObject *args);
PyObject *loader_sample_records(PyObject *self, PyObject *args);
PyObject *loader_slow_samples(PyObject *self, PyObject *args);

} // namespace feedmill
