// The type _native.Loader.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace feedmill {

// Creates the type; nullptr: a Python exception is set. `module` must hold an attribute Error.
PyObject *make_loader_type(PyObject *module);

} // namespace feedmill
