#include "cache.h"

namespace feedmill {
namespace {

struct Cache {
    PyObject_HEAD fm_cache *handle; // open, from tp_new on
};

Cache *as_cache(PyObject *self) { return reinterpret_cast<Cache *>(self); }

// __new__ opens the cache: there is never an object without one.
PyObject *cache_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static const char *const names[] = {"budget_bytes", nullptr};
    unsigned long long budget_bytes;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "K:Cache", const_cast<char **>(names),
                                     &budget_bytes))
        return nullptr;
    Ref object = allocate_object(type);
    if (!object) return nullptr;
    fm_error error;
    if (!fm_cache_open(&as_cache(object.get())->handle, budget_bytes, &error))
        return object.release();
    // Every other error is a ValueError: the caller must change budget_bytes.
    PyErr_SetString(error.status == FM_ERR_NOMEM ? PyExc_MemoryError : PyExc_ValueError,
                    error.message);
    return nullptr;
}

void cache_dealloc(PyObject *object) {
    fm_cache_close(&as_cache(object)->handle);
    free_object(object);
}

} // namespace

fm_cache *cache_from_object(PyObject *object) {
    if (PyType_GetSlot(Py_TYPE(object), Py_tp_dealloc) == reinterpret_cast<void *>(cache_dealloc))
        return as_cache(object)->handle;
    PyErr_SetString(PyExc_TypeError, "cache must be a _native.Cache");
    return nullptr;
}

Ref make_cache_type(PyObject *module) {
    static PyType_Slot slots[] = {
        slot_entry<cache_new>(Py_tp_new),
        {Py_tp_dealloc, reinterpret_cast<void *>(cache_dealloc)},
        {Py_tp_doc, const_cast<char *>("Encoded files in memory, up to a budget.")},
        {0, nullptr}};
    static PyType_Spec spec = {"feedmill._native.Cache", sizeof(Cache), 0, Py_TPFLAGS_DEFAULT,
                               slots};
    return Ref(PyType_FromModuleAndSpec(module, &spec, nullptr));
}

} // namespace feedmill
