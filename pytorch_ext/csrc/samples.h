// Converts a batch's samples from Python.
#pragma once
#include <vector>

#include "feedmill/feedmill.h"
#include "python.h"

namespace feedmill {

// A batch's samples, and the Python objects that own the memory they point to.
class Samples {
  public:
    // `paths`: file system paths; `data`: None, or for each bytes, memory (address, n_bytes,
    // owner, "memory"), a range (offset, n_bytes, verified, rows) of the file at the path, (etag,):
    // that version of the object at the path, or None: the whole file. `labels`: None, or ints.
    // `remote`: the _native.Remote that reads names such as s3://bucket/key, which gets its
    // credentials at the first one; nullptr: none. More than most_samples are refused before memory
    // is allocated for them. False: a Python exception is set.
    bool fill(PyObject *indices, PyObject *paths, PyObject *data, PyObject *labels,
              size_t most_samples, PyObject *remote);
    std::vector<fm_sample> samples;
    References
        images; // the bytes objects and memory in `data`, which the native loader does not copy

  private:
    bool add(PyObject *indices, PyObject *paths, PyObject *data, Py_ssize_t i);
    bool set_labels(PyObject *labels);
    bool set_path(PyObject *path, fm_sample *sample);
    bool set_data(Ref image, Py_ssize_t i, fm_sample *sample);
    bool set_etag(PyObject *etag, fm_sample *sample);
    bool set_range(PyObject *range, fm_sample *sample);
    bool set_borrowed(Ref buffer, fm_sample *sample);
    bool set_rows(PyObject *rows, fm_sample *sample);
    std::vector<fm_restart_index> rows_; // reserved for the whole batch: samples point to entries
    References paths_;                   // and ETags
    PyObject *remote_ = nullptr;
};

} // namespace feedmill
