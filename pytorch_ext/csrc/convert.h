// Python values to C structures, statuses to exceptions.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string>
#include <vector>

#include "feedmill/feedmill.h"

namespace feedmill {

// What an fm_config points to, with the lifetime of the loader that was opened with it.
struct Config {
    fm_config config;
    std::vector<fm_op> ops;
    std::string value_table;
    PyObject *alloc = nullptr;           // owned; the Python allocator or nullptr
    PyObject *alloc_exception = nullptr; // owned; what it raised last
    ~Config();
};

// Fills `out` from the keyword arguments of Loader(). False: a Python exception is set.
bool config_from_kwargs(PyObject *args, PyObject *kwargs, Config *out);

// A batch's samples: indices and file system paths, with the objects that own the paths.
class Samples {
  public:
    ~Samples();
    // False: a Python exception is set.
    bool fill(PyObject *indices, PyObject *paths);
    std::vector<fm_sample> samples;

  private:
    std::vector<PyObject *> owners_;
};

// Sets the Python exception for a failed call, unless one is set already (by a callback): bad
// arguments and budgets are ValueError, lack of memory MemoryError, the rest `error_type`.
PyObject *raise_status(PyObject *error_type, const fm_error &error);

// Every field of fm_stats as a dict.
PyObject *dict_from_stats(const fm_stats &stats);

} // namespace feedmill
