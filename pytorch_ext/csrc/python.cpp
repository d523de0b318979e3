#include "python.h"

#include <unistd.h>

#include <cstring>
#include <exception>
#include <new>
#include <stdexcept>

namespace feedmill {
namespace {

// Calls a Python function that takes the GIL. The function throws nothing: the stack is unwound
// only if Python ends the thread, see take_gil_back(). A destructor then runs with every C++
// library, a catch block only with libstdc++.
template <typename Call> auto take_gil(Call call) {
    struct Sleeper {
        bool has_returned = false;
        ~Sleeper() {
            while (!has_returned) pause();
        }
    } sleeper;
    const auto result = call();
    sleeper.has_returned = true;
    return result;
}

} // namespace

void take_gil_back(PyThreadState *state) {
    take_gil([state] {
        PyEval_RestoreThread(state);
        return true;
    });
}

PyGILState_STATE ensure_gil() {
    return take_gil([] { return PyGILState_Ensure(); });
}

void set_caught() {
    try {
        throw;
    } catch (const std::bad_alloc &) {
        PyErr_NoMemory();
    } catch (const std::length_error &) {
        PyErr_NoMemory();
    } catch (const std::exception &error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
    } catch (...) {
        PyErr_SetString(PyExc_RuntimeError, "feedmill: an unknown C++ exception");
    }
}

Ref allocate_object(PyTypeObject *type) {
    auto *const allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
    return Ref(allocate(type, 0));
}

void free_object(PyObject *object) {
    PyTypeObject *const type = Py_TYPE(object);
    reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

Ref allocate_bytearray(Py_ssize_t n_bytes) {
    // Resized from an empty one: without memory for the bytes, Python 3.11.2 would free a half
    // initialized object and print a SystemError.
    Ref array(PyByteArray_FromStringAndSize(nullptr, 0));
    if (!array || PyByteArray_Resize(array.get(), n_bytes)) return Ref();
    return array;
}

Ref text_from(const char *message) {
    return Ref(PyUnicode_DecodeUTF8(message, Py_ssize_t(std::strlen(message)), "replace"));
}

} // namespace feedmill
