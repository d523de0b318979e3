#include "disk_cache.h"

namespace feedmill {
namespace {

struct DiskCache {
    PyObject_HEAD fm_disk_cache *handle; // open, from tp_new on
};

DiskCache *as_cache(PyObject *self) { return reinterpret_cast<DiskCache *>(self); }

// Sets the exception for an error.
PyObject *raise_error(const fm_error &error) {
    PyObject *type = PyExc_RuntimeError;
    if (error.status == FM_ERR_ARGUMENT) type = PyExc_ValueError;
    if (error.status == FM_ERR_READ) type = PyExc_OSError;
    if (error.status == FM_ERR_NOMEM) type = PyExc_MemoryError;
    const Ref text = text_from(error.message);
    if (text) PyErr_SetObject(type, text.get());
    return nullptr;
}

// __new__ opens the cache: there is never an object without one.
PyObject *cache_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static const char *const names[] = {"path", "limit_bytes", "lru", "check", nullptr};
    PyObject *encoded = nullptr;
    unsigned long long limit_bytes = 0;
    int lru = 0, check = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&K|pp:DiskCache", const_cast<char **>(names),
                                     PyUnicode_FSConverter, &encoded, &limit_bytes, &lru, &check))
        return nullptr;
    const Ref owner(encoded);
    Ref object = allocate_object(type);
    if (!object) return nullptr;
    fm_disk_cache_config config;
    fm_disk_cache_config_init(&config);
    config.path = PyBytes_AsString(encoded);
    config.limit_bytes = limit_bytes;
    config.lru = lru != 0;
    config.check = check != 0;
    fm_error error;
    fm_disk_cache **const handle = &as_cache(object.get())->handle;
    // After a crash the folder's files are counted.
    if (without_gil([&] { return fm_disk_cache_open(handle, &config, &error); }))
        return raise_error(error);
    return object.release();
}

void cache_dealloc(PyObject *object) {
    DiskCache *const self = as_cache(object);
    // What was read is written before.
    if (self->handle) without_gil([&] { fm_disk_cache_close(&self->handle); });
    free_object(object);
}

// What is passed to visit_entry().
struct Visit {
    PyObject *function;
};

int visit_entry(void *user, const fm_disk_cache_entry *entry) {
    const Ref name(PyUnicode_DecodeFSDefault(entry->name));
    const Ref etag = text_from(entry->etag);
    if (!name || !etag || PyErr_CheckSignals()) return FM_ERR_STATE;
    const Ref result(PyObject_CallFunction(
        static_cast<Visit *>(user)->function, "OOKKKKLO", name.get(), etag.get(),
        (unsigned long long)entry->offset_bytes, (unsigned long long)entry->range_bytes,
        (unsigned long long)entry->n_bytes, (unsigned long long)entry->file_bytes,
        (long long)entry->used_s, entry->is_damaged ? Py_True : Py_False));
    const int is_true = result ? PyObject_IsTrue(result.get()) : -1;
    return is_true < 0 ? FM_ERR_STATE : is_true;
}

} // namespace

PyObject *disk_cache_walk(PyObject *, PyObject *args) {
    PyObject *encoded = nullptr, *function = nullptr;
    int verify = 0;
    if (!PyArg_ParseTuple(args, "O&pO:disk_cache_walk", PyUnicode_FSConverter, &encoded, &verify,
                          &function)) {
        return nullptr;
    }
    const Ref owner(encoded);
    fm_disk_cache_usage usage{};
    fm_error error;
    Visit visit{function};
    const int status = fm_disk_cache_walk(PyBytes_AsString(encoded), verify != 0, visit_entry,
                                          &visit, &usage, &error);
    if (PyErr_Occurred()) return nullptr;
    if (status) return raise_error(error);
    return Py_BuildValue("(KKKO)", (unsigned long long)usage.n_entries,
                         (unsigned long long)usage.used_bytes,
                         (unsigned long long)usage.limit_bytes, usage.lru ? Py_True : Py_False);
}

fm_disk_cache *disk_cache_from_object(PyObject *object) {
    if (PyType_GetSlot(Py_TYPE(object), Py_tp_dealloc) == reinterpret_cast<void *>(cache_dealloc))
        return as_cache(object)->handle;
    PyErr_SetString(PyExc_TypeError, "disk_cache must be a _native.DiskCache");
    return nullptr;
}

Ref make_disk_cache_type(PyObject *module) {
    static PyType_Slot slots[] = {
        slot_entry<cache_new>(Py_tp_new),
        {Py_tp_dealloc, reinterpret_cast<void *>(cache_dealloc)},
        {Py_tp_doc, const_cast<char *>("Objects in a folder of a local disk, up to a limit.")},
        {0, nullptr}};
    static PyType_Spec spec = {"feedmill._native.DiskCache", sizeof(DiskCache), 0,
                               Py_TPFLAGS_DEFAULT, slots};
    return Ref(PyType_FromModuleAndSpec(module, &spec, nullptr));
}

} // namespace feedmill
