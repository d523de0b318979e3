#include "loader.h"

#include <unistd.h>

#include <cstring>
#include <deque>
#include <new>
#include <utility>

#include "batch.h"
#include "convert.h"

namespace feedmill {
namespace {

// A wait for a batch is cut into slices, so that Ctrl-C gets through.
constexpr int64_t kSliceNs = 50'000'000;
constexpr size_t kRecordsPerCall = 1024;
// PyBUF_WRITE, which the limited API's headers name from Python 3.11 on only.
constexpr int kBufferWrite = 0x200;

// The image bytes of each batch that is on its way, oldest first; fm_loader_n_pending() of them.
using Held = std::deque<References>;

struct Loader {
    PyObject_HEAD fm_loader *handle;
    Config *config;
    Held *held;
    ErrorTypes error_types;
    long pid;
    Py_ssize_t slot_bytes;
    int channels, height, width;
};

Loader *as_loader(PyObject *self) { return reinterpret_cast<Loader *>(self); }

PyObject *raise_error(Loader *self, const fm_error &error) {
    // What the Python allocator raised says more than "no memory".
    if (error.status == FM_ERR_NOMEM && self->config && self->config->alloc_exception) {
        PyObject *const exception = self->config->alloc_exception;
        self->config->alloc_exception = nullptr;
        PyErr_SetObject(reinterpret_cast<PyObject *>(Py_TYPE(exception)), exception);
        Py_DECREF(exception);
        return nullptr;
    }
    return raise_status(self->error_types, error);
}

// Lets go of the bytes of batches that have left: all but the youngest n_pending. Giving up a
// reference may run Python code, which may come back here: it comes last.
void keep_youngest(Loader *self, size_t n_pending) {
    Held left;
    while (self->held && self->held->size() > n_pending) {
        left.push_back(std::move(self->held->front()));
        self->held->pop_front();
    }
}

bool check_open(Loader *self) {
    if (self->handle) return true;
    PyErr_SetString(PyExc_ValueError, "this loader is closed");
    return false;
}

PyObject *none_or_raise(Loader *self, int status, const fm_error &error) {
    if (status) return raise_error(self, error);
    Py_RETURN_NONE;
}

// Where a batch holds the arrays' rows; of images as they come out.
bool set_sections(Loader *self) {
    std::vector<Section> &sections = self->config->sections;
    for (size_t i = 0; i < sections.size(); i++) {
        if (fm_loader_section(self->handle, i, &sections[i].offset, nullptr)) {
            PyErr_SetString(PyExc_RuntimeError, "an array has no place in the batch");
            return false;
        }
    }
    if (!sections.empty() && self->config->config.arrays.images) {
        sections[0].shape = {self->channels, self->height, self->width};
        set_image_type(&sections[0], self->config->config.transform.dtype);
    }
    return true;
}

// ---- life ---------------------------------------------------------------------------------------

int loader_init(PyObject *object, PyObject *args, PyObject *kwargs) {
    Loader *const self = as_loader(object);
    if (self->config) {
        PyErr_SetString(PyExc_RuntimeError, "a loader is opened once");
        return -1;
    }
    PyObject *const module = PyType_GetModule(Py_TYPE(object));
    self->error_types.error = module ? PyObject_GetAttrString(module, "Error") : nullptr;
    self->error_types.budget = module ? PyObject_GetAttrString(module, "BudgetError") : nullptr;
    self->config = new (std::nothrow) Config{};
    self->held = new (std::nothrow) Held{};
    if (!self->error_types.error || !self->error_types.budget || !self->config || !self->held) {
        if (!PyErr_Occurred()) PyErr_NoMemory();
        return -1;
    }
    if (!config_from_kwargs(args, kwargs, self->config)) return -1;
    fm_error error;
    int status;
    Py_BEGIN_ALLOW_THREADS status = fm_loader_open(&self->handle, &self->config->config, &error);
    Py_END_ALLOW_THREADS if (status) {
        raise_error(self, error);
        return -1;
    }
    self->pid = long(getpid());
    fm_stats stats;
    fm_loader_stats(self->handle, &stats);
    self->slot_bytes = Py_ssize_t(stats.slot_bytes);
    fm_loader_out_size(self->handle, &self->height, &self->width);
    self->channels = fm_loader_out_channels(self->handle);
    return set_sections(self) ? 0 : -1;
}

PyObject *loader_close(PyObject *object, PyObject *) {
    Loader *const self = as_loader(object);
    // Taken together: a second call, while this one waits, must not free what threads still read.
    fm_loader *handle = self->handle;
    Held held;
    if (self->held) std::swap(held, *self->held);
    self->handle = nullptr;
    PyObject *const owners = self->config ? self->config->owners : nullptr;
    if (self->config) self->config->owners = nullptr;
    Py_BEGIN_ALLOW_THREADS fm_loader_close(&handle);
    Py_END_ALLOW_THREADS Py_XDECREF(owners);
    Py_RETURN_NONE;
}

void loader_dealloc(PyObject *object) {
    Loader *const self = as_loader(object);
    PyTypeObject *const type = Py_TYPE(object);
    PyObject *const none = loader_close(object, nullptr);
    Py_XDECREF(none);
    delete self->held;
    delete self->config;
    Py_XDECREF(self->error_types.error);
    Py_XDECREF(self->error_types.budget);
    auto *const free_object = reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free));
    free_object(object);
    Py_DECREF(type);
}

// ---- epochs -------------------------------------------------------------------------------------

PyObject *loader_start(PyObject *object, PyObject *args) {
    Loader *const self = as_loader(object);
    unsigned long long seed;
    unsigned int number;
    int ahead = 0;
    if (!PyArg_ParseTuple(args, "KI|p", &seed, &number, &ahead) || !check_open(self))
        return nullptr;
    fm_epoch epoch{};
    epoch.seed = seed;
    epoch.number = number;
    epoch.ahead = ahead != 0;
    fm_error error;
    int status;
    Py_BEGIN_ALLOW_THREADS status = fm_loader_start(self->handle, &epoch, &error);
    Py_END_ALLOW_THREADS
        // Wrong arguments leave the running epoch as it is.
        if (status != FM_ERR_ARGUMENT) keep_youngest(self, 0);
    return none_or_raise(self, status, error);
}

PyObject *loader_submit(PyObject *object, PyObject *args, PyObject *kwargs) {
    static const char *const names[] = {"indices", "paths", "data", "labels", nullptr};
    Loader *const self = as_loader(object);
    PyObject *indices, *paths, *data = Py_None, *labels = Py_None;
    Samples batch;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|OO", const_cast<char **>(names), &indices,
                                     &paths, &data, &labels) ||
        !check_open(self) || !batch.fill(indices, paths, data, labels))
        return nullptr;
    fm_error error;
    int status;
    Py_BEGIN_ALLOW_THREADS status =
        fm_loader_submit(self->handle, batch.samples.data(), batch.samples.size(), &error);
    Py_END_ALLOW_THREADS if (status == FM_OK) self->held->push_back(std::move(batch.images));
    if (status < 0) return raise_error(self, error);
    return PyBool_FromLong(status == FM_OK);
}

PyObject *loader_submit_rows(PyObject *object, PyObject *args) {
    Loader *const self = as_loader(object);
    PyObject *indices, *rows = Py_None;
    if (!PyArg_ParseTuple(args, "S|O", &indices, &rows) || !check_open(self)) return nullptr;
    const Py_ssize_t n_bytes = PyBytes_Size(indices);
    if (n_bytes % Py_ssize_t(sizeof(int64_t)) ||
        (rows != Py_None && (!PyBytes_Check(rows) || PyBytes_Size(rows) != n_bytes))) {
        PyErr_SetString(PyExc_ValueError, "indices and rows must be int64 values, as many of both");
        return nullptr;
    }
    // bytes objects are aligned as memory of malloc()'s, but for their header of 32 bytes.
    const auto *const values = reinterpret_cast<const int64_t *>(PyBytes_AsString(indices));
    const auto *const numbers =
        rows == Py_None ? nullptr : reinterpret_cast<const int64_t *>(PyBytes_AsString(rows));
    fm_error error;
    const int status = fm_loader_submit_rows(self->handle, values, numbers,
                                             size_t(n_bytes) / sizeof(int64_t), &error);
    if (status < 0) return raise_error(self, error);
    if (status == FM_OK) self->held->emplace_back();
    return PyBool_FromLong(status == FM_OK);
}

PyObject *loader_finish(PyObject *object, PyObject *) {
    Loader *const self = as_loader(object);
    if (!check_open(self)) return nullptr;
    fm_error error;
    const int status = fm_loader_finish(self->handle, &error);
    return none_or_raise(self, status, error);
}

PyObject *loader_stop(PyObject *object, PyObject *) {
    Loader *const self = as_loader(object);
    if (!check_open(self)) return nullptr;
    fm_error error;
    int status;
    Py_BEGIN_ALLOW_THREADS status = fm_loader_stop(self->handle, &error);
    Py_END_ALLOW_THREADS keep_youngest(self, 0);
    return none_or_raise(self, status, error);
}

// ---- batches ------------------------------------------------------------------------------------

// The outcome of fm_loader_next() within the time; false: a Python exception is set (a signal's).
bool wait_for_next(Loader *self, int64_t timeout_ns, fm_batch *batch, fm_error *error,
                   int *status) {
    int64_t left_ns = timeout_ns;
    for (;;) {
        const bool last = timeout_ns >= 0 && left_ns <= kSliceNs;
        const int64_t slice_ns = last ? left_ns : kSliceNs;
        Py_BEGIN_ALLOW_THREADS *status = fm_loader_next(self->handle, slice_ns, batch, error);
        Py_END_ALLOW_THREADS if (*status != FM_AGAIN || last) return true;
        // AGAIN at once, with nothing submitted, would spin here: the caller must submit first.
        if (fm_loader_n_pending(self->handle) == 0) return true;
        if (PyErr_CheckSignals()) return false;
        left_ns -= slice_ns;
    }
}

template <typename Record> PyObject *bytes_from(const Record *records, size_t n) {
    return PyBytes_FromStringAndSize(reinterpret_cast<const char *>(records),
                                     Py_ssize_t(n * sizeof(Record)));
}

bool is_sample_error(int status) { return status <= FM_ERR_READ && status >= FM_ERR_LIMIT; }

// What next() gives for a batch.
PyObject *payload_of(Loader *self, fm_batch *batch) {
    const Config *const config = self->config;
    if (config->config.device.kind) Py_RETURN_NONE; // it is in what the caller offered
    if (config->alloc) return static_cast<PyObject *>(batch->memory_handle);
    return config->sections.empty() ? capsule_from_batch(batch)
                                    : capsules_from_batch(batch, config->sections);
}

// (outcome, payload, samples), as _native.pyi describes it.
PyObject *outcome_of(Loader *self, int status, fm_batch *batch, const fm_error &error) {
    if (status == FM_OK) {
        const unsigned int n = batch->n;
        PyObject *const payload = payload_of(self, batch);
        return payload ? Py_BuildValue("iNI", status, payload, n) : nullptr;
    }
    if (status > 0) return Py_BuildValue("iOI", status, Py_None, 0u);
    if (!is_sample_error(status) || error.index < 0) return raise_error(self, error);
    PyObject *const text =
        PyUnicode_DecodeUTF8(error.message, Py_ssize_t(std::strlen(error.message)), "replace");
    return text ? Py_BuildValue("iNI", status, text, 0u) : nullptr;
}

PyObject *loader_next(PyObject *object, PyObject *args) {
    Loader *const self = as_loader(object);
    long long timeout_ns;
    if (!PyArg_ParseTuple(args, "L", &timeout_ns) || !check_open(self)) return nullptr;
    fm_batch batch;
    fm_error error;
    int status = FM_OK;
    if (!wait_for_next(self, timeout_ns, &batch, &error, &status)) return nullptr;
    keep_youngest(self, fm_loader_n_pending(self->handle));
    return outcome_of(self, status, &batch, error);
}

void *pointer_from(unsigned long long address) {
    return reinterpret_cast<void *>(uintptr_t(address));
}

PyObject *loader_offer(PyObject *object, PyObject *args) {
    Loader *const self = as_loader(object);
    unsigned long long images, image_bytes, labels, label_bytes, stream;
    if (!PyArg_ParseTuple(args, "KKKKK", &images, &image_bytes, &labels, &label_bytes, &stream) ||
        !check_open(self))
        return nullptr;
    fm_target target{};
    target.images = pointer_from(images);
    target.image_bytes = size_t(image_bytes);
    target.labels = static_cast<int64_t *>(pointer_from(labels));
    target.label_bytes = size_t(label_bytes);
    target.stream = pointer_from(stream);
    fm_error error;
    int status;
    Py_BEGIN_ALLOW_THREADS status = fm_loader_offer(self->handle, &target, &error);
    Py_END_ALLOW_THREADS if (status < 0) return raise_error(self, error);
    return PyBool_FromLong(status == FM_OK);
}

PyObject *loader_wait(PyObject *object, PyObject *args) {
    Loader *const self = as_loader(object);
    unsigned long long stream;
    if (!PyArg_ParseTuple(args, "K", &stream) || !check_open(self)) return nullptr;
    fm_error error;
    int status;
    Py_BEGIN_ALLOW_THREADS status = fm_loader_wait(self->handle, pointer_from(stream), &error);
    Py_END_ALLOW_THREADS return none_or_raise(self, status, error);
}

PyObject *loader_fallback(PyObject *object, PyObject *) {
    Loader *const self = as_loader(object);
    fm_fallback fallback;
    if (!check_open(self)) return nullptr;
    if (fm_loader_fallback(self->handle, &fallback)) {
        PyErr_SetString(PyExc_RuntimeError, "no fallback is pending");
        return nullptr;
    }
    PyObject *const path = PyUnicode_DecodeFSDefault(fallback.path);
    PyObject *const out = PyMemoryView_FromMemory(static_cast<char *>(fallback.out),
                                                  Py_ssize_t(fallback.out_bytes), kBufferWrite);
    PyObject *const why = PyUnicode_DecodeUTF8(
        fallback.error.message, Py_ssize_t(std::strlen(fallback.error.message)), "replace");
    if (!path || !out || !why) {
        Py_XDECREF(path);
        Py_XDECREF(out);
        Py_XDECREF(why);
        return nullptr;
    }
    return Py_BuildValue("LIIiNNN", static_cast<long long>(fallback.index), fallback.occurrence,
                         fallback.position, fallback.cause, path, out, why);
}

PyObject *loader_fallback_done(PyObject *object, PyObject *args) {
    Loader *const self = as_loader(object);
    int ok;
    if (!PyArg_ParseTuple(args, "p", &ok) || !check_open(self)) return nullptr;
    fm_error error;
    // Status 1: failed, for the cause that the sample was rejected for.
    const int status = fm_loader_fallback_done(self->handle, ok ? FM_OK : 1, &error);
    return none_or_raise(self, status, error);
}

// ---- diagnostics --------------------------------------------------------------------------------

PyObject *tuple_from(const double *values, int n) {
    PyObject *const tuple = PyTuple_New(n);
    for (int i = 0; tuple && i < n; i++) {
        PyObject *const value = PyFloat_FromDouble(values[i]);
        if (!value || PyTuple_SetItem(tuple, i, value)) {
            Py_DECREF(tuple);
            return nullptr;
        }
    }
    return tuple;
}

PyObject *loader_draws(PyObject *object, PyObject *args) {
    Loader *const self = as_loader(object);
    unsigned long long seed;
    long long index;
    unsigned int epoch, occurrence;
    int width, height;
    if (!PyArg_ParseTuple(args, "KILIii", &seed, &epoch, &index, &occurrence, &width, &height) ||
        !check_open(self))
        return nullptr;
    std::vector<fm_draw> draws(self->config->ops.size() + 1);
    fm_error error;
    const int status = fm_loader_draws(self->handle, seed, epoch, index, occurrence, width, height,
                                       draws.data(), &error);
    if (status) return raise_error(self, error);
    PyObject *const list = PyList_New(0);
    for (size_t i = 0; list && i < self->config->ops.size(); i++) {
        const fm_draw &draw = draws[i];
        PyObject *const values = tuple_from(draw.values, draw.n_values);
        PyObject *const item =
            values ? Py_BuildValue("iiiiiON", int(draw.kind), draw.top, draw.left, draw.height,
                                   draw.width, draw.flip ? Py_True : Py_False, values)
                   : nullptr;
        if (!item || PyList_Append(list, item)) {
            Py_XDECREF(item);
            Py_DECREF(list);
            return nullptr;
        }
        Py_DECREF(item);
    }
    return list;
}

PyObject *loader_stats(PyObject *object, PyObject *) {
    Loader *const self = as_loader(object);
    if (!check_open(self)) return nullptr;
    fm_stats stats;
    fm_loader_stats(self->handle, &stats);
    return dict_from_stats(stats);
}

PyObject *loader_steps(PyObject *object, PyObject *args) {
    Loader *const self = as_loader(object);
    unsigned long long from;
    if (!PyArg_ParseTuple(args, "K", &from) || !check_open(self)) return nullptr;
    fm_step steps[kRecordsPerCall];
    const size_t n = fm_loader_steps(self->handle, from, steps, kRecordsPerCall);
    return bytes_from(steps, n);
}

PyObject *loader_sample_records(PyObject *object, PyObject *args) {
    Loader *const self = as_loader(object);
    unsigned long long from;
    if (!PyArg_ParseTuple(args, "K", &from) || !check_open(self)) return nullptr;
    fm_sample_record records[kRecordsPerCall];
    uint64_t first;
    const size_t n = fm_loader_sample_records(self->handle, from, records, kRecordsPerCall, &first);
    PyObject *const bytes = bytes_from(records, n);
    return bytes ? Py_BuildValue("KN", static_cast<unsigned long long>(first), bytes) : nullptr;
}

PyObject *loader_slow_samples(PyObject *object, PyObject *) {
    Loader *const self = as_loader(object);
    if (!check_open(self)) return nullptr;
    fm_slow_sample slow[FM_N_SLOW];
    const size_t n = fm_loader_slow_samples(self->handle, slow, FM_N_SLOW);
    PyObject *const list = PyList_New(0);
    bool ok = list != nullptr;
    for (size_t i = 0; ok && i < n; i++) {
        PyObject *const path = PyUnicode_DecodeFSDefault(slow[i].path);
        PyObject *const record = bytes_from(&slow[i].record, 1);
        PyObject *const pair = path && record ? PyTuple_Pack(2, path, record) : nullptr;
        ok = pair && !PyList_Append(list, pair);
        Py_XDECREF(path);
        Py_XDECREF(record);
        Py_XDECREF(pair);
    }
    if (ok) return list;
    Py_XDECREF(list);
    return nullptr;
}

PyObject *loader_step_request(PyObject *object, PyObject *) {
    Loader *const self = as_loader(object);
    if (!check_open(self)) return nullptr;
    fm_loader_step_request(self->handle);
    Py_RETURN_NONE;
}

PyObject *loader_step_ready(PyObject *object, PyObject *args) {
    Loader *const self = as_loader(object);
    unsigned long long number, ready_ns;
    unsigned int n_ready;
    if (!PyArg_ParseTuple(args, "KKI", &number, &ready_ns, &n_ready) || !check_open(self))
        return nullptr;
    fm_error error;
    const int status = fm_loader_step_ready(self->handle, number, ready_ns, n_ready, &error);
    return none_or_raise(self, status, error);
}

PyObject *loader_wake(PyObject *object, PyObject *) {
    Loader *const self = as_loader(object);
    if (!check_open(self)) return nullptr;
    fm_loader_wake(self->handle);
    Py_RETURN_NONE;
}

// With `ahead`: next() without a limit of time, on a thread that no signal comes to.
PyObject *loader_next_ahead(PyObject *object, PyObject *) {
    Loader *const self = as_loader(object);
    if (!check_open(self)) return nullptr;
    fm_batch batch;
    fm_error error;
    int status;
    Py_BEGIN_ALLOW_THREADS status = fm_loader_next(self->handle, -1, &batch, &error);
    Py_END_ALLOW_THREADS keep_youngest(self, fm_loader_n_pending(self->handle));
    return outcome_of(self, status, &batch, error);
}

PyObject *loader_step_return(PyObject *object, PyObject *) {
    Loader *const self = as_loader(object);
    if (!check_open(self)) return nullptr;
    fm_loader_step_return(self->handle);
    Py_RETURN_NONE;
}

PyObject *get_slot_bytes(PyObject *self, void *) {
    return PyLong_FromSsize_t(as_loader(self)->slot_bytes);
}

PyObject *get_out_shape(PyObject *self, void *) {
    const Loader *const loader = as_loader(self);
    return Py_BuildValue("iii", loader->channels, loader->height, loader->width);
}

PyObject *get_offsets(PyObject *self, void *) {
    const std::vector<Section> &sections = as_loader(self)->config->sections;
    PyObject *const tuple = PyTuple_New(Py_ssize_t(sections.size()));
    for (size_t i = 0; tuple && i < sections.size(); i++)
        PyTuple_SetItem(tuple, Py_ssize_t(i), PyLong_FromSize_t(sections[i].offset));
    return tuple;
}

PyObject *get_target_bytes(PyObject *self, void *) {
    if (!check_open(as_loader(self))) return nullptr;
    size_t image_bytes, label_bytes;
    fm_loader_target_bytes(as_loader(self)->handle, &image_bytes, &label_bytes);
    return Py_BuildValue("nn", Py_ssize_t(image_bytes), Py_ssize_t(label_bytes));
}

PyObject *get_converts(PyObject *self, void *) {
    if (!check_open(as_loader(self))) return nullptr;
    return PyBool_FromLong(fm_loader_converts(as_loader(self)->handle));
}

PyObject *get_n_offered(PyObject *self, void *) {
    if (!check_open(as_loader(self))) return nullptr;
    return PyLong_FromSize_t(fm_loader_n_offered(as_loader(self)->handle));
}

PyObject *get_pid(PyObject *self, void *) { return PyLong_FromLong(as_loader(self)->pid); }

PyObject *get_n_pending(PyObject *self, void *) {
    return PyLong_FromSize_t(fm_loader_n_pending(as_loader(self)->handle));
}

} // namespace

PyObject *make_loader_type(PyObject *module) {
    // _native.pyi describes each of them.
    static PyMethodDef methods[] = {
        {"start", loader_start, METH_VARARGS, "Starts an epoch."},
        {"submit", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(loader_submit)),
         METH_VARARGS | METH_KEYWORDS, "Appends a batch."},
        {"submit_rows", loader_submit_rows, METH_VARARGS, "Appends a batch of arrays' rows."},
        {"finish", loader_finish, METH_NOARGS, "No more batches in this epoch."},
        {"stop", loader_stop, METH_NOARGS, "Stops the epoch."},
        {"next", loader_next, METH_VARARGS, "The next batch."},
        {"next_ahead", loader_next_ahead, METH_NOARGS, "The same ahead of the consumer."},
        {"wake", loader_wake, METH_NOARGS, "Has next_ahead() return."},
        {"offer", loader_offer, METH_VARARGS, "Offers device memory for a batch."},
        {"wait", loader_wait, METH_VARARGS, "A stream waits for the latest batch."},
        {"fallback", loader_fallback, METH_NOARGS, "The sample to finish."},
        {"fallback_done", loader_fallback_done, METH_VARARGS, "Ends a fallback."},
        {"draws", loader_draws, METH_VARARGS, "Random draws of a sample."},
        {"stats", loader_stats, METH_NOARGS, "All counters."},
        {"steps", loader_steps, METH_VARARGS, "Step records."},
        {"sample_records", loader_sample_records, METH_VARARGS, "Sample records."},
        {"slow_samples", loader_slow_samples, METH_NOARGS, "The slowest samples."},
        {"step_request", loader_step_request, METH_NOARGS, "Marks a step's request."},
        {"step_ready", loader_step_ready, METH_VARARGS,
         "Records a step ahead of which next() was."},
        {"step_return", loader_step_return, METH_NOARGS, "Marks a step's return."},
        {"close", loader_close, METH_NOARGS, "Ends all threads."},
        {nullptr, nullptr, 0, nullptr}};
    static PyGetSetDef getset[] = {
        {"slot_bytes", get_slot_bytes, nullptr, "bytes of a batch slot", nullptr},
        {"out_shape", get_out_shape, nullptr, "(channels, height, width)", nullptr},
        {"offsets", get_offsets, nullptr, "of the arrays' rows in a batch, in bytes", nullptr},
        {"target_bytes", get_target_bytes, nullptr, "that an offer needs: images, labels", nullptr},
        {"converts", get_converts, nullptr, "the device converts uint8 NHWC", nullptr},
        {"n_offered", get_n_offered, nullptr, "offers that no batch has taken", nullptr},
        {"pid", get_pid, nullptr, "the process that opened it", nullptr},
        {"n_pending", get_n_pending, nullptr, "batches submitted and not yet returned", nullptr},
        {nullptr, nullptr, nullptr, nullptr, nullptr}};
    static PyType_Slot slots[] = {
        {Py_tp_init, reinterpret_cast<void *>(loader_init)},
        {Py_tp_dealloc, reinterpret_cast<void *>(loader_dealloc)},
        {Py_tp_methods, methods},
        {Py_tp_getset, getset},
        {Py_tp_doc, const_cast<char *>("One native loader: threads, ring, reader.")},
        {0, nullptr}};
    static PyType_Spec spec = {"feedmill._native.Loader", sizeof(Loader), 0, Py_TPFLAGS_DEFAULT,
                               slots};
    return PyType_FromModuleAndSpec(module, &spec, nullptr);
}

} // namespace feedmill
