#include "imread.h"

#include <cstring>

#include "feedmill/feedmill.h"

namespace feedmill {

namespace {

PyObject *text_of(const fm_error &error) {
    return PyUnicode_DecodeUTF8(error.message, Py_ssize_t(std::strlen(error.message)), "replace");
}

// The pixels of an open image, or why not.
PyObject *read_pixels(fm_imread *image, bool bgr) {
    int height = 0, width = 0;
    fm_imread_size(image, bgr, &height, &width);
    PyObject *const pixels = PyByteArray_FromStringAndSize(nullptr, Py_ssize_t(height) * width * 3);
    if (!pixels) return nullptr;
    auto *const out = reinterpret_cast<uint8_t *>(PyByteArray_AsString(pixels));
    fm_error error;
    int status;
    Py_BEGIN_ALLOW_THREADS status =
        fm_imread_pixels(image, bgr ? FM_BGR : FM_RGB, bgr, out, &error);
    Py_END_ALLOW_THREADS if (!status) return Py_BuildValue("Nii", pixels, height, width);
    Py_DECREF(pixels);
    return text_of(error);
}

PyObject *imread_of(const fm_sample &sample, bool bgr, unsigned long long max_image_pixels) {
    fm_imread *image = nullptr;
    fm_error error;
    int status;
    Py_BEGIN_ALLOW_THREADS status = fm_imread_open(&image, &sample, max_image_pixels, &error);
    Py_END_ALLOW_THREADS if (status) return text_of(error);
    PyObject *const result = read_pixels(image, bgr);
    fm_imread_close(&image);
    return result;
}

} // namespace

PyObject *imread(PyObject *, PyObject *args) {
    PyObject *from;
    int bgr;
    unsigned long long max_image_pixels;
    if (!PyArg_ParseTuple(args, "OpK", &from, &bgr, &max_image_pixels)) return nullptr;
    fm_sample sample{};
    if (PyBytes_Check(from)) {
        char *data;
        Py_ssize_t n_bytes;
        if (PyBytes_AsStringAndSize(from, &data, &n_bytes)) return nullptr;
        sample.data = data;
        sample.data_bytes = size_t(n_bytes);
        return imread_of(sample, bgr, max_image_pixels);
    }
    PyObject *path = nullptr; // bytes, which end in a 0 and have no other
    if (!PyUnicode_FSConverter(from, &path)) return nullptr;
    sample.path = PyBytes_AsString(path);
    PyObject *const result = imread_of(sample, bgr, max_image_pixels);
    Py_DECREF(path);
    return result;
}

} // namespace feedmill
