// The state of a _native.Loader, and the guard for calls that must not run at the same time.
#pragma once
#include <list>

#include "convert.h"
#include "feedmill/feedmill.h"
#include "python.h"

namespace feedmill {

// The Python objects with the image bytes of each pending batch, oldest first;
// fm_loader_n_pending() entries. A list, because removing from it allocates nothing.
using Held = std::list<References>;

// Read and changed with the GIL held.
struct LoaderState {
    Config config; // the native loader points into it
    Held held;
    Ref place; // the bytearray that fallback() returned, until fallback_done()
    ErrorTypes error_types;
    fm_loader *handle = nullptr; // nullptr: closed
    bool is_busy = false;        // an ExclusiveCall is in progress
    bool is_closing =
        false; // close() was called during that call, which closes the loader at its end
    long pid = 0;
    Py_ssize_t slot_bytes = 0;
    int channels = 0, height = 0, width = 0;
};

// The Python object. It has a state before any Python code can see it.
struct Loader {
    PyObject_HEAD LoaderState *state;
};

inline LoaderState *state_of(PyObject *object) { return reinterpret_cast<Loader *>(object)->state; }

// False: the loader is closed, and a Python exception is set.
bool check_open(const LoaderState &state);

// Whether an ExclusiveCall is in progress in this process; a forked child inherits none.
bool is_in_call(const LoaderState &state);

// Marks the loader as closed for all methods, ends its threads, then releases the bytes that they
// read.
void close_now(LoaderState *state);

// Guards a call that only one thread at a time may make. The native loader stays open until the
// call ends: a close() during the call, by another thread or by Python code that the call runs,
// takes effect at its end. Constructed and destroyed with the GIL held.
class ExclusiveCall {
  public:
    explicit ExclusiveCall(LoaderState *state);
    ExclusiveCall(const ExclusiveCall &) = delete;
    ExclusiveCall &operator=(const ExclusiveCall &) = delete;
    ~ExclusiveCall();
    // False: the call is not allowed now, and a Python exception is set.
    explicit operator bool() const { return state_ != nullptr; }
    // Releases the image bytes of all batches but the newest n_pending. Happens at the end of the
    // call, as it may run Python code that calls the loader again.
    void keep_youngest(size_t n_pending);

  private:
    LoaderState *state_;
    Held leaving_;
};

// Sets the Python exception for a failed call; returns nullptr.
PyObject *raise_error(LoaderState *state, const fm_error &error);

// None, or the exception of a failed call.
PyObject *none_or_raise(LoaderState *state, int status, const fm_error &error);

} // namespace feedmill
