#include "cache.h"

namespace feedmill {
namespace {

struct Cache {
    PyObject_HEAD fm_cache *handle;
};

Cache *as_cache(PyObject *self) { return reinterpret_cast<Cache *>(self); }

int cache_init(PyObject *object, PyObject *args, PyObject *kwargs) {
    static const char *const names[] = {"budget_bytes", nullptr};
    Cache *const self = as_cache(object);
    unsigned long long budget_bytes;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "K", const_cast<char **>(names), &budget_bytes))
        return -1;
    if (self->handle) {
        PyErr_SetString(PyExc_RuntimeError, "a cache is opened once");
        return -1;
    }
    fm_error error;
    if (!fm_cache_open(&self->handle, budget_bytes, &error)) return 0;
    // All of them: the number is the caller's to change.
    PyErr_SetString(error.status == FM_ERR_NOMEM ? PyExc_MemoryError : PyExc_ValueError,
                    error.message);
    return -1;
}

void cache_dealloc(PyObject *object) {
    PyTypeObject *const type = Py_TYPE(object);
    fm_cache_close(&as_cache(object)->handle);
    reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

} // namespace

fm_cache *cache_from_object(PyObject *object) {
    if (PyType_GetSlot(Py_TYPE(object), Py_tp_dealloc) == reinterpret_cast<void *>(cache_dealloc))
        return as_cache(object)->handle;
    PyErr_SetString(PyExc_TypeError, "cache must be a _native.Cache");
    return nullptr;
}

PyObject *make_cache_type(PyObject *module) {
    static PyType_Slot slots[] = {
        {Py_tp_init, reinterpret_cast<void *>(cache_init)},
        {Py_tp_dealloc, reinterpret_cast<void *>(cache_dealloc)},
        {Py_tp_doc, const_cast<char *>("Encoded files in memory, up to a budget.")},
        {0, nullptr}};
    static PyType_Spec spec = {"feedmill._native.Cache", sizeof(Cache), 0, Py_TPFLAGS_DEFAULT,
                               slots};
    return PyType_FromModuleAndSpec(module, &spec, nullptr);
}

} // namespace feedmill
