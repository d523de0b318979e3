#include "loader_records.h"

#include <cstring>
#include <vector>

#include "loader_state.h"

namespace feedmill {
namespace {

constexpr size_t kRecordsPerCall = 1024;

template <typename Record> Ref bytes_from(const Record *records, size_t n) {
    return Ref(PyBytes_FromStringAndSize(reinterpret_cast<const char *>(records),
                                         Py_ssize_t(n * sizeof(Record))));
}

PyObject *draw_from(const fm_draw &draw) {
    const Ref values = make_tuple(size_t(draw.n_values), [&draw](size_t i) {
        return Ref(PyFloat_FromDouble(draw.values[i]));
    });
    if (!values) return nullptr;
    return Py_BuildValue("iiiiiOO", int(draw.kind), draw.top, draw.left, draw.height, draw.width,
                         draw.flip ? Py_True : Py_False, values.get());
}

Ref list_from(const std::vector<fm_draw> &draws, size_t n) {
    Ref list(PyList_New(0));
    for (size_t i = 0; list && i < n; i++) {
        const Ref item(draw_from(draws[i]));
        if (!item || PyList_Append(list.get(), item.get())) return Ref();
    }
    return list;
}

size_t n_ops_of(const LoaderState &state, unsigned int view) {
    const std::vector<View> &views = state.config.views;
    return view && view <= views.size() ? views[view - 1].ops.size() : state.config.ops.size();
}

// Copies states of generators. False: a Python exception is set.
bool streams_from(const char *bytes, Py_ssize_t n_bytes, fm_streams *out) {
    if (n_bytes != Py_ssize_t(sizeof(*out))) {
        PyErr_Format(PyExc_ValueError, "the state of generators has %zd bytes; it must have %zu",
                     n_bytes, sizeof(*out));
        return false;
    }
    std::memcpy(out, bytes, sizeof(*out));
    return true;
}

// Parses a method's one argument, a number, and checks that the loader is open. False: a Python
// exception is set.
bool parse_from(const LoaderState &state, PyObject *args, unsigned long long *out) {
    return check_open(state) && PyArg_ParseTuple(args, "K", out) && check_open(state);
}

} // namespace

PyObject *loader_draws(PyObject *self, PyObject *args) {
    LoaderState *const state = state_of(self);
    unsigned long long seed;
    long long index;
    unsigned int epoch, occurrence, view = 0;
    int width, height;
    if (!check_open(*state) ||
        !PyArg_ParseTuple(args, "KILIii|I", &seed, &epoch, &index, &occurrence, &width, &height,
                          &view) ||
        !check_open(*state)) // an argument's __index__() may have closed it
        return nullptr;
    const size_t n_ops = n_ops_of(*state, view);
    std::vector<fm_draw> draws(n_ops + 1);
    fm_error error;
    const int status = fm_loader_draws(state->handle, view, seed, epoch, index, occurrence, width,
                                       height, draws.data(), &error);
    if (status) return raise_error(state, error);
    return list_from(draws, n_ops).release();
}

// The arguments of methods that draw from streams: (streams, width, height, view=0).
struct DrawArguments {
    fm_streams streams;
    int width, height;
    unsigned int view = 0;

    bool parse(const LoaderState &state, PyObject *args) {
        const char *bytes;
        Py_ssize_t n_bytes;
        return check_open(state) &&
               PyArg_ParseTuple(args, "y#ii|I", &bytes, &n_bytes, &width, &height, &view) &&
               streams_from(bytes, n_bytes, &streams) &&
               check_open(state); // an argument's __index__() may have closed it
    }
};

PyObject *loader_draws_torch(PyObject *self, PyObject *args) {
    LoaderState *const state = state_of(self);
    DrawArguments given;
    if (!given.parse(*state, args)) return nullptr;
    const size_t n_ops = n_ops_of(*state, given.view);
    std::vector<fm_draw> draws(n_ops + 1);
    fm_error error;
    const int status = fm_loader_draws_torch(state->handle, given.view, &given.streams, given.width,
                                             given.height, draws.data(), &error);
    if (status) return raise_error(state, error);
    const Ref list = list_from(draws, n_ops);
    if (!list) return nullptr;
    return Py_BuildValue("Oy#", list.get(), &given.streams, Py_ssize_t(sizeof(given.streams)));
}

// noise_torch(streams, n): fm_noise_torch()'s numbers as bytes of float32.
PyObject *noise_torch(PyObject *, PyObject *args) {
    const char *bytes;
    Py_ssize_t n_bytes, n;
    fm_streams streams;
    if (!PyArg_ParseTuple(args, "y#n:noise_torch", &bytes, &n_bytes, &n) ||
        !streams_from(bytes, n_bytes, &streams))
        return nullptr;
    if (n < 0 || n > PY_SSIZE_T_MAX / Py_ssize_t(sizeof(float))) {
        PyErr_SetString(PyExc_ValueError, "n is negative or too large");
        return nullptr;
    }
    std::vector<float> numbers(static_cast<size_t>(n));
    without_gil([&] {
        fm_noise_torch(&streams, numbers.size(), numbers.data());
        return 0;
    });
    return PyBytes_FromStringAndSize(reinterpret_cast<const char *>(numbers.data()),
                                     n * Py_ssize_t(sizeof(float)));
}

PyObject *loader_before_pixels(PyObject *self, PyObject *args) {
    LoaderState *const state = state_of(self);
    DrawArguments given;
    if (!given.parse(*state, args)) return nullptr;
    fm_error error;
    const int status = fm_loader_before_pixels(state->handle, given.view, &given.streams,
                                               given.width, given.height, &error);
    if (status) return raise_error(state, error);
    return PyBytes_FromStringAndSize(reinterpret_cast<const char *>(&given.streams),
                                     Py_ssize_t(sizeof(given.streams)));
}

PyObject *loader_fallback_draws(PyObject *self, PyObject *args) {
    LoaderState *const state = state_of(self);
    const ExclusiveCall call(state);
    unsigned int view = 0;
    int width, height;
    if (!call || !PyArg_ParseTuple(args, "ii|I", &width, &height, &view)) return nullptr;
    const size_t n_ops = n_ops_of(*state, view);
    std::vector<fm_draw> draws(n_ops + 1);
    fm_error error;
    const int status =
        fm_loader_fallback_draws(state->handle, view, width, height, draws.data(), &error);
    if (status) return raise_error(state, error);
    return list_from(draws, n_ops).release();
}

PyObject *loader_stats(PyObject *self, PyObject *) {
    if (!check_open(*state_of(self))) return nullptr;
    fm_stats stats;
    fm_loader_stats(state_of(self)->handle, &stats);
    return dict_from_stats(stats);
}

PyObject *loader_steps(PyObject *self, PyObject *args) {
    const LoaderState &state = *state_of(self);
    unsigned long long from;
    if (!parse_from(state, args, &from)) return nullptr;
    std::vector<fm_step> steps(kRecordsPerCall);
    const size_t n = fm_loader_steps(state.handle, from, steps.data(), steps.size());
    return bytes_from(steps.data(), n).release();
}

PyObject *loader_sample_records(PyObject *self, PyObject *args) {
    const LoaderState &state = *state_of(self);
    unsigned long long from;
    if (!parse_from(state, args, &from)) return nullptr;
    std::vector<fm_sample_record> records(kRecordsPerCall);
    uint64_t first;
    const size_t n =
        fm_loader_sample_records(state.handle, from, records.data(), records.size(), &first);
    const Ref bytes = bytes_from(records.data(), n);
    if (!bytes) return nullptr;
    return Py_BuildValue("KO", static_cast<unsigned long long>(first), bytes.get());
}

PyObject *loader_slow_samples(PyObject *self, PyObject *) {
    if (!check_open(*state_of(self))) return nullptr;
    std::vector<fm_slow_sample> slow(FM_N_SLOW);
    slow.resize(fm_loader_slow_samples(state_of(self)->handle, slow.data(), slow.size()));
    Ref list(PyList_New(0));
    if (!list) return nullptr;
    for (const fm_slow_sample &one : slow) {
        const Ref path(PyUnicode_DecodeFSDefault(one.path));
        const Ref record = path ? bytes_from(&one.record, 1) : Ref();
        if (!record) return nullptr;
        const Ref pair(PyTuple_Pack(2, path.get(), record.get()));
        if (!pair || PyList_Append(list.get(), pair.get())) return nullptr;
    }
    return list.release();
}

} // namespace feedmill
