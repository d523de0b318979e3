#include "remote.h"

#include <cstddef>
#include <cstring>
#include <strings.h>
#include <structmember.h>
#include <unistd.h>

namespace feedmill {
namespace {

// How often a fetch looks for Ctrl-C.
constexpr int64_t kSignalsNs = 100 * 1000 * 1000;

struct Remote {
    PyObject_HEAD fm_remote *handle; // open, from tp_new on
    PyObject *prepare;               // called with a scheme at its first use; or nullptr
    bool is_s3_prepared, is_gs_prepared;
    pid_t pid;
    PyObject *weak_references;
};

Remote *as_remote(PyObject *self) { return reinterpret_cast<Remote *>(self); }

// Sets the exception for an error. FM_ERR_UNAVAILABLE and FM_ERR_THREAD are RuntimeErrors.
PyObject *raise_error(const fm_error &error) {
    PyObject *type = PyExc_RuntimeError;
    if (error.status == FM_ERR_ARGUMENT) type = PyExc_ValueError;
    if (error.status == FM_ERR_NOMEM) type = PyExc_MemoryError;
    const Ref text = text_from(error.message);
    if (text) PyErr_SetObject(type, text.get());
    return nullptr;
}

// Parses the settings; those that are None or 0 keep their defaults. `prepare` is set to a borrowed
// reference or nullptr.
bool parse_settings(PyObject *args, PyObject *kwargs, fm_remote_config *config,
                    PyObject **prepare) {
    static const char *const names[] = {
        "endpoint_url", "gs_endpoint_url",    "region",           "ca_bundle",  "max_requests",
        "max_attempts", "connect_timeout_ms", "stall_timeout_ms", "give_up_ms", "hedge_percent",
        "prepare",      nullptr};
    const char *region = nullptr;
    unsigned int numbers[5] = {0, 0, 0, 0, 0};
    PyObject *given = Py_None;
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "|$zzzzIIIIIIO:Remote", const_cast<char **>(names), &config->endpoint_url,
            &config->gs_endpoint_url, &region, &config->ca_bundle, &numbers[0], &numbers[1],
            &numbers[2], &numbers[3], &numbers[4], &config->hedge_percent, &given))
        return false;
    if (given != Py_None && !PyCallable_Check(given)) {
        PyErr_SetString(PyExc_TypeError, "prepare must be a function or None");
        return false;
    }
    if (region) config->region = region;
    if (numbers[0]) config->max_requests = numbers[0];
    if (numbers[1]) config->max_attempts = numbers[1];
    if (numbers[2]) config->connect_timeout_ms = numbers[2];
    if (numbers[3]) config->stall_timeout_ms = numbers[3];
    if (numbers[4]) config->give_up_ms = numbers[4];
    *prepare = given == Py_None ? nullptr : given;
    return true;
}

// __new__ opens the fm_remote: there is never an object without one.
PyObject *remote_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    fm_remote_config config;
    fm_remote_config_init(&config);
    PyObject *prepare = nullptr;
    if (!parse_settings(args, kwargs, &config, &prepare)) return nullptr;
    Ref object = allocate_object(type);
    if (!object) return nullptr;
    Remote *const self = as_remote(object.get());
    self->pid = getpid();
    fm_error error;
    if (fm_remote_open(&self->handle, &config, &error)) return raise_error(error);
    self->prepare = Ref::borrow(prepare).release();
    return object.release();
}

void remote_dealloc(PyObject *object) {
    Remote *const self = as_remote(object);
    if (self->weak_references) PyObject_ClearWeakRefs(object);
    Py_XDECREF(self->prepare);
    // The fetching thread is joined, which may take 50 ms.
    if (self->handle) without_gil([&] { fm_remote_close(&self->handle); });
    free_object(object);
}

// set_credentials(access_key=None, secret_key=None, session_token=None, bearer_token=None,
// gs_access_key=None, gs_secret_key=None): replaces them all.
PyObject *remote_set_credentials(PyObject *self, PyObject *args, PyObject *kwargs) {
    static const char *const names[] = {"access_key",   "secret_key",    "session_token",
                                        "bearer_token", "gs_access_key", "gs_secret_key",
                                        nullptr};
    fm_remote_credentials credentials{};
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "|$zzzzzz:set_credentials", const_cast<char **>(names),
            &credentials.access_key, &credentials.secret_key, &credentials.session_token,
            &credentials.bearer_token, &credentials.gs_access_key, &credentials.gs_secret_key))
        return nullptr;
    fm_error error;
    if (fm_remote_set_credentials(as_remote(self)->handle, &credentials, &error))
        return raise_error(error);
    Py_RETURN_NONE;
}

// Ends a fetch when it goes out of scope.
class Fetch {
  public:
    Fetch() = default;
    Fetch(const Fetch &) = delete;
    Fetch &operator=(const Fetch &) = delete;
    ~Fetch() { fm_fetch_end(&handle); }
    fm_fetch *handle = nullptr;
};

// Runs a fetch to its end. Returns the bytes, or, if the object can't be read, the reason as a str.
PyObject *run_fetch(PyObject *self, PyObject *args, bool is_first, Fetch *fetch) {
    PyObject *encoded = nullptr;
    unsigned long long offset = 0, n_bytes = 0;
    const char *etag = nullptr;
    const char *const format = is_first ? "O&KK:fetch_first" : "O&|KKz:fetch";
    if (!PyArg_ParseTuple(args, format, PyUnicode_FSConverter, &encoded, &offset, &n_bytes, &etag))
        return nullptr;
    const Ref owner(encoded);
    const char *const name = PyBytes_AsString(encoded);
    if (!prepare_remote(self, name)) return nullptr;
    fm_error error;
    fm_remote *const remote = as_remote(self)->handle;
    const int started =
        is_first ? fm_fetch_start_first(&fetch->handle, remote, name, offset, n_bytes, &error)
                 : fm_fetch_start(&fetch->handle, remote, name, offset, n_bytes, etag, &error);
    if (started) return raise_error(error);
    const uint8_t *bytes = nullptr;
    size_t n = 0;
    int status = FM_AGAIN;
    while (status == FM_AGAIN) {
        status = without_gil(
            [&] { return fm_fetch_wait(fetch->handle, kSignalsNs, &bytes, &n, &error); });
        if (PyErr_CheckSignals()) return nullptr;
    }
    if (status) return text_from(error.message).release();
    return PyBytes_FromStringAndSize(reinterpret_cast<const char *>(bytes), Py_ssize_t(n));
}

// fetch(name, offset=0, n_bytes=0, etag=None): the object or range as bytes; or the reason as a
// str.
PyObject *remote_fetch(PyObject *self, PyObject *args) {
    Fetch fetch;
    const Ref keeps_open = Ref::borrow(self);
    return run_fetch(self, args, false, &fetch);
}

// fetch_first(name, offset, n_bytes): (bytes, ETag, size of the object or None); or the reason as a
// str.
PyObject *remote_fetch_first(PyObject *self, PyObject *args) {
    Fetch fetch;
    const Ref keeps_open = Ref::borrow(self);
    Ref bytes(run_fetch(self, args, true, &fetch));
    if (!bytes || !PyBytes_Check(bytes.get())) return bytes.release();
    const char *etag = nullptr;
    uint64_t object_bytes = 0;
    fm_fetch_object(fetch.handle, &etag, &object_bytes);
    const Ref text = text_from(etag);
    if (!text) return nullptr;
    if (object_bytes == UINT64_MAX) return Py_BuildValue("(OOO)", bytes.get(), text.get(), Py_None);
    return Py_BuildValue("(OOK)", bytes.get(), text.get(), (unsigned long long)object_bytes);
}

PyObject *remote_pid(PyObject *self, void *) { return PyLong_FromLong(as_remote(self)->pid); }

PyMethodDef methods[] = {
    method_entry<remote_set_credentials>("set_credentials", METH_VARARGS | METH_KEYWORDS,
                                         "Replaces the credentials."),
    method_entry<remote_fetch>("fetch", METH_VARARGS, "An object as bytes, or why not."),
    method_entry<remote_fetch_first>("fetch_first", METH_VARARGS,
                                     "A range, the ETag and the size; or why not."),
    {nullptr, nullptr, 0, nullptr}};
// What renews the credentials keeps a weak reference.
PyMemberDef members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Remote, weak_references), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};
PyGetSetDef getters[] = {getter_entry<remote_pid>("pid", "Of the process that made it."),
                         {nullptr, nullptr, nullptr, nullptr, nullptr}};

} // namespace

fm_remote *remote_from_object(PyObject *object) {
    if (PyType_GetSlot(Py_TYPE(object), Py_tp_dealloc) == reinterpret_cast<void *>(remote_dealloc))
        return as_remote(object)->handle;
    PyErr_SetString(PyExc_TypeError, "remote must be a _native.Remote");
    return nullptr;
}

bool prepare_remote(PyObject *remote, const char *path) {
    Remote *const self = as_remote(remote);
    const bool is_s3 = strncasecmp(path, "s3://", 5) == 0;
    if (!is_s3 && strncasecmp(path, "gs://", 5) != 0) return true;
    bool &is_prepared = is_s3 ? self->is_s3_prepared : self->is_gs_prepared;
    if (is_prepared || !self->prepare) return true;
    const Ref result(PyObject_CallFunction(self->prepare, "s", is_s3 ? "s3" : "gs"));
    if (!result) return false;
    is_prepared = true;
    return true;
}

Ref make_remote_type(PyObject *module) {
    static PyType_Slot slots[] = {
        slot_entry<remote_new>(Py_tp_new),
        {Py_tp_dealloc, reinterpret_cast<void *>(remote_dealloc)},
        {Py_tp_methods, methods},
        {Py_tp_members, members},
        {Py_tp_getset, getters},
        {Py_tp_doc, const_cast<char *>("Settings and credentials of object stores.")},
        {0, nullptr}};
    static PyType_Spec spec = {"feedmill._native.Remote", sizeof(Remote), 0, Py_TPFLAGS_DEFAULT,
                               slots};
    return Ref(PyType_FromModuleAndSpec(module, &spec, nullptr));
}

} // namespace feedmill
