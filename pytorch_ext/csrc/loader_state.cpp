#include "loader_state.h"

#include <unistd.h>

#include <utility>

namespace feedmill {

bool check_open(const LoaderState &state) {
    if (state.handle && !state.is_closing) return true;
    PyErr_SetString(PyExc_ValueError, "this loader is closed");
    return false;
}

bool is_in_call(const LoaderState &state) { return state.is_busy && state.pid == long(getpid()); }

void close_now(LoaderState *state) {
    fm_loader *handle = std::exchange(state->handle, nullptr);
    // Released at the end of this function: threads may read these until fm_loader_close() has
    // ended them, and releasing them may run Python code.
    const Held held = std::move(state->held);
    const Ref owners = std::move(state->config.owners), place = std::move(state->place);
    state->held.clear();
    without_gil([&handle] { fm_loader_close(&handle); });
}

ExclusiveCall::ExclusiveCall(LoaderState *state) : state_(check_open(*state) ? state : nullptr) {
    if (state_ && is_in_call(*state_)) {
        PyErr_SetString(PyExc_RuntimeError,
                        "another call of this loader is in progress; one thread at a time may use "
                        "it");
        state_ = nullptr;
    }
    if (state_) state_->is_busy = true;
}

ExclusiveCall::~ExclusiveCall() {
    if (!state_) return;
    state_->is_busy = false;
    if (state_->is_closing) close_now(state_);
}

void ExclusiveCall::keep_youngest(size_t n_pending) {
    Held &held = state_->held;
    while (held.size() > n_pending) leaving_.splice(leaving_.end(), held, held.begin());
}

PyObject *raise_error(LoaderState *state, const fm_error &error) {
    // The Python allocator's exception is more specific than "no memory".
    if (error.status == FM_ERR_NOMEM && state->config.alloc_exception) {
        const Ref exception = std::move(state->config.alloc_exception);
        PyErr_SetObject(reinterpret_cast<PyObject *>(Py_TYPE(exception.get())), exception.get());
        return nullptr;
    }
    return raise_status(state->error_types, error);
}

PyObject *none_or_raise(LoaderState *state, int status, const fm_error &error) {
    if (status) return raise_error(state, error);
    Py_RETURN_NONE;
}

} // namespace feedmill
