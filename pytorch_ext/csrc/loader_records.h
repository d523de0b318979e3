// Methods of _native.Loader that return counters, records and random parameters. Any thread may
// call them, also during another thread's ExclusiveCall. They hold the GIL throughout, so no other
// thread can close the loader during the call.
#pragma once
#include "python.h"

namespace feedmill {

// See _native.pyi.
PyObject *loader_draws(PyObject *self, PyObject *args);
PyObject *loader_draws_torch(PyObject *self, PyObject *args);
PyObject *noise_torch(PyObject *self, PyObject *args);
PyObject *loader_before_pixels(PyObject *self, PyObject *args);
PyObject *loader_fallback_draws(PyObject *self, PyObject *args);
PyObject *loader_stats(PyObject *self, PyObject *args);
PyObject *loader_steps(PyObject *self, PyObject *args);
PyObject *loader_sample_records(PyObject *self, PyObject *args);
PyObject *loader_slow_samples(PyObject *self, PyObject *args);

} // namespace feedmill
