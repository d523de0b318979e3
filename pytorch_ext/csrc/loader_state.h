// What stands behind a _native.Loader, and which calls of it may meet.
#pragma once
#include <list>

#include "convert.h"
#include "feedmill/feedmill.h"
#include "python.h"

namespace feedmill {

// The image bytes of each batch that is on its way, oldest first; fm_loader_n_pending() of them. A
// list, as taking from it allocates nothing.
using Held = std::list<References>;

// All of it is read and changed with the GIL held.
struct LoaderState {
    Config config; // the native loader points into it
    Held held;
    Ref place; // of the pending fallback's sample, a bytearray, once fallback() was called
    ErrorTypes error_types;
    fm_loader *handle = nullptr; // nullptr: closed
    bool is_busy = false;        // an ExclusiveCall is in progress
    bool is_closing = false;     // close() came meanwhile; the end of that call does it
    long pid = 0;
    Py_ssize_t slot_bytes = 0;
    int channels = 0, height = 0, width = 0;
};

// A Python object of the type. It has a state as soon as anybody can get hold of it.
struct Loader {
    PyObject_HEAD LoaderState *state;
};

inline LoaderState *state_of(PyObject *object) { return reinterpret_cast<Loader *>(object)->state; }

// False: it is closed, and a Python exception is set.
bool check_open(const LoaderState &state);

// Whether an ExclusiveCall is in progress; not one of a thread that a fork has left behind.
bool is_in_call(const LoaderState &state);

// Ends the threads and gives up what they read. Afterwards every method finds the loader closed.
void close_now(LoaderState *state);

// A call that only one thread at a time may make, for as long as this lives. The native loader
// stays open until then: a close() that comes meanwhile, from another thread or from Python code
// that the call runs, is made up for at the end. The GIL is held at both ends.
class ExclusiveCall {
  public:
    explicit ExclusiveCall(LoaderState *state);
    ExclusiveCall(const ExclusiveCall &) = delete;
    ExclusiveCall &operator=(const ExclusiveCall &) = delete;
    ~ExclusiveCall();
    // False: it is not allowed now, and a Python exception is set.
    explicit operator bool() const { return state_ != nullptr; }
    // Lets go of the bytes of batches that have left: all but the youngest n_pending. That may run
    // Python code, which may come back to this loader: it happens when the call is over.
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
