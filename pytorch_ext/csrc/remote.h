// The type _native.Remote: settings and credentials of object stores, for all loaders of a process.
#pragma once
#include "feedmill/remote.h"
#include "python.h"

namespace feedmill {

// Creates the type; none: a Python exception is set.
Ref make_remote_type(PyObject *module);

// The fm_remote of a _native.Remote, valid as long as that object; nullptr: an exception is set.
fm_remote *remote_from_object(PyObject *object);

// Called before a path is read through a _native.Remote: if it is the first s3:// or gs:// name,
// calls the Remote's `prepare`, which finds the credentials. False: an exception is set.
bool prepare_remote(PyObject *remote, const char *path);

} // namespace feedmill
