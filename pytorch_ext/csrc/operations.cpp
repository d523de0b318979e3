#include "operations.h"

#include "feedmill/operations.h"

namespace feedmill {

namespace {

// The bytes of a bytes object; *n is checked to be at least n_needed.
bool read_bytes(PyObject *bytes, Py_ssize_t n_needed, const uint8_t **out, Py_ssize_t *n) {
    char *data;
    if (PyBytes_AsStringAndSize(bytes, &data, n)) return false;
    *out = reinterpret_cast<const uint8_t *>(data);
    if (*n >= n_needed) return true;
    PyErr_SetString(PyExc_ValueError, "fewer bytes than pixels");
    return false;
}

// Reads the arguments of operate(); false: a Python exception is set.
bool read_operation(PyObject *args, fm_operation *operation, Py_ssize_t *n_bytes) {
    int kind, width, height, value = 0, n_passes = 1;
    PyObject *pixels, *other = Py_None;
    if (!PyArg_ParseTuple(args, "iSii|Oifffi", &kind, &pixels, &width, &height, &other, &value,
                          &operation->factor, &operation->x, &operation->y, &n_passes))
        return false;
    if (width < 1 || height < 1 || width > PY_SSIZE_T_MAX / 3 / height) {
        PyErr_SetString(PyExc_ValueError, "an image without pixels");
        return false;
    }
    operation->kind = fm_operation_kind(kind);
    operation->width = width;
    operation->height = height;
    operation->value = value;
    operation->n_passes = n_passes;
    *n_bytes = 3 * Py_ssize_t(width) * height;
    Py_ssize_t n;
    if (!read_bytes(pixels, *n_bytes, &operation->pixels, &n)) return false;
    const Py_ssize_t n_other = kind == FM_OPERATION_POINT ? 768 : *n_bytes;
    return other == Py_None || read_bytes(other, n_other, &operation->other, &n);
}

} // namespace

PyObject *operate(PyObject *, PyObject *args) {
    fm_operation operation{};
    operation.struct_bytes = sizeof(operation);
    Py_ssize_t n_bytes;
    if (!read_operation(args, &operation, &n_bytes)) return nullptr;
    if (operation.kind == FM_OPERATION_GRAY_BYTES) n_bytes /= 3;
    Ref result(PyBytes_FromStringAndSize(nullptr, n_bytes));
    if (!result) return nullptr;
    auto *const out = reinterpret_cast<uint8_t *>(PyBytes_AsString(result.get()));
    fm_error error;
    const int status = without_gil([&] { return fm_operation_run(&operation, out, &error); });
    return status ? text_from(error.message).release() : result.release();
}

PyObject *map_pixels(PyObject *, PyObject *args) {
    fm_mapping mapping{};
    mapping.struct_bytes = sizeof(mapping);
    int kind, filter;
    PyObject *pixels;
    double *const m = mapping.m;
    uint8_t *const fill = mapping.fill;
    if (!PyArg_ParseTuple(args, "iS(ii)(ii)(dddddddd)i(bbb)", &kind, &pixels, &mapping.width,
                          &mapping.height, &mapping.out_width, &mapping.out_height, &m[0], &m[1],
                          &m[2], &m[3], &m[4], &m[5], &m[6], &m[7], &filter, &fill[0], &fill[1],
                          &fill[2]))
        return nullptr;
    mapping.kind = fm_mapping_kind(kind);
    mapping.filter = fm_filter(filter);
    const bool has_pixels = mapping.width > 0 && mapping.height > 0 && mapping.out_width > 0 &&
                            mapping.out_height > 0 && mapping.width < 1 << 16 &&
                            mapping.out_width < 1 << 16;
    if (!has_pixels) {
        PyErr_SetString(PyExc_ValueError, "an image without pixels");
        return nullptr;
    }
    Py_ssize_t n;
    // A bytes object has one more byte after its end, which the kernels read.
    if (!read_bytes(pixels, 3 * Py_ssize_t(mapping.width) * mapping.height, &mapping.pixels, &n))
        return nullptr;
    Ref result(
        PyBytes_FromStringAndSize(nullptr, 3 * Py_ssize_t(mapping.out_width) * mapping.out_height));
    if (!result) return nullptr;
    auto *const out = reinterpret_cast<uint8_t *>(PyBytes_AsString(result.get()));
    fm_error error;
    const int status = without_gil([&] { return fm_mapping_run(&mapping, out, &error); });
    return status ? text_from(error.message).release() : result.release();
}

PyObject *table_bytes(PyObject *, PyObject *args) {
    PyObject *list;
    if (!PyArg_ParseTuple(args, "O!", &PyList_Type, &list)) return nullptr;
    const Py_ssize_t n = PyList_Size(list);
    Ref result(PyBytes_FromStringAndSize(nullptr, n));
    if (!result) return nullptr;
    char *const out = PyBytes_AsString(result.get());
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *const item = PyList_GetItem(list, i); // borrowed
        if (!PyLong_CheckExact(item)) Py_RETURN_NONE;
        int overflow;
        const long value = PyLong_AsLongAndOverflow(item, &overflow);
        if (overflow || value > INT32_MAX || value < INT32_MIN) Py_RETURN_NONE;
        out[i] = char(uint8_t(value < 0 ? 0 : value > 255 ? 255 : value));
    }
    return result.release();
}

PyObject *histogram(PyObject *, PyObject *args) {
    PyObject *bytes;
    const uint8_t *pixels;
    Py_ssize_t n_bytes;
    if (!PyArg_ParseTuple(args, "S", &bytes) || !read_bytes(bytes, 0, &pixels, &n_bytes))
        return nullptr;
    uint64_t counts[3][256];
    without_gil([&] { fm_pixels_histogram(pixels, size_t(n_bytes) / 3, counts); });
    Ref list(PyList_New(768));
    for (Py_ssize_t i = 0; list && i < 768; i++) {
        PyObject *const count = PyLong_FromUnsignedLongLong(counts[i / 256][i % 256]);
        if (!count || PyList_SetItem(list.get(), i, count)) return nullptr;
    }
    return list.release();
}

PyObject *gray_sum(PyObject *, PyObject *args) {
    PyObject *bytes;
    const uint8_t *pixels;
    Py_ssize_t n_bytes;
    if (!PyArg_ParseTuple(args, "S", &bytes) || !read_bytes(bytes, 0, &pixels, &n_bytes))
        return nullptr;
    uint64_t sum = 0;
    fm_error error;
    const int status =
        without_gil([&] { return fm_pixels_gray_sum(pixels, size_t(n_bytes) / 3, &sum, &error); });
    return status ? text_from(error.message).release() : PyLong_FromUnsignedLongLong(sum);
}

PyObject *mix_pixels(PyObject *, PyObject *args) {
    unsigned long long out, one, other, n_bytes;
    float weight, other_weight;
    if (!PyArg_ParseTuple(args, "KKKKff", &out, &one, &other, &n_bytes, &weight, &other_weight))
        return nullptr;
    fm_error error;
    const int status = without_gil([&] {
        return fm_pixels_mix(static_cast<const uint8_t *>(pointer_from(one)),
                             static_cast<const uint8_t *>(pointer_from(other)), size_t(n_bytes),
                             weight, other_weight, static_cast<uint8_t *>(pointer_from(out)),
                             &error);
    });
    return PyBool_FromLong(status == FM_OK);
}

} // namespace feedmill
