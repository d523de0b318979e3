// Python values to C structures, statuses to exceptions.
#pragma once
#include <string>
#include <vector>

#include "batch.h"
#include "feedmill/feedmill.h"
#include "python.h"

namespace feedmill {

// What an fm_config points to, with the lifetime of the loader that was opened with it.
struct Config {
    fm_config config;
    std::vector<fm_op> ops;
    std::string value_table;
    std::string header; // of files that are no images
    std::vector<fm_array> arrays;
    std::vector<Section> sections; // of the arrays; offsets are set once it is open
    Ref owners;                    // of the arrays' memory, or none
    Ref alloc;                     // the Python allocator, or none
    Ref alloc_exception;           // what it raised last, or none
    Ref cache;                     // the _native.Cache, or none
};

// Fills `out` from the keyword arguments of Loader(). False: a Python exception is set.
bool config_from_kwargs(PyObject *args, PyObject *kwargs, Config *out);

// "host" or "cuda"; false: a Python exception is set.
bool device_kind_from_name(const char *name, fm_device_kind *out);

// Exact ints of a list, tuple or the like from 0 to n - 1, as the bytes of int64 values; None where
// any of them is something else; nullptr: a Python exception is set.
PyObject *bytes_from_indices(PyObject *indices, long long n);

// The module's exceptions.
struct ErrorTypes {
    Ref error;  // Error
    Ref budget; // BudgetError
};

// Sets the Python exception for a failed call, unless one is set already (by a callback): bad
// arguments are ValueError, lack of memory MemoryError, budgets BudgetError, the rest Error.
PyObject *raise_status(const ErrorTypes &types, const fm_error &error);

// Every field of fm_stats as a dict.
PyObject *dict_from_stats(const fm_stats &stats);

} // namespace feedmill
