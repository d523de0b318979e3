// Registration of feedmill._native.
#include "cache.h"
#include "disk_cache.h"
#include "convert.h"
#include "feedmill/feedmill.h"
#include "feedmill/operations.h"
#include "imread.h"
#include "loader.h"
#include "loader_records.h"
#include "operations.h"
#include "python.h"
#include "remote.h"
#include "render.h"
#include "tensor.h"
#include "transcoder.h"
#include "transformer.h"

#include <vector>

namespace feedmill {
namespace {

PyObject *version(PyObject *, PyObject *) { return PyUnicode_FromString(fm_version()); }

PyObject *usable_cpus(PyObject *, PyObject *) { return PyLong_FromUnsignedLong(fm_usable_cpus()); }

// Version of libcurl; "": built without it.
PyObject *libcurl_version(PyObject *, PyObject *) {
    return PyUnicode_FromString(fm_libcurl_version());
}

PyObject *jpeg_version(PyObject *, PyObject *) { return PyUnicode_FromString(fm_jpeg_version()); }

PyObject *formats(PyObject *, PyObject *) { return PyUnicode_FromString(fm_formats()); }

PyObject *jpeg_own_huffman(PyObject *, PyObject *) {
    return PyBool_FromLong(fm_jpeg_own_huffman());
}

// device_count(kind): how many devices can be used. Raises Error with the reason if none can.
PyObject *device_count(PyObject *module, PyObject *args) {
    const char *name;
    fm_device_kind kind;
    if (!PyArg_ParseTuple(args, "s", &name) || !device_kind_from_name(name, &kind)) return nullptr;
    int32_t n = 0;
    fm_error error;
    const int status = without_gil([&] { return fm_device_count(kind, &n, &error); });
    if (!status) return PyLong_FromLong(n);
    const Ref type(PyObject_GetAttrString(module, "Error"));
    const Ref text = type ? text_from(error.message) : Ref();
    if (text) PyErr_SetObject(type.get(), text.get());
    return nullptr;
}

PyObject *indices(PyObject *, PyObject *args) {
    PyObject *sequence;
    long long n;
    if (!PyArg_ParseTuple(args, "OL", &sequence, &n)) return nullptr;
    return bytes_from_indices(sequence, n);
}

// noise(seed, first, n): fm_noise()'s numbers as bytes of float32.
PyObject *noise(PyObject *, PyObject *args) {
    unsigned long long seed, first;
    Py_ssize_t n;
    if (!PyArg_ParseTuple(args, "KKn:noise", &seed, &first, &n)) return nullptr;
    if (n < 0 || n > PY_SSIZE_T_MAX / Py_ssize_t(sizeof(float))) {
        PyErr_SetString(PyExc_ValueError, "n is negative or too large");
        return nullptr;
    }
    std::vector<float> numbers(static_cast<size_t>(n));
    without_gil([&] {
        fm_noise(seed, first, numbers.size(), numbers.data());
        return 0;
    });
    return PyBytes_FromStringAndSize(reinterpret_cast<const char *>(numbers.data()),
                                     n * Py_ssize_t(sizeof(float)));
}

bool add_object(PyObject *module, const char *name, Ref object) {
    return object && !PyModule_AddObjectRef(module, name, object.get());
}

Ref new_exception(const char *name, PyObject *base) {
    return Ref(PyErr_NewException(name, base, nullptr));
}

// NumPy's type codes of the fields of records.
constexpr const char *code_of(uint64_t) { return "u8"; }
constexpr const char *code_of(int64_t) { return "i8"; }
constexpr const char *code_of(uint32_t) { return "u4"; }
constexpr const char *code_of(int32_t) { return "i4"; }

struct Field {
    const char *name, *code;
};

#define FM_X(type, name, meaning) {#name, code_of(type{})},
#define FM_U64(name, meaning) {#name, "u8"},
constexpr Field step_fields[] = {FM_STEP_FIELDS(FM_X) FM_WAIT_CAUSE_FIELDS(FM_U64)
                                     FM_STORAGE_PART_FIELDS(FM_U64)};
constexpr Field sample_fields[] = {FM_SAMPLE_RECORD_FIELDS(FM_X)};
#undef FM_U64
#undef FM_X

// A list of (name, code), an argument for numpy.dtype.
template <size_t n> Ref list_from(const Field (&fields)[n]) {
    Ref list(PyList_New(0));
    for (size_t i = 0; list && i < n; i++) {
        const Ref pair(Py_BuildValue("ss", fields[i].name, fields[i].code));
        if (!pair || PyList_Append(list.get(), pair.get())) return Ref();
    }
    return list;
}

int exec_module(PyObject *module) {
    if (!add_object(module, "Error", new_exception("feedmill._native.Error", PyExc_RuntimeError)) ||
        !add_object(module, "BudgetError",
                    new_exception("feedmill._native.BudgetError", PyExc_ValueError)) ||
        !add_object(module, "Loader", make_loader_type(module)) ||
        !add_object(module, "Cache", make_cache_type(module)) ||
        !add_object(module, "DiskCache", make_disk_cache_type(module)) ||
        !add_object(module, "Remote", make_remote_type(module)) ||
        !add_object(module, "Transcoder", make_transcoder_type(module)) ||
        !add_object(module, "Transformer", make_transformer_type(module)) ||
        !add_object(module, "PACK_REASONS", pack_reasons()) ||
        !add_object(module, "STEP_FIELDS", list_from(step_fields)) ||
        !add_object(module, "SAMPLE_FIELDS", list_from(sample_fields)))
        return -1;
    const struct {
        const char *name;
        int value;
    } constants[] = {{"OK", FM_OK},
                     {"END", FM_END},
                     {"AGAIN", FM_AGAIN},
                     {"FALLBACK", FM_FALLBACK},
                     {"ERR_READ", FM_ERR_READ},
                     {"ERR_FORMAT", FM_ERR_FORMAT},
                     {"ERR_KIND", FM_ERR_KIND},
                     {"ERR_DAMAGED", FM_ERR_DAMAGED},
                     {"ERR_LIMIT", FM_ERR_LIMIT},
                     {"FORMAT_JPEG", FM_FORMAT_JPEG},
                     {"FORMAT_PNG", FM_FORMAT_PNG},
                     {"FORMAT_WEBP", FM_FORMAT_WEBP},
                     {"REJECT_TURNED", FM_REJECT_TURNED},
                     {"REJECT_NOT_RGB", FM_REJECT_NOT_RGB},
                     {"REJECT_NOT_UPRIGHT_JPEG", FM_REJECT_NOT_UPRIGHT_JPEG},
                     {"MAPPING_AFFINE", FM_MAPPING_AFFINE},
                     {"MAPPING_PERSPECTIVE", FM_MAPPING_PERSPECTIVE},
                     {"OPERATION_BLEND", FM_OPERATION_BLEND},
                     {"OPERATION_BLEND_VALUE", FM_OPERATION_BLEND_VALUE},
                     {"OPERATION_BLEND_GRAY", FM_OPERATION_BLEND_GRAY},
                     {"OPERATION_GRAY", FM_OPERATION_GRAY},
                     {"OPERATION_GRAY_BYTES", FM_OPERATION_GRAY_BYTES},
                     {"OPERATION_SMOOTH", FM_OPERATION_SMOOTH},
                     {"OPERATION_HUE", FM_OPERATION_HUE},
                     {"OPERATION_POINT", FM_OPERATION_POINT},
                     {"OPERATION_AUTOCONTRAST", FM_OPERATION_AUTOCONTRAST},
                     {"OPERATION_EQUALIZE", FM_OPERATION_EQUALIZE},
                     {"OPERATION_BOX_BLUR", FM_OPERATION_BOX_BLUR},
                     {"OPERATION_GAUSSIAN_BLUR", FM_OPERATION_GAUSSIAN_BLUR}};
    for (const auto &constant : constants)
        if (PyModule_AddIntConstant(module, constant.name, constant.value)) return -1;
    return 0;
}

// call_between(enter, work, leave): calls enter(), work() and leave(); leave() also if work()
// raises. Returns the result of work(). Python handles signals only between instructions of Python
// code: if enter and leave are written in C, no signal handler runs between them and work(), as it
// can at both ends of a `with` block.
PyObject *call_between(PyObject *, PyObject *args) {
    PyObject *enter, *work, *leave;
    if (!PyArg_ParseTuple(args, "OOO:call_between", &enter, &work, &leave)) return nullptr;
    if (!Ref(PyObject_CallObject(enter, nullptr))) return nullptr;
    Ref result(PyObject_CallObject(work, nullptr));
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    const Ref left(PyObject_CallObject(leave, nullptr));
    if (!result) {
        if (!left) PyErr_WriteUnraisable(leave);
        PyErr_Restore(type, value, traceback);
        return nullptr;
    }
    return left ? result.release() : nullptr;
}

// The item of `self`[0] at a key, passed through `self`[1].
PyObject *item_passed(PyObject *self, PyObject *key) {
    const Ref item(PyObject_GetItem(PyTuple_GetItem(self, 0), key));
    if (!item) return nullptr;
    return PyObject_CallFunctionObjArgs(PyTuple_GetItem(self, 1), item.get(), nullptr);
}

PyMethodDef item_passed_entry = method_entry<item_passed>("item", METH_O, "The item, passed on.");

// passed_items(container, function): a function of a key that returns function(container[key]).
// Tracebacks of container[key] don't show it.
PyObject *passed_items(PyObject *, PyObject *args) {
    PyObject *container, *function;
    if (!PyArg_ParseTuple(args, "OO:passed_items", &container, &function)) return nullptr;
    return PyCFunction_New(&item_passed_entry, args);
}

PyMethodDef functions[] = {
    method_entry<version>("version", METH_NOARGS, "Version of the native library."),
    method_entry<usable_cpus>("usable_cpus", METH_NOARGS, "CPUs by affinity and cgroup quota."),
    method_entry<libcurl_version>("libcurl_version", METH_NOARGS,
                                  "Libraries that read URLs, or ''."),
    method_entry<jpeg_version>("jpeg_version", METH_NOARGS, "Version of libjpeg-turbo."),
    method_entry<imread>("imread", METH_VARARGS,
                         "A JPEG as (bytearray, height, width), or why not."),
    method_entry<image_header>("image_header", METH_VARARGS,
                               "(format, width, height, progressive, components) of an encoded "
                               "image, or why it is not decoded."),
    method_entry<render>("render", METH_VARARGS,
                         "A part of an image, turned, resized and cropped, or why not."),
    method_entry<render_at>("render_at", METH_VARARGS, "Decodes a part to memory, or why not."),
    method_entry<operate>("operate", METH_VARARGS,
                          "An image after an operation as bytes, or why not."),
    method_entry<map_pixels>("map_pixels", METH_VARARGS,
                             "An RGB image after a geometric transform as bytes, or why not."),
    method_entry<table_bytes>("table_bytes", METH_VARARGS, "Integers, clipped, as bytes."),
    method_entry<histogram>("histogram", METH_VARARGS, "Counts of the values of RGB pixels."),
    method_entry<gray_sum>("gray_sum", METH_VARARGS, "The sum of RGB pixels' gray values."),
    method_entry<mix_pixels>("mix_pixels", METH_VARARGS, "A weighted sum of two images."),
    method_entry<scale_pixels>("scale_pixels", METH_VARARGS, "Pixels divided by 255, by channel."),
    method_entry<normalize>("normalize", METH_VARARGS, "(values - mean) / std by plane."),
    method_entry<normalize_pixels>("normalize_pixels", METH_VARARGS,
                                   "(values - mean) / std by channel of a pixel."),
    method_entry<scale_bytes>("scale_bytes", METH_VARARGS, "Bytes * factor / divisor."),
    method_entry<keep_freed_memory>("keep_freed_memory", METH_VARARGS,
                                    "How much freed memory malloc() keeps."),
    method_entry<device_count>("device_count", METH_VARARGS, "Devices of a kind that can be used."),
    method_entry<disk_cache_walk>("disk_cache_walk", METH_VARARGS,
                                  "Calls a function with each entry of a disk cache."),
    method_entry<indices>("indices", METH_VARARGS,
                          "Indices from 0 to n - 1 as bytes of int64, or None."),
    method_entry<jpeg_own_huffman>("jpeg_own_huffman", METH_NOARGS,
                                   "Whether feedmill decodes Huffman codes."),
    method_entry<call_between>("call_between", METH_VARARGS, "Calls three functions in turn."),
    method_entry<passed_items>("passed_items", METH_VARARGS,
                               "Items of a container, passed through a function."),
    method_entry<noise>("noise", METH_VARARGS, "Standard normal numbers as bytes of float32."),
    method_entry<noise_torch>("noise_torch", METH_VARARGS, "The same, as torch draws them."),
    method_entry<formats>("formats", METH_NOARGS, "The formats that are decoded natively."),
    {nullptr, nullptr, 0, nullptr}};
PyModuleDef_Slot slots[] = {{Py_mod_exec, reinterpret_cast<void *>(guarded<exec_module>)},
                            {0, nullptr}};
PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                          "_native",
                          "libfeedmill for Python.",
                          0,
                          functions,
                          slots,
                          nullptr,
                          nullptr,
                          nullptr};

} // namespace
} // namespace feedmill

PyMODINIT_FUNC PyInit__native() { return PyModuleDef_Init(&feedmill::definition); }
