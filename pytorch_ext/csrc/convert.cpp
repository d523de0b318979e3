#include "convert.h"

#include <cstring>

#include "cache.h"
#include "disk_cache.h"
#include "remote.h"

namespace feedmill {

namespace {

// The fm_allocator of a Python function: alloc(n_bytes) -> (address, owner). The C library calls
// both with or without the GIL; no exception may leave them.
void *allocate(void *user, size_t bytes, void **handle) {
    auto *const config = static_cast<Config *>(user);
    const PyGILState_STATE gil = ensure_gil();
    void *memory = nullptr;
    PyObject *const result = PyObject_CallFunction(config->alloc.get(), "n", Py_ssize_t(bytes));
    if (result) {
        PyObject *const address = PyTuple_GetItem(result, 0);
        PyObject *const owner = address ? PyTuple_GetItem(result, 1) : nullptr;
        if (owner) memory = PyLong_AsVoidPtr(address);
        if (memory) {
            Py_INCREF(owner);
            *handle = owner;
        }
        Py_DECREF(result);
    }
    if (!memory && PyErr_Occurred()) {
        PyObject *type, *value, *traceback;
        PyErr_Fetch(&type, &value, &traceback);
        PyErr_NormalizeException(&type, &value, &traceback);
        config->alloc_exception = Ref(value);
        Py_XDECREF(type);
        Py_XDECREF(traceback);
    }
    PyGILState_Release(gil);
    return memory;
}

void release(void *, void *, void *handle) {
    const PyGILState_STATE gil = ensure_gil();
    Py_DECREF(static_cast<PyObject *>(handle));
    PyGILState_Release(gil);
}

// fm_custom_reader.read: `user` is a function read(name, offset, n_bytes) that returns bytes, or a
// str that says why not.
void read_by_python(void *user, const char *name, uint64_t offset_bytes, uint64_t range_bytes,
                    fm_custom_read *result) {
    const PyGILState_STATE gil = ensure_gil();
    {
        const Ref path(PyUnicode_DecodeFSDefault(name));
        const Ref found(path ? PyObject_CallFunction(static_cast<PyObject *>(user), "OKK",
                                                     path.get(), (unsigned long long)offset_bytes,
                                                     (unsigned long long)range_bytes)
                             : nullptr);
        char *bytes = nullptr;
        Py_ssize_t n_bytes = 0;
        if (found && PyBytes_Check(found.get()) &&
            PyBytes_AsStringAndSize(found.get(), &bytes, &n_bytes) == 0) {
            without_gil([&] { fm_custom_read_put(result, bytes, size_t(n_bytes)); });
        } else if (found && PyUnicode_Check(found.get())) {
            const Ref text(PyUnicode_AsEncodedString(found.get(), "utf-8", "replace"));
            fm_custom_read_fail(result, text ? PyBytes_AsString(text.get()) : "unknown error");
        } else {
            fm_custom_read_fail(result, "the function that reads it has failed");
        }
        PyErr_Clear();
    }
    PyGILState_Release(gil);
}

void retain_function(void *user) {
    const PyGILState_STATE gil = ensure_gil();
    Py_INCREF(static_cast<PyObject *>(user));
    PyGILState_Release(gil);
}

void release_function(void *user) { release(nullptr, nullptr, user); }

bool values_from_sequence(PyObject *sequence, fm_op *op) {
    const Py_ssize_t n = PySequence_Size(sequence);
    if (n < 0) return false;
    if (n > FM_N_OP_VALUES) {
        PyErr_Format(PyExc_ValueError, "an op has %zd values; %d at most", n, FM_N_OP_VALUES);
        return false;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        const Ref value(PySequence_GetItem(sequence, i));
        if (!value) return false;
        op->values[i] = PyFloat_AsDouble(value.get());
        if (PyErr_Occurred()) return false;
    }
    return true;
}

// The fields of planner/plan.py's Op, in order; after the semicolon, the name in error messages.
constexpr char op_format[] =
    "iiiidddddiiiO|pii;an op must be a tuple (kind, height, width, max_size, "
    "scale_low, scale_high, ratio_low, ratio_high, p, filter, n_children, "
    "n_within, values, is_v2, arithmetic, sampling)";

bool op_from_tuple(PyObject *item, fm_op *op) {
    if (!PyTuple_Check(item)) {
        PyErr_SetString(PyExc_TypeError, std::strchr(op_format, ';') + 1);
        return false;
    }
    int kind = 0, filter = 0, is_v2 = 0, arithmetic = 0, sampling = 0;
    PyObject *values = nullptr;
    if (!PyArg_ParseTuple(item, op_format, &kind, &op->height, &op->width, &op->max_size,
                          &op->scale[0], &op->scale[1], &op->ratio[0], &op->ratio[1], &op->p,
                          &filter, &op->n_children, &op->n_within, &values, &is_v2, &arithmetic,
                          &sampling) ||
        !values_from_sequence(values, op))
        return false;
    op->kind = static_cast<fm_op_kind>(kind);
    op->filter = static_cast<fm_filter>(filter);
    op->is_v2 = is_v2 != 0;
    op->arithmetic = static_cast<fm_arithmetic>(arithmetic);
    op->sampling = static_cast<uint32_t>(sampling);
    return true;
}

bool ops_from_sequence(PyObject *sequence, std::vector<fm_op> *out) {
    const Py_ssize_t n = PySequence_Size(sequence);
    for (Py_ssize_t i = 0; i < n; i++) {
        const Ref item(PySequence_GetItem(sequence, i));
        fm_op op{};
        if (!item || !op_from_tuple(item.get(), &op)) return false;
        out->push_back(op);
    }
    return n >= 0;
}

bool parse_choice(const char *what, const char *value, const char *const *names, int n, int first,
                  int *out) {
    std::string allowed;
    for (int i = 0; i < n; i++) {
        if (std::strcmp(value, names[i]) == 0) {
            *out = first + i;
            return true;
        }
        allowed += (i ? ", '" : "'") + std::string(names[i]) + "'";
    }
    PyErr_Format(PyExc_ValueError, "%s is '%s'; it must be one of %s", what, value,
                 allowed.c_str());
    return false;
}

// Copies a table of values of `dtype` to `table`, and points `transform` at it.
bool table_from_bytes(PyObject *bytes, std::string *table, fm_transform *transform) {
    if (!bytes || bytes == Py_None) return true;
    char *data = nullptr;
    Py_ssize_t n_bytes = 0;
    if (PyBytes_AsStringAndSize(bytes, &data, &n_bytes)) return false;
    const size_t value_bytes = transform->dtype == FM_FLOAT32 ? 4 : 2;
    if (size_t(n_bytes) != 3 * 256 * value_bytes) {
        PyErr_Format(PyExc_ValueError,
                     "value_table has %zd bytes; it must be 3 x 256 values of %zu bytes", n_bytes,
                     value_bytes);
        return false;
    }
    table->assign(data, size_t(n_bytes));
    transform->value_table = table->data();
    return true;
}

// PyArg_ParseTuple() requires a tuple. False: a Python exception is set.
bool check_tuple(const char *what, PyObject *object) {
    if (PyTuple_Check(object)) return true;
    PyErr_Format(PyExc_TypeError, "%s is %R; it must be a tuple", what, object);
    return false;
}

// Parses (run_taps, values or None, mean, std) of fm_float_resize.
bool float_resize_from_tuple(PyObject *tuple, std::string *values, fm_transform *transform) {
    if (!tuple || tuple == Py_None) return true;
    PyObject *bytes = nullptr;
    char *data = nullptr;
    Py_ssize_t n_bytes = 0;
    float *const mean = transform->mean, *const std = transform->std;
    if (!check_tuple("float_resize", tuple) ||
        !PyArg_ParseTuple(tuple, "iO(fff)(fff)", &transform->float_resize.run_taps, &bytes,
                          &mean[0], &mean[1], &mean[2], &std[0], &std[1], &std[2]))
        return false;
    if (bytes == Py_None) return true;
    if (PyBytes_AsStringAndSize(bytes, &data, &n_bytes)) return false;
    if (size_t(n_bytes) != 3 * 256 * sizeof(float)) {
        PyErr_Format(PyExc_ValueError,
                     "float_resize has %zd bytes of values; it must be 3 x 256 float32 values",
                     n_bytes);
        return false;
    }
    // A std::string's memory is aligned for any type.
    values->assign(data, size_t(n_bytes));
    transform->float_resize.values = static_cast<const float *>(static_cast<void *>(&(*values)[0]));
    return true;
}

// NumPy's limit.
constexpr int kMaxDimensions = 64;

bool shape_from_tuple(PyObject *tuple, std::vector<int64_t> *out) {
    const Py_ssize_t n = PySequence_Size(tuple);
    if (n > kMaxDimensions) {
        PyErr_Format(PyExc_ValueError, "a row has %zd dimensions; %d at most", n, kMaxDimensions);
        return false;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        const Ref item(PySequence_GetItem(tuple, i));
        const long long value = item ? PyLong_AsLongLong(item.get()) : -1;
        if (PyErr_Occurred()) return false;
        out->push_back(value);
    }
    return n >= 0;
}

bool arrays_from_sequence(PyObject *sequence, Config *out) {
    if (!sequence || sequence == Py_None) return true;
    const Py_ssize_t n = PySequence_Size(sequence);
    for (Py_ssize_t i = 0; i < n; i++) {
        const Ref item(PySequence_GetItem(sequence, i));
        if (!item) return false;
        unsigned long long address = 0, n_rows = 0, row_bytes = 0, stride = 0;
        PyObject *shape = nullptr;
        Section section;
        if (!check_tuple("an array", item.get()) ||
            !PyArg_ParseTuple(item.get(), "KKKKbbO", &address, &n_rows, &row_bytes, &stride,
                              &section.code, &section.bits, &shape) ||
            !shape_from_tuple(shape, &section.shape))
            return false;
        for (size_t d = section.shape.size(); d-- > 0;) section.order.push_back(int64_t(d));
        out->arrays.push_back({reinterpret_cast<const void *>(uintptr_t(address)), size_t(n_rows),
                               size_t(row_bytes), size_t(stride)});
        out->sections.push_back(std::move(section));
    }
    out->config.arrays.list = out->arrays.data();
    out->config.arrays.n = out->arrays.size();
    return n >= 0;
}

// Parses (height, width, channels, channel_stride, line_stride, pixel_stride) of the first array's
// images.
bool image_from_tuple(PyObject *tuple, Config *out) {
    if (!tuple || tuple == Py_None) return true;
    fm_transform &transform = out->config.transform;
    fm_arrays &arrays = out->config.arrays;
    arrays.images = true;
    if (!check_tuple("image", tuple) ||
        !PyArg_ParseTuple(tuple, "iiiIII", &transform.in_height, &transform.in_width,
                          &transform.in_channels, &arrays.channel_stride, &arrays.line_stride,
                          &arrays.pixel_stride))
        return false;
    if (transform.layout == FM_NHWC && !out->sections.empty()) out->sections[0].order = {0, 2, 1};
    return true;
}

// Parses (ops, value_table, resize_order, float_resize) of each further view. The rest of a view's
// transform is as the first one's.
bool views_from_sequence(PyObject *sequence, Config *out) {
    if (!sequence || sequence == Py_None) return true;
    const Py_ssize_t n = PySequence_Size(sequence);
    if (n < 0) return false;
    out->views.resize(size_t(n));
    for (View &view : out->views) {
        const Ref item(PySequence_GetItem(sequence, &view - out->views.data()));
        PyObject *ops = nullptr, *table = nullptr, *float_resize = nullptr;
        int resize_order = 0;
        fm_transform transform = out->config.transform;
        transform.value_table = nullptr;
        transform.float_resize = {};
        if (!item || !check_tuple("a view", item.get()) ||
            !PyArg_ParseTuple(item.get(), "OOiO", &ops, &table, &resize_order, &float_resize) ||
            !ops_from_sequence(ops, &view.ops) ||
            !table_from_bytes(table, &view.value_table, &transform) ||
            !float_resize_from_tuple(float_resize, &view.resized_values, &transform))
            return false;
        transform.ops = view.ops.data();
        transform.n_ops = view.ops.size();
        transform.resize_order = static_cast<fm_resize_order>(resize_order);
        out->more_views.push_back(transform);
    }
    out->config.more_views = out->more_views.data();
    out->config.n_more_views = out->more_views.size();
    if (n > 0) out->sections.resize(size_t(n) + 1);
    return true;
}

// Parses (header, body_bytes) of files of raw values.
bool raw_from_tuple(PyObject *tuple, Config *out) {
    if (!tuple || tuple == Py_None) return true;
    PyObject *header = nullptr;
    unsigned long long body_bytes = 0;
    char *data = nullptr;
    Py_ssize_t n_bytes = 0;
    if (!check_tuple("raw", tuple) || !PyArg_ParseTuple(tuple, "SK", &header, &body_bytes) ||
        PyBytes_AsStringAndSize(header, &data, &n_bytes))
        return false;
    out->header.assign(data, size_t(n_bytes));
    out->config.raw = {out->header.data(), out->header.size(), size_t(body_bytes)};
    return true;
}

// Parses (kind, index, whether the device converts).
bool device_from_tuple(PyObject *tuple, fm_device_config *out) {
    if (!tuple || tuple == Py_None) return true;
    const char *kind = nullptr;
    int index = 0, convert = 0;
    if (!check_tuple("device", tuple) || !PyArg_ParseTuple(tuple, "sip", &kind, &index, &convert) ||
        !device_kind_from_name(kind, &out->kind))
        return false;
    out->index = index;
    out->convert = convert != 0;
    out->defer_wait = true; // the caller records events around the wait
    return true;
}

} // namespace

bool device_kind_from_name(const char *name, fm_device_kind *out) {
    static const char *const names[] = {"host", "cuda"};
    int choice = 0;
    if (!parse_choice("device", name, names, 2, FM_DEVICE_HOST, &choice)) return false;
    *out = static_cast<fm_device_kind>(choice);
    return true;
}

PyObject *bytes_from_indices(PyObject *indices, long long n) {
    const Py_ssize_t n_indices = PySequence_Size(indices);
    if (n_indices < 0) return nullptr;
    if (size_t(n_indices) > PY_SSIZE_T_MAX / sizeof(int64_t)) return PyErr_NoMemory();
    Ref bytes(PyBytes_FromStringAndSize(nullptr, n_indices * Py_ssize_t(sizeof(int64_t))));
    if (!bytes) return nullptr;
    char *const values = PyBytes_AsString(bytes.get());
    for (Py_ssize_t i = 0; i < n_indices; i++) {
        const Ref index(PySequence_GetItem(indices, i));
        if (!index) return nullptr;
        int overflow = 0;
        const bool exact = PyLong_CheckExact(index.get());
        const int64_t value = exact ? PyLong_AsLongLongAndOverflow(index.get(), &overflow) : -1;
        if (overflow || value < 0 || value >= n) Py_RETURN_NONE;
        std::memcpy(values + size_t(i) * sizeof(value), &value, sizeof(value));
    }
    return bytes.release();
}

namespace {

// The keyword arguments of _native.Loader that are not written to an fm_config by parsing them.
struct Arguments {
    PyObject *ops = nullptr, *value_table = nullptr, *alloc = nullptr, *cache = nullptr;
    PyObject *arrays = nullptr, *image = nullptr, *owners = nullptr, *raw = nullptr;
    PyObject *device = nullptr, *views = nullptr, *remote = nullptr, *read = nullptr;
    PyObject *disk_cache = nullptr, *float_resize = nullptr, *seek_index = nullptr;
    const char *dtype = nullptr, *layout = "nchw", *reader = "auto";
    int resize_order = 0, scaled = 0, have_files = 0;
    unsigned long long n_samples = 0, budget = 0, read_ahead = 0, max_file = 0, max_pixels = 0;

    bool parse(PyObject *args, PyObject *kwargs, fm_config &config);
};

bool Arguments::parse(PyObject *args, PyObject *kwargs, fm_config &config) {
    static const char *const names[] = {"ops",
                                        "dtype",
                                        "n_samples",
                                        "batch_size",
                                        "value_table",
                                        "resize_order",
                                        "layout",
                                        "n_threads",
                                        "prefetch_batches",
                                        "memory_budget_bytes",
                                        "read_ahead_bytes",
                                        "reader",
                                        "read_depth",
                                        "max_file_bytes",
                                        "max_image_pixels",
                                        "sample_records",
                                        "alloc",
                                        "cache",
                                        "arrays",
                                        "image",
                                        "owners",
                                        "raw",
                                        "device",
                                        "rejected_formats",
                                        "views",
                                        "decodes_scaled",
                                        "remote",
                                        "read",
                                        "read_threads",
                                        "disk_cache",
                                        "float_resize",
                                        "seek_index",
                                        "views_have_files",
                                        nullptr};
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "|$OsKIOisIIKKsIKKIOOOOOOOIOpOOIOOOp", const_cast<char **>(names), &ops,
            &dtype, &n_samples, &config.batch_size, &value_table, &resize_order, &layout,
            &config.n_threads, &config.prefetch_batches, &budget, &read_ahead, &reader,
            &config.read_depth, &max_file, &max_pixels, &config.sample_records, &alloc, &cache,
            &arrays, &image, &owners, &raw, &device, &config.rejected_formats, &views, &scaled,
            &remote, &read, &config.custom_reader.n_threads, &disk_cache, &float_resize,
            &seek_index, &have_files))
        return false;
    config.decodes_scaled = scaled != 0;
    config.views_have_files = have_files != 0;
    // A format string can't require keyword-only arguments.
    if (ops && dtype) return true;
    PyErr_SetString(PyExc_TypeError, "ops, dtype, n_samples and batch_size must be given");
    return false;
}

// Parses the arguments that are one of several names.
bool set_choices(const Arguments &arguments, fm_config &config) {
    static const char *const dtypes[] = {"uint8", "float32", "float16", "bfloat16"};
    static const char *const layouts[] = {"nchw", "nhwc"};
    static const char *const readers[] = {"auto", "uring", "pread"};
    int choice = 0;
    if (!parse_choice("dtype", arguments.dtype, dtypes, 4, FM_UINT8, &choice)) return false;
    config.transform.dtype = static_cast<fm_dtype>(choice);
    if (!parse_choice("layout", arguments.layout, layouts, 2, FM_NCHW, &choice)) return false;
    config.transform.layout = static_cast<fm_layout>(choice);
    if (!parse_choice("reader", arguments.reader, readers, 3, FM_READER_AUTO, &choice))
        return false;
    config.reader = static_cast<fm_reader_kind>(choice);
    return true;
}

void set_numbers(const Arguments &arguments, fm_config &config) {
    config.transform.resize_order = static_cast<fm_resize_order>(arguments.resize_order);
    config.n_samples = arguments.n_samples;
    config.memory_budget_bytes = arguments.budget;
    config.read_ahead_bytes = arguments.read_ahead;
    if (arguments.max_file) config.max_file_bytes = arguments.max_file;
    if (arguments.max_pixels) config.max_image_pixels = arguments.max_pixels;
    config.fallback = true;
}

// A number of bytes, a file's path, or None.
bool set_seek_index(PyObject *given, Config *out) {
    if (!given || given == Py_None) return true;
    if (PyLong_Check(given)) {
        out->config.seek_index_bytes = PyLong_AsUnsignedLongLong(given);
        return !PyErr_Occurred();
    }
    PyObject *path = nullptr;
    if (!PyUnicode_FSConverter(given, &path)) return false;
    out->seek_index_path = Ref(path);
    out->config.seek_index_path = PyBytes_AsString(path);
    return true;
}

} // namespace

bool config_from_kwargs(PyObject *args, PyObject *kwargs, Config *out) {
    fm_config &config = out->config;
    fm_config_init(&config);
    Arguments given;
    if (!given.parse(args, kwargs, config) || !set_choices(given, config)) return false;
    if (!ops_from_sequence(given.ops, &out->ops) ||
        !table_from_bytes(given.value_table, &out->value_table, &config.transform) ||
        !float_resize_from_tuple(given.float_resize, &out->resized_values, &config.transform))
        return false;
    out->owners = Ref::borrow(given.owners);
    if (!arrays_from_sequence(given.arrays, out) || !image_from_tuple(given.image, out) ||
        !raw_from_tuple(given.raw, out) || !device_from_tuple(given.device, &config.device))
        return false;
    config.transform.ops = out->ops.data();
    config.transform.n_ops = out->ops.size();
    set_numbers(given, config);
    if (!set_seek_index(given.seek_index, out)) return false;
    if (!views_from_sequence(given.views, out)) return false;
    if (given.cache && given.cache != Py_None) {
        config.cache = cache_from_object(given.cache);
        if (!config.cache) return false;
        out->cache = Ref::borrow(given.cache);
    }
    if (given.remote && given.remote != Py_None) {
        config.remote = remote_from_object(given.remote);
        if (!config.remote) return false;
        out->remote = Ref::borrow(given.remote);
    }
    if (given.disk_cache && given.disk_cache != Py_None) {
        config.disk_cache = disk_cache_from_object(given.disk_cache);
        if (!config.disk_cache) return false;
        out->disk_cache = Ref::borrow(given.disk_cache);
    }
    if (given.read && given.read != Py_None) {
        out->read = Ref::borrow(given.read);
        config.custom_reader = {read_by_python, retain_function, release_function, given.read,
                                config.custom_reader.n_threads};
    }
    if (given.alloc && given.alloc != Py_None) {
        out->alloc = Ref::borrow(given.alloc);
        config.allocator = {out, allocate, release, true};
    }
    return true;
}

PyObject *raise_status(const ErrorTypes &types, const fm_error &error) {
    if (PyErr_Occurred()) return nullptr;
    PyObject *type = types.error.get();
    if (error.status == FM_ERR_ARGUMENT) type = PyExc_ValueError;
    if (error.status == FM_ERR_BUDGET) type = types.budget.get();
    if (error.status == FM_ERR_NOMEM) type = PyExc_MemoryError;
    const Ref text = text_from(error.message);
    if (!text) return nullptr;
    const Ref exception(PyObject_CallFunctionObjArgs(type, text.get(), nullptr));
    if (!exception) return nullptr;
    if (type == types.error.get()) {
        const Ref status(PyLong_FromLong(error.status));
        const Ref index(PyLong_FromLongLong(error.index));
        if (!status || PyObject_SetAttrString(exception.get(), "status", status.get()) || !index ||
            PyObject_SetAttrString(exception.get(), "index", index.get()))
            return nullptr;
    }
    PyErr_SetObject(type, exception.get());
    return nullptr;
}

namespace {

bool set_item(PyObject *dict, const char *name, PyObject *owned) {
    const Ref value(owned);
    return value && PyDict_SetItemString(dict, name, value.get()) == 0;
}

} // namespace

PyObject *dict_from_stats(const fm_stats &stats) {
    Ref owner(PyDict_New());
    PyObject *const dict = owner.get();
    bool ok = dict != nullptr;
#define FM_X(name, meaning) \
    ok = ok && set_item(dict, #name, PyLong_FromUnsignedLongLong(stats.name));
    FM_STATS_FIELDS(FM_X)
#undef FM_X
#define FM_X(name, meaning) \
    ok = ok && set_item(dict, "wait_" #name, PyLong_FromUnsignedLongLong(stats.causes.name));
    FM_WAIT_CAUSE_FIELDS(FM_X)
#undef FM_X
#define FM_X(name, meaning) \
    ok = ok && set_item(dict, #name, PyLong_FromUnsignedLongLong(stats.storage.name));
    FM_STORAGE_PART_FIELDS(FM_X)
#undef FM_X
    ok = ok && set_item(dict, "reader", PyUnicode_FromString(stats.reader));
    ok = ok && set_item(dict, "reader_reason", PyUnicode_FromString(stats.reader_reason));
    ok = ok && set_item(dict, "cpu", PyUnicode_FromString(stats.cpu));
    return ok ? owner.release() : nullptr;
}

} // namespace feedmill
