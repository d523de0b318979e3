// The type _native.Transcoder: JPEGs rewritten for packs.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace feedmill {

// Creates the type; nullptr: a Python exception is set.
PyObject *make_transcoder_type(PyObject *module);

// The texts of an fm_pack_reason, by its value: a tuple.
PyObject *pack_reasons();

} // namespace feedmill
