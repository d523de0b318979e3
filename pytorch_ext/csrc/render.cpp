#include "render.h"

#include "feedmill/render.h"

namespace feedmill {

namespace {

// A thread's renderer, kept for its next image and closed when the thread ends.
class ThreadRenderer {
  public:
    ThreadRenderer() = default;
    ThreadRenderer(const ThreadRenderer &) = delete;
    ThreadRenderer &operator=(const ThreadRenderer &) = delete;
    ~ThreadRenderer() { fm_renderer_close(&handle_); }
    // Returns a status. Images of any size are accepted: Pillow checked it when it opened the file.
    int open(fm_renderer **out, fm_error *error) {
        const int status = handle_ ? FM_OK : fm_renderer_open(&handle_, ~0ull, error);
        *out = handle_;
        return status;
    }

  private:
    fm_renderer *handle_ = nullptr;
};

thread_local ThreadRenderer thread_renderer;

// Arrow's C data interface: https://arrow.apache.org/docs/format/CDataInterface.html
struct ArrowArray {
    int64_t length, null_count, offset, n_buffers, n_children;
    const void **buffers;
    ArrowArray **children;
    ArrowArray *dictionary;
    void (*release)(ArrowArray *);
    void *private_data;
};

// The pixels of a Pillow image of n_px pixels of four bytes, from its exported array, which is a
// list of four-byte lists. nullptr: it has another shape.
uint8_t *pixels_of_export(PyObject *capsule, int64_t n_px) {
    auto *const array =
        static_cast<const ArrowArray *>(PyCapsule_GetPointer(capsule, "arrow_array"));
    if (!array) {
        PyErr_Clear();
        return nullptr;
    }
    if (array->length != n_px || array->n_children != 1) return nullptr;
    const ArrowArray *const bytes = array->children[0];
    if (bytes->length != 4 * n_px || bytes->offset || bytes->n_buffers != 2) return nullptr;
    return static_cast<uint8_t *>(const_cast<void *>(bytes->buffers[1]));
}

bool check_pixels(bool has_all, int width, int height, fm_render *job) {
    if (width < 1 || height < 1 || !has_all) {
        PyErr_SetString(PyExc_ValueError, "fewer bytes than pixels");
        return false;
    }
    job->pixels_width = width;
    job->pixels_height = height;
    return true;
}

// Points the job to its source: (bytes of a file,), (pixels as bytes, width, height) or (an
// exported array of a Pillow image, width, height).
bool read_source(PyObject *source, fm_render *job) {
    PyObject *bytes;
    int width = 0, height = 0;
    if (!PyArg_ParseTuple(source, "O|ii", &bytes, &width, &height)) return false;
    if (PyCapsule_CheckExact(bytes)) {
        job->pixels = pixels_of_export(bytes, int64_t(width) * height);
        job->pixels_format = FM_PIXEL_RGBX;
        return check_pixels(job->pixels, width, height, job);
    }
    char *data;
    Py_ssize_t n_bytes;
    if (PyBytes_AsStringAndSize(bytes, &data, &n_bytes)) return false;
    if (width == 0) {
        job->data = data;
        job->data_bytes = size_t(n_bytes);
        return true;
    }
    job->pixels = reinterpret_cast<const uint8_t *>(data);
    return check_pixels(width > 0 && n_bytes / 3 / width >= height, width, height, job);
}

bool read_rect(PyObject *tuple, fm_rect *rect) {
    return PyArg_ParseTuple(tuple, "iiii", &rect->left, &rect->top, &rect->width, &rect->height);
}

// (width, height, filter, order of the passes, window, its orientation[, (the part that is resized:
// left, top, right, bottom)])
bool read_resize(PyObject *resize, fm_render *job) {
    int filter, order, orientation;
    PyObject *window;
    float *const box = job->resize_box;
    if (!PyArg_ParseTuple(resize, "iiiiO!i|(ffff)", &job->resized_width, &job->resized_height,
                          &filter, &order, &PyTuple_Type, &window, &orientation, &box[0], &box[1],
                          &box[2], &box[3]) ||
        !read_rect(window, &job->window))
        return false;
    job->filter = fm_filter(filter);
    job->resize_order = fm_resize_order(order);
    job->window_orientation = fm_orientation(orientation);
    return true;
}

int run(const fm_render &job, uint8_t *out, fm_error *error) {
    return without_gil([&] {
        fm_renderer *renderer;
        const int status = thread_renderer.open(&renderer, error);
        return status ? status : fm_renderer_run(renderer, &job, out, error);
    });
}

PyObject *render_bytes(const fm_render &job, Py_ssize_t n_px) {
    Ref result(PyBytes_FromStringAndSize(nullptr, 3 * n_px));
    if (!result) return nullptr;
    fm_error error;
    auto *const out = reinterpret_cast<uint8_t *>(PyBytes_AsString(result.get()));
    return run(job, out, &error) ? text_from(error.message).release() : result.release();
}

PyObject *render_export(fm_render &job, Py_ssize_t n_px, PyObject *capsule, int fourth_byte) {
    uint8_t *const out = pixels_of_export(capsule, n_px);
    if (!out) return PyUnicode_FromString("Pillow's memory has an unknown layout");
    job.format = FM_PIXEL_RGBX;
    job.fourth_byte = uint8_t(fourth_byte);
    fm_error error;
    if (run(job, out, &error)) return text_from(error.message).release();
    Py_RETURN_NONE;
}

PyObject *render_address(const fm_render &job, PyObject *address) {
    const unsigned long long at = PyLong_AsUnsignedLongLong(address);
    if (PyErr_Occurred()) return nullptr;
    fm_error error;
    if (run(job, reinterpret_cast<uint8_t *>(uintptr_t(at)), &error))
        return text_from(error.message).release();
    Py_RETURN_NONE;
}

} // namespace

PyObject *image_header(PyObject *, PyObject *args) {
    PyObject *bytes;
    if (!PyArg_ParseTuple(args, "S", &bytes)) return nullptr;
    char *data;
    Py_ssize_t n_bytes;
    if (PyBytes_AsStringAndSize(bytes, &data, &n_bytes)) return nullptr;
    fm_image_header header;
    fm_error error;
    const int status = without_gil([&] {
        fm_renderer *renderer;
        const int opened = thread_renderer.open(&renderer, &error);
        return opened ? opened
                      : fm_renderer_header(renderer, data, size_t(n_bytes), &header, &error);
    });
    if (status) return text_from(error.message).release();
    return Py_BuildValue("iiiOin", int(header.format), int(header.width), int(header.height),
                         header.progressive ? Py_True : Py_False, int(header.n_components),
                         Py_ssize_t(header.n_bytes));
}

PyObject *render_at(PyObject *, PyObject *args) {
    PyObject *source;
    unsigned long long address;
    fm_render job{};
    job.struct_bytes = sizeof(job);
    int is_bgr;
    if (!PyArg_ParseTuple(args, "O!(iiii)Ki", &PyTuple_Type, &source, &job.box.left, &job.box.top,
                          &job.box.width, &job.box.height, &address, &is_bgr) ||
        !read_source(source, &job))
        return nullptr;
    job.format = is_bgr ? FM_PIXEL_BGR : FM_PIXEL_RGB;
    fm_error error;
    if (run(job, reinterpret_cast<uint8_t *>(uintptr_t(address)), &error))
        return text_from(error.message).release();
    Py_RETURN_NONE;
}

PyObject *render(PyObject *, PyObject *args) {
    PyObject *source, *box, *resize, *target = nullptr;
    int orientation, fourth_byte = 0;
    if (!PyArg_ParseTuple(args, "O!O!iO|Oi", &PyTuple_Type, &source, &PyTuple_Type, &box,
                          &orientation, &resize, &target, &fourth_byte))
        return nullptr;
    fm_render job{};
    job.struct_bytes = sizeof(job);
    job.orientation = fm_orientation(orientation);
    if (!read_source(source, &job) || !read_rect(box, &job.box)) return nullptr;
    if (resize != Py_None && !read_resize(resize, &job)) return nullptr;
    int32_t width, height;
    fm_render_size(&job, &width, &height);
    if (width < 1 || height < 1) {
        PyErr_SetString(PyExc_ValueError, "a part without pixels");
        return nullptr;
    }
    const Py_ssize_t n_px = Py_ssize_t(width) * height;
    if (!target || target == Py_None) return render_bytes(job, n_px);
    if (PyLong_CheckExact(target)) return render_address(job, target);
    return render_export(job, n_px, target, fourth_byte);
}

} // namespace feedmill
