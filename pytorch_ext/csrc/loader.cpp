#include "loader.h"

#include <unistd.h>

#include <cstring>
#include <utility>
#include <vector>

#include "loader_records.h"
#include "loader_state.h"
#include "samples.h"

namespace feedmill {
namespace {

// A wait for a batch is split into slices of this length, between which signals (Ctrl-C) are
// handled.
constexpr int64_t kSliceNs = 50'000'000;

// ---- open and close -----------------------------------------------------------------------------

// Sets the sections of a batch's memory, one for each of several views.
bool set_views(LoaderState *state) {
    const fm_transform &transform = state->config.config.transform;
    for (size_t i = 0; i < state->config.sections.size(); i++) {
        Section &section = state->config.sections[i];
        fm_view view;
        if (fm_loader_view(state->handle, i, &view)) {
            PyErr_SetString(PyExc_RuntimeError, "a view has no place in the batch");
            return false;
        }
        section.offset = view.offset;
        section.shape = {view.channels, view.height, view.width};
        section.order = {2, 1, 0};
        if (transform.layout == FM_NHWC) section.order = {0, 2, 1};
        set_image_type(&section, transform.dtype);
    }
    return true;
}

// Sets the sections of a batch's memory, one for each array.
bool set_sections(LoaderState *state) {
    if (!state->config.views.empty()) return set_views(state);
    std::vector<Section> &sections = state->config.sections;
    for (size_t i = 0; i < sections.size(); i++) {
        if (fm_loader_section(state->handle, i, &sections[i].offset, nullptr)) {
            PyErr_SetString(PyExc_RuntimeError, "an array has no place in the batch");
            return false;
        }
    }
    if (!sections.empty() && state->config.config.arrays.images) {
        sections[0].shape = {state->channels, state->height, state->width};
        set_image_type(&sections[0], state->config.config.transform.dtype);
    }
    return true;
}

bool open(LoaderState *state, PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *const module = PyType_GetModule(type);
    if (!module) return false;
    state->error_types.error = Ref(PyObject_GetAttrString(module, "Error"));
    if (!state->error_types.error) return false;
    state->error_types.budget = Ref(PyObject_GetAttrString(module, "BudgetError"));
    if (!state->error_types.budget) return false;
    if (!config_from_kwargs(args, kwargs, &state->config)) return false;
    fm_error error;
    const int status =
        without_gil([&] { return fm_loader_open(&state->handle, &state->config.config, &error); });
    if (status == FM_ERR_READ) {
        // The file of seek points: no sample is read yet.
        const Ref text = text_from(error.message);
        if (text) PyErr_SetObject(PyExc_OSError, text.get());
        return false;
    }
    if (status) {
        raise_error(state, error);
        return false;
    }
    state->pid = long(getpid());
    fm_stats stats;
    fm_loader_stats(state->handle, &stats);
    state->slot_bytes = Py_ssize_t(stats.slot_bytes);
    fm_loader_out_size(state->handle, &state->height, &state->width);
    state->channels = fm_loader_out_channels(state->handle);
    return set_sections(state);
}

// __new__ opens the loader: there is never an object without one.
PyObject *loader_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    Ref object = allocate_object(type);
    if (!object) return nullptr;
    auto *const self = reinterpret_cast<Loader *>(object.get());
    self->state = new LoaderState;
    return open(self->state, type, args, kwargs) ? object.release() : nullptr;
}

void loader_dealloc(PyObject *object) {
    LoaderState *const state = state_of(object);
    // No call is in progress: it would hold a reference.
    if (state) close_now(state);
    delete state;
    free_object(object);
}

PyObject *loader_close(PyObject *self, PyObject *) {
    LoaderState *const state = state_of(self);
    if (is_in_call(*state)) {
        state->is_closing = true;
        fm_loader_wake(state->handle); // next_ahead() waits without a limit
    } else {
        close_now(state);
    }
    Py_RETURN_NONE;
}

// ---- epochs -------------------------------------------------------------------------------------

// Copies states of generators, one fm_streams after the other. False: a Python exception is set.
bool streams_from(const char *bytes, Py_ssize_t n_bytes, std::vector<fm_streams> *out) {
    if (n_bytes % Py_ssize_t(sizeof(fm_streams))) {
        PyErr_Format(PyExc_ValueError, "the states of generators have %zd bytes; each has %zu",
                     n_bytes, sizeof(fm_streams));
        return false;
    }
    out->resize(size_t(n_bytes) / sizeof(fm_streams));
    if (n_bytes) std::memcpy(static_cast<void *>(out->data()), bytes, size_t(n_bytes));
    return true;
}

PyObject *bytes_of_streams(const fm_streams &streams) {
    return PyBytes_FromStringAndSize(reinterpret_cast<const char *>(&streams),
                                     Py_ssize_t(sizeof(streams)));
}

PyObject *loader_start(PyObject *self, PyObject *args) {
    LoaderState *const state = state_of(self);
    ExclusiveCall call(state);
    unsigned long long seed;
    unsigned int number;
    int ahead = 0;
    const char *used = nullptr;
    Py_ssize_t used_bytes = 0;
    const char *streams = nullptr;
    Py_ssize_t streams_bytes = 0;
    if (!call || !PyArg_ParseTuple(args, "KI|pz#z#", &seed, &number, &ahead, &used, &used_bytes,
                                   &streams, &streams_bytes))
        return nullptr;
    const size_t n_samples = state->config.config.n_samples;
    if (used && static_cast<size_t>(used_bytes) != n_samples * sizeof(uint32_t)) {
        PyErr_SetString(PyExc_ValueError, "used must hold a uint32 for each sample");
        return nullptr;
    }
    std::vector<fm_streams> copies; // the bytes may not be aligned
    if (!streams_from(streams, streams_bytes, &copies)) return nullptr;
    fm_epoch epoch{};
    epoch.streams = copies.data();
    epoch.n_streams = uint32_t(copies.size());
    epoch.seed = seed;
    epoch.number = number;
    epoch.ahead = ahead != 0;
    epoch.used = reinterpret_cast<const uint32_t *>(used);
    fm_error error;
    const int status = without_gil([&] { return fm_loader_start(state->handle, &epoch, &error); });
    // FM_ERR_ARGUMENT leaves the running epoch as it is.
    if (status != FM_ERR_ARGUMENT) call.keep_youngest(0);
    return none_or_raise(state, status, error);
}

// Most fm_samples in a batch.
size_t most_samples(const Config &given) {
    const fm_config &config = given.config;
    return config.batch_size * (config.views_have_files ? given.views.size() + 1 : 1);
}

PyObject *loader_submit(PyObject *self, PyObject *args, PyObject *kwargs) {
    static const char *const names[] = {"indices", "paths", "data", "labels", nullptr};
    LoaderState *const state = state_of(self);
    PyObject *indices, *paths, *data = Py_None, *labels = Py_None;
    Samples batch;
    ExclusiveCall call(state);
    if (!call ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "OO|OO", const_cast<char **>(names), &indices,
                                     &paths, &data, &labels) ||
        !batch.fill(indices, paths, data, labels, most_samples(state->config),
                    state->config.remote.get()))
        return nullptr;
    // Reserved before the native loader gets the batch: after that nothing may fail here.
    Held entry;
    entry.push_back(std::move(batch.images));
    fm_error error;
    const int status = without_gil([&] {
        return fm_loader_submit(state->handle, batch.samples.data(), batch.samples.size(), &error);
    });
    if (status == FM_OK) state->held.splice(state->held.end(), entry);
    if (status < 0) return raise_error(state, error);
    return PyBool_FromLong(status == FM_OK);
}

PyObject *loader_submit_rows(PyObject *self, PyObject *args) {
    LoaderState *const state = state_of(self);
    ExclusiveCall call(state);
    PyObject *indices, *rows = Py_None;
    if (!call || !PyArg_ParseTuple(args, "S|O", &indices, &rows)) return nullptr;
    const Py_ssize_t n_bytes = PyBytes_Size(indices);
    if (n_bytes % Py_ssize_t(sizeof(int64_t)) ||
        (rows != Py_None && (!PyBytes_Check(rows) || PyBytes_Size(rows) != n_bytes))) {
        PyErr_SetString(PyExc_ValueError,
                        "indices and rows must be bytes of int64 values, of equal length");
        return nullptr;
    }
    // The data of a bytes object is aligned like malloc()'s memory, as its header has 32 bytes.
    const auto *const values = reinterpret_cast<const int64_t *>(PyBytes_AsString(indices));
    const auto *const numbers =
        rows == Py_None ? nullptr : reinterpret_cast<const int64_t *>(PyBytes_AsString(rows));
    Held entry(1);
    fm_error error;
    const int status = fm_loader_submit_rows(state->handle, values, numbers,
                                             size_t(n_bytes) / sizeof(int64_t), &error);
    if (status < 0) return raise_error(state, error);
    if (status == FM_OK) state->held.splice(state->held.end(), entry);
    return PyBool_FromLong(status == FM_OK);
}

PyObject *loader_finish(PyObject *self, PyObject *) {
    LoaderState *const state = state_of(self);
    const ExclusiveCall call(state);
    if (!call) return nullptr;
    fm_error error;
    const int status = fm_loader_finish(state->handle, &error);
    return none_or_raise(state, status, error);
}

PyObject *loader_stop(PyObject *self, PyObject *) {
    LoaderState *const state = state_of(self);
    ExclusiveCall call(state);
    if (!call) return nullptr;
    fm_error error;
    const int status = without_gil([&] { return fm_loader_stop(state->handle, &error); });
    call.keep_youngest(0);
    return none_or_raise(state, status, error);
}

// ---- batches ------------------------------------------------------------------------------------

// Calls fm_loader_next() until it returns a result or the timeout ends. False: a Python exception
// is set (by a signal handler, or because another thread has closed the loader).
bool wait_for_next(LoaderState *state, int64_t timeout_ns, fm_batch *batch, fm_error *error,
                   int *status) {
    int64_t left_ns = timeout_ns;
    for (;;) {
        const bool last = timeout_ns >= 0 && left_ns <= kSliceNs;
        const int64_t slice_ns = last ? left_ns : kSliceNs;
        *status =
            without_gil([&] { return fm_loader_next(state->handle, slice_ns, batch, error); });
        if (*status != FM_AGAIN || last) return true;
        // Without a pending batch, next() returns FM_AGAIN at once: the caller must submit first.
        if (fm_loader_n_pending(state->handle) == 0) return true;
        if (PyErr_CheckSignals() || !check_open(*state)) return false;
        left_ns -= slice_ns;
    }
}

bool is_sample_error(int status) { return status <= FM_ERR_READ && status >= FM_ERR_LIMIT; }

// The result of next() for a batch. `owner`: the allocator's object, or none.
Ref payload_of(const Config &config, OwnedBatch batch, Ref owner) {
    if (config.config.device.kind) return Ref::borrow(Py_None); // it is in the caller's output
    if (config.alloc) return owner;
    return config.sections.empty() ? capsule_from_batch(std::move(batch))
                                   : capsules_from_batch(std::move(batch), config.sections);
}

// next(): (outcome, payload, samples), see _native.pyi.
PyObject *outcome_of(LoaderState *state, int status, OwnedBatch batch, const fm_error &error) {
    if (status == FM_OK) {
        const unsigned int n = batch.get().n;
        Ref owner(static_cast<PyObject *>(batch.get().memory_handle));
        const Ref payload = payload_of(state->config, std::move(batch), std::move(owner));
        return payload ? Py_BuildValue("iOI", status, payload.get(), n) : nullptr;
    }
    if (status > 0) return Py_BuildValue("iOI", status, Py_None, 0u);
    if (!is_sample_error(status) || error.index < 0) return raise_error(state, error);
    const Ref text = text_from(error.message);
    return text ? Py_BuildValue("iOI", status, text.get(), 0u) : nullptr;
}

PyObject *loader_next(PyObject *self, PyObject *args) {
    LoaderState *const state = state_of(self);
    ExclusiveCall call(state);
    long long timeout_ns;
    if (!call || !PyArg_ParseTuple(args, "L", &timeout_ns)) return nullptr;
    state->place = Ref();
    OwnedBatch batch;
    fm_error error;
    int status = FM_OK;
    if (!wait_for_next(state, timeout_ns, batch.out(), &error, &status)) return nullptr;
    call.keep_youngest(fm_loader_n_pending(state->handle));
    return outcome_of(state, status, std::move(batch), error);
}

// next() for an epoch with `ahead`, on a thread that handles no signals.
PyObject *loader_next_ahead(PyObject *self, PyObject *) {
    LoaderState *const state = state_of(self);
    ExclusiveCall call(state);
    if (!call) return nullptr;
    state->place = Ref();
    OwnedBatch batch;
    fm_error error;
    const int status =
        without_gil([&] { return fm_loader_next(state->handle, -1, batch.out(), &error); });
    call.keep_youngest(fm_loader_n_pending(state->handle));
    return outcome_of(state, status, std::move(batch), error);
}

PyObject *loader_add_output(PyObject *self, PyObject *args) {
    LoaderState *const state = state_of(self);
    const ExclusiveCall call(state);
    unsigned long long images, image_bytes, labels, label_bytes, stream;
    if (!call ||
        !PyArg_ParseTuple(args, "KKKKK", &images, &image_bytes, &labels, &label_bytes, &stream))
        return nullptr;
    fm_output output{};
    output.images = pointer_from(images);
    output.image_bytes = size_t(image_bytes);
    output.labels = static_cast<int64_t *>(pointer_from(labels));
    output.label_bytes = size_t(label_bytes);
    output.stream = pointer_from(stream);
    fm_error error;
    const int status =
        without_gil([&] { return fm_loader_add_output(state->handle, &output, &error); });
    if (status < 0) return raise_error(state, error);
    return PyBool_FromLong(status == FM_OK);
}

PyObject *loader_wait(PyObject *self, PyObject *args) {
    LoaderState *const state = state_of(self);
    const ExclusiveCall call(state);
    unsigned long long stream;
    if (!call || !PyArg_ParseTuple(args, "K", &stream)) return nullptr;
    fm_error error;
    const int status =
        without_gil([&] { return fm_loader_wait(state->handle, pointer_from(stream), &error); });
    return none_or_raise(state, status, error);
}

// The places of a rejected sample's views in the batch: all, or the one of a rejected file.
struct Place {
    void *out = nullptr;
    size_t n_bytes = 0;
};

std::vector<Place> places_of(const LoaderState &state, const fm_fallback &fallback) {
    std::vector<Place> places{{fallback.out, fallback.out_bytes}};
    if (state.config.config.views_have_files) return places;
    for (size_t i = 1; i < fm_loader_n_views(state.handle); i++) {
        Place place;
        if (fm_loader_fallback_view(state.handle, i, &place.out, &place.n_bytes)) break;
        places.push_back(place);
    }
    return places;
}

size_t bytes_of(const std::vector<Place> &places) {
    size_t n_bytes = 0;
    for (const Place &place : places) n_bytes += place.n_bytes;
    return n_bytes;
}

// Returns a bytearray with the views one after the other, which fallback_done() copies to the
// sample's places in the batch, as those may become invalid while Python holds it. (With the
// limited API of Python 3.10 an extension type can't export a buffer.)
PyObject *loader_fallback(PyObject *self, PyObject *) {
    LoaderState *const state = state_of(self);
    const ExclusiveCall call(state);
    if (!call) return nullptr;
    fm_fallback fallback;
    if (fm_loader_fallback(state->handle, &fallback)) {
        PyErr_SetString(PyExc_RuntimeError, "no fallback is pending");
        return nullptr;
    }
    const Ref path(PyUnicode_DecodeFSDefault(fallback.path));
    if (!path) return nullptr;
    const Ref why = text_from(fallback.error.message);
    if (!why) return nullptr;
    const size_t n_bytes = bytes_of(places_of(*state, fallback));
    Ref place = allocate_bytearray(Py_ssize_t(n_bytes));
    if (!place) return nullptr;
    std::memset(PyByteArray_AsString(place.get()), 0, n_bytes);
    state->place = std::move(place);
    return Py_BuildValue("LIIiOOO", static_cast<long long>(fallback.index), fallback.occurrence,
                         fallback.position, fallback.cause, path.get(), state->place.get(),
                         why.get());
}

// Copies fallback()'s bytearray to the sample's places. False: a Python exception is set.
bool copy_to_place(LoaderState *state) {
    fm_fallback fallback;
    if (fm_loader_fallback(state->handle, &fallback)) return true; // fallback_done() fails
    if (!state->place) {
        PyErr_SetString(PyExc_RuntimeError,
                        "the sample was not written: call fallback() for its bytearray first");
        return false;
    }
    const std::vector<Place> places = places_of(*state, fallback);
    const Py_ssize_t n_bytes = PyByteArray_Size(state->place.get());
    if (size_t(n_bytes) != bytes_of(places)) {
        PyErr_Format(PyExc_ValueError, "the sample's bytearray has %zd bytes; it must keep its %zu",
                     n_bytes, bytes_of(places));
        return false;
    }
    const char *from = PyByteArray_AsString(state->place.get());
    for (const Place &place : places) {
        std::memcpy(place.out, from, place.n_bytes);
        from += place.n_bytes;
    }
    return true;
}

PyObject *loader_fallback_done(PyObject *self, PyObject *args) {
    LoaderState *const state = state_of(self);
    const ExclusiveCall call(state);
    int ok;
    if (!call || !PyArg_ParseTuple(args, "p", &ok) || (ok && !copy_to_place(state))) return nullptr;
    fm_error error;
    // Status 1: failed. The error is then the one for which the sample was rejected.
    const int status = fm_loader_fallback_done(state->handle, ok ? FM_OK : 1, &error);
    return none_or_raise(state, status, error);
}

// ---- virtual workers ----------------------------------------------------------------------------

PyObject *loader_choose_worker(PyObject *self, PyObject *args) {
    LoaderState *const state = state_of(self);
    const ExclusiveCall call(state);
    unsigned int worker;
    int waits;
    if (!call || !PyArg_ParseTuple(args, "Ip", &worker, &waits)) return nullptr;
    fm_error error;
    const int status = fm_loader_choose_worker(state->handle, worker, waits != 0, &error);
    return none_or_raise(state, status, error);
}

PyObject *loader_give_streams(PyObject *self, PyObject *args) {
    LoaderState *const state = state_of(self);
    const ExclusiveCall call(state);
    unsigned int worker;
    const char *bytes;
    Py_ssize_t n_bytes;
    std::vector<fm_streams> streams;
    if (!call || !PyArg_ParseTuple(args, "Iy#", &worker, &bytes, &n_bytes) ||
        !streams_from(bytes, n_bytes, &streams))
        return nullptr;
    fm_error error;
    const int status = fm_loader_give_streams(
        state->handle, worker, streams.size() == 1 ? streams.data() : nullptr, &error);
    return none_or_raise(state, status, error);
}

PyObject *loader_streams(PyObject *self, PyObject *args) {
    LoaderState *const state = state_of(self);
    const ExclusiveCall call(state);
    unsigned int worker;
    if (!call || !PyArg_ParseTuple(args, "I", &worker)) return nullptr;
    fm_streams streams;
    fm_error error;
    const int status = fm_loader_streams(state->handle, worker, &streams, &error);
    return status ? raise_error(state, error) : bytes_of_streams(streams);
}

PyObject *loader_fallback_streams(PyObject *self, PyObject *) {
    LoaderState *const state = state_of(self);
    const ExclusiveCall call(state);
    if (!call) return nullptr;
    fm_streams streams;
    fm_error error;
    const int status = fm_loader_fallback_streams(state->handle, &streams, &error);
    return status ? raise_error(state, error) : bytes_of_streams(streams);
}

// ---- steps --------------------------------------------------------------------------------------

// These calls are not exclusive: in an epoch with `ahead` the consumer makes them while another
// thread waits in next_ahead(). They hold the GIL throughout, so no other thread can close the
// loader during the call.

PyObject *loader_step_request(PyObject *self, PyObject *) {
    if (!check_open(*state_of(self))) return nullptr;
    fm_loader_step_request(state_of(self)->handle);
    Py_RETURN_NONE;
}

PyObject *loader_step_ready(PyObject *self, PyObject *args) {
    LoaderState *const state = state_of(self);
    unsigned long long number, ready_ns;
    unsigned int n_ready;
    if (!check_open(*state) || !PyArg_ParseTuple(args, "KKI", &number, &ready_ns, &n_ready))
        return nullptr;
    fm_error error;
    const int status = fm_loader_step_ready(state->handle, number, ready_ns, n_ready, &error);
    return none_or_raise(state, status, error);
}

PyObject *loader_step_return(PyObject *self, PyObject *) {
    if (!check_open(*state_of(self))) return nullptr;
    fm_loader_step_return(state_of(self)->handle);
    Py_RETURN_NONE;
}

PyObject *loader_wake(PyObject *self, PyObject *) {
    if (!check_open(*state_of(self))) return nullptr;
    fm_loader_wake(state_of(self)->handle);
    Py_RETURN_NONE;
}

// ---- attributes ---------------------------------------------------------------------------------

// Attributes of open and closed loaders.

PyObject *get_slot_bytes(PyObject *self, void *) {
    return PyLong_FromSsize_t(state_of(self)->slot_bytes);
}

PyObject *get_out_shape(PyObject *self, void *) {
    const LoaderState &state = *state_of(self);
    return Py_BuildValue("iii", state.channels, state.height, state.width);
}

PyObject *get_view_shapes(PyObject *self, void *) {
    const LoaderState &state = *state_of(self);
    const size_t n = state.config.views.empty() ? 0 : state.config.sections.size();
    return make_tuple(n,
                      [&state](size_t i) {
                          const std::vector<int64_t> &shape = state.config.sections[i].shape;
                          return Ref(
                              Py_BuildValue("iii", int(shape[0]), int(shape[1]), int(shape[2])));
                      })
        .release();
}

PyObject *get_offsets(PyObject *self, void *) {
    const std::vector<Section> &sections = state_of(self)->config.sections;
    return make_tuple(sections.size(),
                      [&sections](size_t i) { return Ref(PyLong_FromSize_t(sections[i].offset)); })
        .release();
}

PyObject *get_pid(PyObject *self, void *) { return PyLong_FromLong(state_of(self)->pid); }

PyObject *get_n_pending(PyObject *self, void *) {
    return PyLong_FromSize_t(fm_loader_n_pending(state_of(self)->handle));
}

// Attributes of an open loader.

PyObject *get_output_bytes(PyObject *self, void *) {
    if (!check_open(*state_of(self))) return nullptr;
    size_t image_bytes, label_bytes;
    fm_loader_output_bytes(state_of(self)->handle, &image_bytes, &label_bytes);
    return Py_BuildValue("nn", Py_ssize_t(image_bytes), Py_ssize_t(label_bytes));
}

PyObject *get_converts(PyObject *self, void *) {
    if (!check_open(*state_of(self))) return nullptr;
    return PyBool_FromLong(fm_loader_converts(state_of(self)->handle));
}

PyObject *get_n_outputs(PyObject *self, void *) {
    if (!check_open(*state_of(self))) return nullptr;
    return PyLong_FromSize_t(fm_loader_n_outputs(state_of(self)->handle));
}

// The methods; see _native.pyi.
PyMethodDef methods[] = {
    method_entry<loader_start>("start", METH_VARARGS, "Starts an epoch."),
    method_entry<loader_submit>("submit", METH_VARARGS | METH_KEYWORDS, "Submits a batch."),
    method_entry<loader_submit_rows>("submit_rows", METH_VARARGS,
                                     "Submits a batch of arrays' rows."),
    method_entry<loader_finish>("finish", METH_NOARGS, "Ends the submission of batches."),
    method_entry<loader_stop>("stop", METH_NOARGS, "Stops the epoch."),
    method_entry<loader_next>("next", METH_VARARGS, "The next batch."),
    method_entry<loader_next_ahead>("next_ahead", METH_NOARGS, "The next batch, for ahead epochs."),
    method_entry<loader_wake>("wake", METH_NOARGS, "Makes next_ahead() return."),
    method_entry<loader_add_output>("add_output", METH_VARARGS, "Adds device memory for a batch."),
    method_entry<loader_wait>("wait", METH_VARARGS, "Makes a stream wait for a copy."),
    method_entry<loader_fallback>("fallback", METH_NOARGS, "The rejected sample to finish."),
    method_entry<loader_fallback_done>("fallback_done", METH_VARARGS, "Ends a fallback."),
    method_entry<loader_draws>("draws", METH_VARARGS, "Random draws of a sample."),
    method_entry<loader_choose_worker>("choose_worker", METH_VARARGS,
                                       "The virtual worker of the next batches."),
    method_entry<loader_give_streams>("give_streams", METH_VARARGS,
                                      "Sets a virtual worker's generators."),
    method_entry<loader_streams>("streams", METH_VARARGS, "A virtual worker's generators."),
    method_entry<loader_fallback_draws>("fallback_draws", METH_VARARGS,
                                        "Random draws of the sample to finish."),
    method_entry<loader_fallback_streams>("fallback_streams", METH_NOARGS,
                                          "The generators before the sample to finish."),
    method_entry<loader_draws_torch>("draws_torch", METH_VARARGS,
                                     "Random draws from torch's and Python's generators."),
    method_entry<loader_before_pixels>("before_pixels", METH_VARARGS,
                                       "The generators before RandomErasing's pixels."),
    method_entry<loader_stats>("stats", METH_NOARGS, "All counters."),
    method_entry<loader_steps>("steps", METH_VARARGS, "Step records."),
    method_entry<loader_sample_records>("sample_records", METH_VARARGS, "Sample records."),
    method_entry<loader_slow_samples>("slow_samples", METH_NOARGS, "The slowest samples."),
    method_entry<loader_step_request>("step_request", METH_NOARGS, "Marks a step's request."),
    method_entry<loader_step_ready>("step_ready", METH_VARARGS,
                                    "Records a step whose batch next_ahead() gave."),
    method_entry<loader_step_return>("step_return", METH_NOARGS, "Marks a step's return."),
    method_entry<loader_close>("close", METH_NOARGS, "Ends all threads."),
    {nullptr, nullptr, 0, nullptr}};

PyGetSetDef attributes[] = {
    getter_entry<get_slot_bytes>("slot_bytes", "bytes of a batch buffer"),
    getter_entry<get_out_shape>("out_shape", "(channels, height, width)"),
    getter_entry<get_view_shapes>("view_shapes", "(channels, height, width) of several views"),
    getter_entry<get_offsets>("offsets", "offsets of the arrays' rows, or views, in a batch"),
    getter_entry<get_output_bytes>("output_bytes", "bytes of an output: images, labels"),
    getter_entry<get_converts>("converts", "the device converts uint8 NHWC"),
    getter_entry<get_n_outputs>("n_outputs", "outputs that no batch has used"),
    getter_entry<get_pid>("pid", "the process that opened it"),
    getter_entry<get_n_pending>("n_pending", "batches submitted and not yet returned"),
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

} // namespace

Ref make_loader_type(PyObject *module) {
    static PyType_Slot slots[] = {
        slot_entry<loader_new>(Py_tp_new),
        {Py_tp_dealloc, reinterpret_cast<void *>(loader_dealloc)},
        {Py_tp_methods, methods},
        {Py_tp_getset, attributes},
        {Py_tp_doc, const_cast<char *>("One native loader: threads, ring, reader.")},
        {0, nullptr}};
    static PyType_Spec spec = {"feedmill._native.Loader", sizeof(Loader), 0, Py_TPFLAGS_DEFAULT,
                               slots};
    return Ref(PyType_FromModuleAndSpec(module, &spec, nullptr));
}

} // namespace feedmill
