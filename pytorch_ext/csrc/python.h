// The rules at the border between Python and C++, in one place: who owns a reference, who holds the
// GIL, and what becomes of a C++ exception.
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

// An owned reference, or none. To be destroyed with the GIL held.
class Ref {
  public:
    Ref() = default;
    // Takes over the reference that a function of Python's API has returned; nullptr: none.
    explicit Ref(PyObject *owned) noexcept : object_(owned) {}
    // A new reference to what somebody else owns; of nullptr: none.
    static Ref borrow(PyObject *object) noexcept {
        Py_XINCREF(object);
        return Ref(object);
    }
    Ref(Ref &&other) noexcept : object_(other.release()) {}
    Ref &operator=(Ref &&other) noexcept {
        // The old reference goes last: giving it up may run Python code that looks at this one.
        Ref old(std::exchange(object_, other.release()));
        return *this;
    }
    ~Ref() { Py_XDECREF(object_); }
    PyObject *get() const noexcept { return object_; }
    // Hands the reference to the caller.
    PyObject *release() noexcept { return std::exchange(object_, nullptr); }
    explicit operator bool() const noexcept { return object_ != nullptr; }

  private:
    PyObject *object_ = nullptr;
};

// Objects that are kept alive together.
using References = std::vector<Ref>;

// As PyEval_RestoreThread() and PyGILState_Ensure(). While the interpreter exits, Python ends each
// other thread that asks for the GIL, by unwinding its stack. Destructors there would touch objects
// without the GIL; so the thread sleeps until the process is gone, as it does from Python 3.14 on.
void take_gil_back(PyThreadState *state);
PyGILState_STATE ensure_gil();

// Calls a function of C, which throws nothing, without the GIL.
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

// Inside of a catch block: sets the Python exception for what was caught. bad_alloc and
// length_error are MemoryError, anything else RuntimeError with its text.
void set_caught();

// guarded<function> is what Python is given in place of a function that returns a PyObject * or an
// int, as the tables of methods, getters and slots hold it: no C++ exception leaves it.
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

// Entries of a type's or module's tables; `flags` are METH_VARARGS and the like.
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

// A tuple of n items; `make(i)` gives the i-th as a Ref. None: a Python exception is set.
template <typename Make> Ref make_tuple(size_t n, Make make) {
    Ref tuple(PyTuple_New(Py_ssize_t(n)));
    for (size_t i = 0; tuple && i < n; i++) {
        Ref item = make(i);
        if (!item || PyTuple_SetItem(tuple.get(), Py_ssize_t(i), item.release())) return Ref();
    }
    return tuple;
}

// A message as a str; what is not UTF-8 in it, such as parts of paths, is replaced.
Ref text_from(const char *message);

} // namespace feedmill
