// The type _native.DiskCache: objects in a folder of a local disk, for one or more loaders.
#pragma once
#include "feedmill/disk_cache.h"
#include "python.h"

namespace feedmill {

// Creates the type; none: a Python exception is set.
Ref make_disk_cache_type(PyObject *module);

// The cache of a _native.DiskCache, valid as long as that object; nullptr: an exception is set.
fm_disk_cache *disk_cache_from_object(PyObject *object);

// disk_cache_walk(path, verify, visit): see fm_disk_cache_walk(). visit(name, etag, offset_bytes,
// range_bytes, n_bytes, file_bytes, used_s, is_damaged) returns whether the entry is removed.
PyObject *disk_cache_walk(PyObject *module, PyObject *args);

} // namespace feedmill
