// Converts Python values to C structures, and statuses to exceptions.
#pragma once
#include <string>
#include <vector>

#include "batch.h"
#include "feedmill/feedmill.h"
#include "python.h"

namespace feedmill {

// What the transform of a further view points to.
struct View {
    std::vector<fm_op> ops;
    std::string value_table, resized_values;
};

// An fm_config and everything that it points to. Must outlive the loader that is opened with it.
struct Config {
    fm_config config;
    std::vector<fm_op> ops;
    std::string value_table, resized_values;
    std::vector<View> views; // the further ones
    std::vector<fm_transform> more_views;
    std::string header; // of files of raw values
    std::vector<fm_array> arrays;
    std::vector<Section> sections; // of the arrays, or of several views; offsets are set after the
                                   // loader was opened
    Ref seek_index_path;           // bytes, or none
    Ref owners;                    // of the arrays' memory, or none
    Ref alloc;                     // the Python allocator, or none
    Ref alloc_exception;           // the last exception of the allocator, or none
    Ref cache;                     // the _native.Cache, or none
    Ref remote;                    // the _native.Remote, or none
    Ref disk_cache;                // the _native.DiskCache, or none
    Ref read;                      // the function that reads other names, or none
};

// Fills `out` from the keyword arguments of Loader(). False: a Python exception is set.
bool config_from_kwargs(PyObject *args, PyObject *kwargs, Config *out);

// "host" or "cuda"; false: a Python exception is set.
bool device_kind_from_name(const char *name, fm_device_kind *out);

// The items of a sequence as the bytes of int64 values, if all are exact ints from 0 to n - 1; else
// None. nullptr: a Python exception is set.
PyObject *bytes_from_indices(PyObject *indices, long long n);

// The module's exceptions.
struct ErrorTypes {
    Ref error;  // Error
    Ref budget; // BudgetError
};

// Sets the Python exception for a failed call, unless a callback has set one: ValueError for bad
// arguments, MemoryError, BudgetError, or else Error.
PyObject *raise_status(const ErrorTypes &types, const fm_error &error);

// Every field of fm_stats as a dict.
PyObject *dict_from_stats(const fm_stats &stats);

} // namespace feedmill
