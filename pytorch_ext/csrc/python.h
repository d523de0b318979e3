// Helpers for Python's C API: ownership of references, the GIL, and C++ exceptions.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <type_traits>
#include <utility>
#include <vector>
#ifdef __GLIBCXX__
#include <cxxabi.h>
#endif

namespace feedmill {

// An owned reference, or none. Must be destroyed with the GIL held.
class Ref {
  public:
    Ref() = default;
    // Takes ownership of a new reference, as functions of Python's API return it; nullptr: none.
    explicit Ref(PyObject *owned) noexcept : object_(owned) {}
    // Adds a reference to an object; nullptr: none.
    static Ref borrow(PyObject *object) noexcept {
        Py_XINCREF(object);
        return Ref(object);
    }
    Ref(Ref &&other) noexcept : object_(other.release()) {}
    Ref &operator=(Ref &&other) noexcept {
        // The old reference is released last: that may run Python code which uses this object.
        Ref old(std::exchange(object_, other.release()));
        return *this;
    }
    ~Ref() { Py_XDECREF(object_); }
    PyObject *get() const noexcept { return object_; }
    // Gives ownership to the caller.
    PyObject *release() noexcept { return std::exchange(object_, nullptr); }
    explicit operator bool() const noexcept { return object_ != nullptr; }

  private:
    PyObject *object_ = nullptr;
};

// Objects that are kept alive.
using References = std::vector<Ref>;

// Like PyEval_RestoreThread() and PyGILState_Ensure(). While the interpreter exits, Python ends
// every other thread that asks for the GIL by unwinding its stack, whose destructors would touch
// objects without the GIL. These functions let the thread sleep until the process ends, as
// Python 3.14 does.
void take_gil_back(PyThreadState *state);
PyGILState_STATE ensure_gil();

// Calls a function that throws nothing, without the GIL.
template <typename Call> auto without_gil(Call call) {
    PyThreadState *const state = PyEval_SaveThread();
    if constexpr (std::is_void_v<decltype(call())>) {
        call();
        take_gil_back(state);
    } else {
        const auto result = call();
        take_gil_back(state);
        return result;
    }
}

// Called in a catch block: sets the Python exception for the C++ exception. bad_alloc and
// length_error become MemoryError, others RuntimeError with their text.
void set_caught();

// guarded<function> wraps a function that returns a PyObject * or an int, for the tables of
// methods, getters and slots: it turns C++ exceptions into Python's.
template <auto function> struct Guard;
template <typename Result, typename... Arguments, Result (*function)(Arguments...)>
struct Guard<function> {
    static Result call(Arguments... arguments) {
        try {
            return function(arguments...);
#ifdef __GLIBCXX__
        } catch (const abi::__forced_unwind &) {
            throw; // this thread is being ended, see take_gil_back()
#endif
        } catch (...) {
            set_caught();
        }
        if constexpr (std::is_pointer_v<Result>)
            return nullptr;
        else
            return -1;
    }
};
template <auto function> constexpr auto guarded = Guard<function>::call;

// Entries of a type's or module's tables. flags: METH_VARARGS and the like.
template <auto function>
PyMethodDef method_entry(const char *name, int flags, const char *doc) noexcept {
    const auto call = guarded<function>;
    return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(call)), flags, doc};
}

template <auto function> PyGetSetDef getter_entry(const char *name, const char *doc) noexcept {
    return {name, guarded<function>, nullptr, doc, nullptr};
}

template <auto function> PyType_Slot slot_entry(int slot) noexcept {
    return {slot, reinterpret_cast<void *>(guarded<function>)};
}

// A new, zeroed object of a type; none: a Python exception is set.
Ref allocate_object(PyTypeObject *type);

// Frees an object's own memory, the last step of its tp_dealloc.
void free_object(PyObject *object);

// A new bytearray of n_bytes bytes, whose contents are undefined; none: a Python exception is set.
Ref allocate_bytearray(Py_ssize_t n_bytes);

// A tuple of n items; `make(i)` gives the i-th as a Ref. None: a Python exception is set.
template <typename Make> Ref make_tuple(size_t n, Make make) {
    Ref tuple(PyTuple_New(Py_ssize_t(n)));
    for (size_t i = 0; tuple && i < n; i++) {
        Ref item = make(i);
        if (!item || PyTuple_SetItem(tuple.get(), Py_ssize_t(i), item.release())) return Ref();
    }
    return tuple;
}

// The address that a Python integer gives.
inline void *pointer_from(unsigned long long address) {
    return reinterpret_cast<void *>(uintptr_t(address));
}

// A message as a str. Bytes that are not UTF-8, such as those of paths, are replaced.
Ref text_from(const char *message);

} // namespace feedmill
