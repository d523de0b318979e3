#include "transcoder.h"

#include <cstring>

#include "feedmill/pack.h"

namespace feedmill {
namespace {

struct Transcoder {
    PyObject_HEAD fm_transcoder *handle;
    bool is_busy; // changed under the GIL only
};

Transcoder *as_transcoder(PyObject *self) { return reinterpret_cast<Transcoder *>(self); }

void raise_error(const fm_error &error) {
    PyObject *const kind = error.status == FM_ERR_NOMEM      ? PyExc_MemoryError
                           : error.status == FM_ERR_ARGUMENT ? PyExc_ValueError
                                                             : PyExc_RuntimeError;
    PyErr_SetString(kind, error.message);
}

int transcoder_init(PyObject *object, PyObject *args, PyObject *kwargs) {
    static const char *const names[] = {"interval", "max_cost_ppm", "verify", nullptr};
    Transcoder *const self = as_transcoder(object);
    fm_transcoder_config config;
    fm_transcoder_config_init(&config);
    unsigned int interval = config.interval, max_cost_ppm = config.max_cost_ppm;
    int verify = config.verify;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$IIp", const_cast<char **>(names), &interval,
                                     &max_cost_ppm, &verify))
        return -1;
    if (self->handle) {
        PyErr_SetString(PyExc_RuntimeError, "a transcoder is opened once");
        return -1;
    }
    config.interval = interval;
    config.max_cost_ppm = max_cost_ppm;
    config.verify = verify != 0;
    fm_error error;
    if (!fm_transcoder_open(&self->handle, &config, &error)) return 0;
    raise_error(error);
    return -1;
}

void transcoder_dealloc(PyObject *object) {
    PyTypeObject *const type = Py_TYPE(object);
    fm_transcoder_close(&as_transcoder(object)->handle);
    reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

PyObject *rows_of(const fm_transcoded &out) {
    PyObject *const rows = PyTuple_New(FM_PACK_ROWS);
    for (Py_ssize_t k = 0; rows && k < FM_PACK_ROWS; k++) {
        PyObject *const offset = PyLong_FromUnsignedLongLong(out.row_offsets[k]);
        if (!offset || PyTuple_SetItem(rows, k, offset)) {
            Py_DECREF(rows);
            return nullptr;
        }
    }
    return rows;
}

PyObject *tuple_of(const fm_transcoded &out) {
    PyObject *const why =
        PyUnicode_DecodeUTF8(out.why, Py_ssize_t(std::strlen(out.why)), "replace");
    PyObject *const rows = why ? rows_of(out) : nullptr;
    PyObject *result = nullptr;
    if (rows)
        result = Py_BuildValue("iOy#iiIiiO", out.reason, why,
                               reinterpret_cast<const char *>(out.bytes), Py_ssize_t(out.n_bytes),
                               int(out.width), int(out.height), unsigned(out.interval),
                               int(out.mcu_width_px), int(out.mcu_height_px), rows);
    Py_XDECREF(rows);
    Py_XDECREF(why);
    return result;
}

PyObject *transcoder_run(PyObject *object, PyObject *data) {
    Transcoder *const self = as_transcoder(object);
    if (!self->handle || self->is_busy) {
        PyErr_SetString(PyExc_RuntimeError, self->handle ? "another thread uses this transcoder"
                                                         : "the transcoder was not opened");
        return nullptr;
    }
    char *bytes;
    Py_ssize_t n_bytes;
    if (PyBytes_AsStringAndSize(data, &bytes, &n_bytes)) return nullptr;
    fm_transcoded out;
    fm_error error;
    int status;
    self->is_busy = true;
    Py_BEGIN_ALLOW_THREADS status =
        fm_transcoder_run(self->handle, bytes, size_t(n_bytes), &out, &error);
    Py_END_ALLOW_THREADS PyObject *result = nullptr;
    if (status)
        raise_error(error);
    else
        result = tuple_of(out);
    self->is_busy = false;
    return result;
}

} // namespace

PyObject *pack_reasons() {
#define FM_X(name, value, text) text,
    static const char *const texts[] = { FM_PACK_REASON_LIST(FM_X) };
#undef FM_X
    const Py_ssize_t n = Py_ssize_t(sizeof(texts) / sizeof(texts[0]));
    PyObject *const tuple = PyTuple_New(n);
    for (Py_ssize_t i = 0; tuple && i < n; i++) {
        PyObject *const text = PyUnicode_FromString(texts[i]);
        if (!text || PyTuple_SetItem(tuple, i, text)) {
            Py_DECREF(tuple);
            return nullptr;
        }
    }
    return tuple;
}

PyObject *make_transcoder_type(PyObject *module) {
    static PyMethodDef methods[] = {
        {"run", transcoder_run, METH_O, "Transcodes an encoded image; see _native.pyi."},
        {nullptr, nullptr, 0, nullptr}};
    static PyType_Slot slots[] = {
        {Py_tp_init, reinterpret_cast<void *>(transcoder_init)},
        {Py_tp_dealloc, reinterpret_cast<void *>(transcoder_dealloc)},
        {Py_tp_methods, methods},
        {Py_tp_doc, const_cast<char *>("Rewrites JPEGs so that their crops decode fast.")},
        {0, nullptr}};
    static PyType_Spec spec = {"feedmill._native.Transcoder", sizeof(Transcoder), 0,
                               Py_TPFLAGS_DEFAULT, slots};
    return PyType_FromModuleAndSpec(module, &spec, nullptr);
}

} // namespace feedmill
