// Python values to C structures, statuses to exceptions.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string>
#include <vector>

#include "batch.h"
#include "feedmill/feedmill.h"

namespace feedmill {

// What an fm_config points to, with the lifetime of the loader that was opened with it.
struct Config {
    fm_config config;
    std::vector<fm_op> ops;
    std::string value_table;
    std::string header; // of files that are no images
    std::vector<fm_array> arrays;
    std::vector<Section> sections;       // of the arrays; offsets are set once it is open
    PyObject *owners = nullptr;          // owned; of the arrays' memory, or nullptr
    PyObject *alloc = nullptr;           // owned; the Python allocator or nullptr
    PyObject *alloc_exception = nullptr; // owned; what it raised last
    PyObject *cache = nullptr;           // owned; the _native.Cache or nullptr
    ~Config();
};

// Fills `out` from the keyword arguments of Loader(). False: a Python exception is set.
bool config_from_kwargs(PyObject *args, PyObject *kwargs, Config *out);

// "host" or "cuda"; false: a Python exception is set.
bool device_kind_from_name(const char *name, fm_device_kind *out);

// Exact ints of a list, tuple or the like from 0 to n - 1, as the bytes of int64 values; None where
// any of them is something else; nullptr: a Python exception is set.
PyObject *bytes_from_indices(PyObject *indices, long long n);

// References to Python objects, given up with the GIL held.
class References {
  public:
    References() = default;
    References(References &&) = default;
    References(const References &) = delete;
    References &operator=(const References &) = delete;
    ~References();
    // Takes a reference over.
    void add(PyObject *owned) { objects_.push_back(owned); }

  private:
    std::vector<PyObject *> objects_;
};

// A batch's samples, with the objects that own what they point to.
class Samples {
  public:
    // `paths`: file system paths; `data`: None, or for each bytes, a range (offset, n_bytes,
    // verified, rows) of the file at the path, or None: the whole file. `labels`: None, or ints.
    // False: a Python exception is set.
    bool fill(PyObject *indices, PyObject *paths, PyObject *data, PyObject *labels);
    std::vector<fm_sample> samples;
    References images; // the bytes objects in `data`, which the native loader does not copy

  private:
    bool add(PyObject *indices, PyObject *paths, PyObject *data, Py_ssize_t i);
    bool set_labels(PyObject *labels);
    bool add_range(PyObject *range, fm_sample *sample);
    bool add_rows(PyObject *rows, fm_sample *sample);
    std::vector<fm_jpeg_rows> rows_; // with room for all, so that none moves
    References paths_;
};

// The module's exceptions; owned.
struct ErrorTypes {
    PyObject *error = nullptr;  // Error
    PyObject *budget = nullptr; // BudgetError
};

// Sets the Python exception for a failed call, unless one is set already (by a callback): bad
// arguments are ValueError, lack of memory MemoryError, budgets BudgetError, the rest Error.
PyObject *raise_status(const ErrorTypes &types, const fm_error &error);

// Every field of fm_stats as a dict.
PyObject *dict_from_stats(const fm_stats &stats);

} // namespace feedmill
