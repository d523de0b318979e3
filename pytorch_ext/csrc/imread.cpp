#include "imread.h"

#include "feedmill/feedmill.h"

namespace feedmill {

namespace {

// Closes an image when it goes out of scope.
class OpenImage {
  public:
    OpenImage() = default;
    OpenImage(const OpenImage &) = delete;
    OpenImage &operator=(const OpenImage &) = delete;
    ~OpenImage() { fm_imread_close(&handle); }
    fm_imread *handle = nullptr;
};

// Returns the pixels of an open image as a bytearray, or the reason why they can't be decoded.
PyObject *read_pixels(fm_imread *image, bool bgr) {
    int height = 0, width = 0;
    fm_imread_size(image, bgr, &height, &width);
    const Ref pixels = allocate_bytearray(Py_ssize_t(height) * width * 3);
    if (!pixels) return nullptr;
    auto *const out = reinterpret_cast<uint8_t *>(PyByteArray_AsString(pixels.get()));
    fm_error error;
    const int status = without_gil(
        [&] { return fm_imread_pixels(image, bgr ? FM_BGR : FM_RGB, bgr, out, &error); });
    if (status) return text_from(error.message).release();
    return Py_BuildValue("Oii", pixels.get(), height, width);
}

PyObject *imread_of(const fm_sample &sample, bool bgr, unsigned long long max_image_pixels,
                    unsigned int rejected_formats) {
    OpenImage image;
    fm_error error;
    const int status = without_gil(
        [&] { return fm_imread_open(&image.handle, &sample, max_image_pixels, &error); });
    if (status) return text_from(error.message).release();
    if (rejected_formats & unsigned(fm_imread_format(image.handle)))
        return PyUnicode_FromString("the image has a rejected format");
    return read_pixels(image.handle, bgr);
}

} // namespace

PyObject *imread(PyObject *, PyObject *args) {
    PyObject *from;
    int bgr;
    unsigned long long max_image_pixels;
    unsigned int rejected_formats = 0;
    if (!PyArg_ParseTuple(args, "OpK|I", &from, &bgr, &max_image_pixels, &rejected_formats))
        return nullptr;
    fm_sample sample{};
    if (PyBytes_Check(from)) {
        char *data;
        Py_ssize_t n_bytes;
        if (PyBytes_AsStringAndSize(from, &data, &n_bytes)) return nullptr;
        sample.data = data;
        sample.data_bytes = size_t(n_bytes);
        return imread_of(sample, bgr, max_image_pixels, rejected_formats);
    }
    PyObject *encoded = nullptr;
    if (!PyUnicode_FSConverter(from, &encoded)) return nullptr;
    const Ref path(encoded); // bytes, which end in a 0 and have no other
    sample.path = PyBytes_AsString(encoded);
    return imread_of(sample, bgr, max_image_pixels, rejected_formats);
}

} // namespace feedmill
