// The type _native.Cache: encoded files in memory, for one or more loaders.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "feedmill/feedmill.h"

namespace feedmill {

// Creates the type; nullptr: a Python exception is set.
PyObject *make_cache_type(PyObject *module);

// The cache of a _native.Cache object, for as long as that lives; nullptr: an exception is set.
fm_cache *cache_from_object(PyObject *object);

} // namespace feedmill
