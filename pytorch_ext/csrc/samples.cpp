#include "samples.h"

#include "remote.h"

namespace feedmill {

bool Samples::fill(PyObject *indices, PyObject *paths, PyObject *data, PyObject *labels,
                   size_t most_samples, PyObject *remote) {
    remote_ = remote;
    if (data == Py_None) data = nullptr;
    if (labels == Py_None) labels = nullptr;
    const Py_ssize_t n = PySequence_Size(indices);
    const Py_ssize_t n_paths = PySequence_Size(paths);
    const Py_ssize_t n_data = data ? PySequence_Size(data) : n;
    if (n < 0 || n_paths < 0 || n_data < 0) return false;
    if (n != n_paths || n != n_data) {
        PyErr_Format(PyExc_ValueError, "%zd indices but %zd %s", n, n != n_paths ? n_paths : n_data,
                     n != n_paths ? "paths" : "elements of data");
        return false;
    }
    if (size_t(n) > most_samples) {
        PyErr_Format(PyExc_ValueError, "the batch has %zd samples; it must have 1 to %zu", n,
                     most_samples);
        return false;
    }
    samples.reserve(size_t(n));
    if (data) rows_.reserve(size_t(n));
    for (Py_ssize_t i = 0; i < n; i++)
        if (!add(indices, paths, data, i)) return false;
    return !labels || set_labels(labels);
}

bool Samples::add(PyObject *indices, PyObject *paths, PyObject *data, Py_ssize_t i) {
    fm_sample sample{};
    const Ref index(PySequence_GetItem(indices, i));
    if (!index) return false;
    sample.index = PyLong_AsLongLong(index.get());
    if (PyErr_Occurred()) return false;
    const Ref path(PySequence_GetItem(paths, i));
    if (!path || !set_path(path.get(), &sample)) return false;
    if (data) {
        Ref image(PySequence_GetItem(data, i));
        if (!image || !set_data(std::move(image), i, &sample)) return false;
    }
    samples.push_back(sample);
    return true;
}

// Encodes a str, bytes or os.PathLike as open() does; refuses one with a NUL.
bool Samples::set_path(PyObject *path, fm_sample *sample) {
    PyObject *encoded = nullptr;
    if (!PyUnicode_FSConverter(path, &encoded)) return false;
    Ref owner(encoded);
    sample->path = PyBytes_AsString(encoded);
    paths_.push_back(std::move(owner));
    return !remote_ || prepare_remote(remote_, sample->path);
}

bool Samples::set_data(Ref image, Py_ssize_t i, fm_sample *sample) {
    if (image.get() == Py_None) return true;
    if (PyTuple_Check(image.get()) && PyTuple_Size(image.get()) == 4 &&
        PyUnicode_Check(PyTuple_GetItem(image.get(), 3)))
        return set_borrowed(std::move(image), sample);
    if (PyTuple_Check(image.get()) && PyTuple_Size(image.get()) == 1)
        return set_etag(PyTuple_GetItem(image.get(), 0), sample);
    if (PyTuple_Check(image.get())) return set_range(image.get(), sample);
    // Only bytes: a bytearray or an array may change or move while it is decoded.
    if (!PyBytes_Check(image.get())) {
        PyErr_Format(PyExc_TypeError, "data[%zd] is %R; it must be bytes or None, or a range", i,
                     reinterpret_cast<PyObject *>(Py_TYPE(image.get())));
        return false;
    }
    char *bytes = nullptr;
    Py_ssize_t n_bytes = 0;
    if (PyBytes_AsStringAndSize(image.get(), &bytes, &n_bytes)) return false;
    sample->data = bytes;
    sample->data_bytes = size_t(n_bytes);
    images.push_back(std::move(image));
    return true;
}

// Parses (address, n_bytes, owner of the memory, "memory"), which is kept until the batch is
// complete. The word tells it from a range, also from a wrong one.
bool Samples::set_borrowed(Ref buffer, fm_sample *sample) {
    const unsigned long long address = PyLong_AsUnsignedLongLong(PyTuple_GetItem(buffer.get(), 0));
    if (PyErr_Occurred()) return false;
    const unsigned long long n_bytes = PyLong_AsUnsignedLongLong(PyTuple_GetItem(buffer.get(), 1));
    if (PyErr_Occurred()) return false;
    if (!address || !n_bytes) {
        PyErr_SetString(PyExc_ValueError, "a buffer has 0 bytes, or the address 0");
        return false;
    }
    sample->data = reinterpret_cast<const void *>(uintptr_t(address));
    sample->data_bytes = size_t(n_bytes);
    images.push_back(std::move(buffer));
    return true;
}

// Of the object at sample->path only the version with this ETag is read.
bool Samples::set_etag(PyObject *etag, fm_sample *sample) {
    if (!PyUnicode_Check(etag)) {
        PyErr_SetString(PyExc_TypeError, "an ETag must be str");
        return false;
    }
    Ref encoded(PyUnicode_AsUTF8String(etag));
    if (!encoded) return false;
    sample->etag = PyBytes_AsString(encoded.get());
    paths_.push_back(std::move(encoded));
    return true;
}

// Parses a range of the file at sample->path: (offset, n_bytes, verified, restart index).
bool Samples::set_range(PyObject *range, fm_sample *sample) {
    if (PyTuple_Size(range) != 4) {
        PyErr_SetString(PyExc_TypeError, "a range is (offset, n_bytes, verified, rows)");
        return false;
    }
    sample->offset_bytes = PyLong_AsUnsignedLongLong(PyTuple_GetItem(range, 0));
    if (!PyErr_Occurred())
        sample->range_bytes = PyLong_AsUnsignedLongLong(PyTuple_GetItem(range, 1));
    if (PyErr_Occurred()) return false;
    if (!sample->range_bytes) {
        PyErr_SetString(PyExc_ValueError, "a range has 0 bytes");
        return false;
    }
    const int verified = PyObject_IsTrue(PyTuple_GetItem(range, 2));
    if (verified < 0) return false;
    sample->verified = verified == 1;
    PyObject *const rows = PyTuple_GetItem(range, 3);
    return rows == Py_None || set_rows(rows, sample);
}

// Parses a restart index: (width, height, mcu_height, begin, ...).
bool Samples::set_rows(PyObject *rows, fm_sample *sample) {
    const Py_ssize_t n = PyTuple_Check(rows) ? PyTuple_Size(rows) : 0;
    if (n < 4 || n > 3 + FM_MAX_RESTARTS) {
        PyErr_Format(PyExc_ValueError,
                     "rows must be None or a tuple of width, height, MCU's height and 1 to %d "
                     "numbers",
                     FM_MAX_RESTARTS);
        return false;
    }
    fm_restart_index out{};
    out.n = uint32_t(n - 3);
    for (Py_ssize_t i = 0; i < n; i++) {
        const unsigned long value = PyLong_AsUnsignedLong(PyTuple_GetItem(rows, i));
        if (PyErr_Occurred()) return false;
        // A number that is too large for the field makes the whole index invalid: it is ignored.
        const uint32_t number = value > INT32_MAX ? INT32_MAX : uint32_t(value);
        if (i == 0) out.width = int32_t(number);
        if (i == 1) out.height = int32_t(number);
        if (i == 2) out.mcu_height = int32_t(number);
        if (i > 2) out.begin[i - 3] = number;
    }
    rows_.push_back(out);
    sample->rows = &rows_.back();
    return true;
}

bool Samples::set_labels(PyObject *labels) {
    const Py_ssize_t n = PySequence_Size(labels);
    if (n < 0) return false;
    if (size_t(n) != samples.size()) {
        PyErr_Format(PyExc_ValueError, "%zd labels for %zu samples", n, samples.size());
        return false;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        const Ref label(PySequence_GetItem(labels, i));
        samples[size_t(i)].label = label ? PyLong_AsLongLong(label.get()) : 0;
        if (PyErr_Occurred()) return false;
    }
    return true;
}

} // namespace feedmill
