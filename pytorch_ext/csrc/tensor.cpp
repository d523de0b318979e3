#include "tensor.h"

#include "feedmill/tensor.h"

#include <malloc.h>

#include <limits>

namespace feedmill {

namespace {

// Opened at first use, and never closed: other threads may use it until the process ends.
const fm_scaler *scaler_of_process() {
    static const fm_scaler *const opened = [] {
        fm_scaler *scaler = nullptr;
        fm_error error;
        return fm_scaler_open(&scaler, &error) ? nullptr : scaler;
    }();
    return opened;
}

float *floats_at(unsigned long long address) { return reinterpret_cast<float *>(address); }

// A tuple's floats; without an error, as many as it has.
std::vector<float> floats_of(PyObject *tuple) {
    std::vector<float> values;
    for (Py_ssize_t i = 0; i < PyTuple_Size(tuple); i++)
        values.push_back(float(PyFloat_AsDouble(PyTuple_GetItem(tuple, i))));
    return values;
}

} // namespace

PyObject *scale_pixels(PyObject *, PyObject *args) {
    PyObject *bytes;
    Py_ssize_t n_px;
    unsigned long long address;
    if (!PyArg_ParseTuple(args, "SnK", &bytes, &n_px, &address)) return nullptr;
    char *data;
    Py_ssize_t n_bytes;
    if (PyBytes_AsStringAndSize(bytes, &data, &n_bytes)) return nullptr;
    if (n_px < 0 || n_bytes % 3 || n_bytes / 3 != n_px) {
        PyErr_SetString(PyExc_ValueError, "another number of bytes than of pixels");
        return nullptr;
    }
    const bool is_done = without_gil([&] {
        const fm_scaler *const scaler = scaler_of_process();
        if (!scaler) return false;
        fm_scaler_run(scaler, reinterpret_cast<const uint8_t *>(data), size_t(n_px),
                      floats_at(address));
        return true;
    });
    return PyBool_FromLong(is_done);
}

PyObject *normalize(PyObject *, PyObject *args) {
    unsigned long long out, in;
    Py_ssize_t plane;
    PyObject *mean, *std;
    if (!PyArg_ParseTuple(args, "KKnO!O!", &out, &in, &plane, &PyTuple_Type, &mean, &PyTuple_Type,
                          &std))
        return nullptr;
    const Py_ssize_t n_planes = PyTuple_Size(mean);
    if (plane < 0 || PyTuple_Size(std) != n_planes) {
        PyErr_SetString(PyExc_ValueError, "numbers of values differ");
        return nullptr;
    }
    const std::vector<float> means = floats_of(mean), stds = floats_of(std);
    if (PyErr_Occurred()) return nullptr;
    without_gil([&] {
        fm_normalize(floats_at(out), floats_at(in), size_t(n_planes), size_t(plane), means.data(),
                     stds.data());
        return 0;
    });
    Py_RETURN_NONE;
}

PyObject *normalize_pixels(PyObject *, PyObject *args) {
    unsigned long long out, in;
    Py_ssize_t n_px;
    PyObject *mean, *std;
    if (!PyArg_ParseTuple(args, "KKnO!O!", &out, &in, &n_px, &PyTuple_Type, &mean, &PyTuple_Type,
                          &std))
        return nullptr;
    if (n_px < 0 || PyTuple_Size(mean) != 3 || PyTuple_Size(std) != 3) {
        PyErr_SetString(PyExc_ValueError, "not three values");
        return nullptr;
    }
    const std::vector<float> means = floats_of(mean), stds = floats_of(std);
    if (PyErr_Occurred()) return nullptr;
    without_gil([&] {
        fm_normalize_pixels(floats_at(out), floats_at(in), size_t(n_px), means.data(), stds.data());
        return 0;
    });
    Py_RETURN_NONE;
}

PyObject *scale_bytes(PyObject *, PyObject *args) {
    unsigned long long out, in;
    Py_ssize_t n;
    float factor, divisor;
    if (!PyArg_ParseTuple(args, "KKn(ff)", &out, &in, &n, &factor, &divisor)) return nullptr;
    if (n < 0) {
        PyErr_SetString(PyExc_ValueError, "a negative number of values");
        return nullptr;
    }
    without_gil([&] {
        fm_scale_bytes(floats_at(out), reinterpret_cast<const uint8_t *>(uintptr_t(in)), size_t(n),
                       factor, divisor);
        return 0;
    });
    Py_RETURN_NONE;
}

PyObject *keep_freed_memory(PyObject *, PyObject *args) {
    Py_ssize_t n_bytes;
    if (!PyArg_ParseTuple(args, "n", &n_bytes)) return nullptr;
    bool is_set = false;
#ifdef __GLIBC__
    // The largest threshold that glibc accepts; larger blocks are always mapped.
    constexpr int most_heap_bytes = 32 << 20;
    const auto limit = Py_ssize_t(std::numeric_limits<int>::max());
    is_set = n_bytes > 0 && mallopt(M_MMAP_THRESHOLD, most_heap_bytes) &&
             mallopt(M_TRIM_THRESHOLD, int(n_bytes < limit ? n_bytes : limit));
#endif
    return PyBool_FromLong(is_set);
}

} // namespace feedmill
