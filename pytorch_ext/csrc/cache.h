// The type _native.Cache: encoded files in memory, for one or more loaders.
#pragma once
#include "feedmill/feedmill.h"
#include "python.h"

namespace feedmill {

// Creates the type; none: a Python exception is set.
Ref make_cache_type(PyObject *module);

// The cache of a _native.Cache, valid as long as that object; nullptr: an exception is set.
fm_cache *cache_from_object(PyObject *object);

} // namespace feedmill
