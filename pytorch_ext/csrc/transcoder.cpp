#include "transcoder.h"

#include "feedmill/pack.h"

namespace feedmill {
namespace {

struct Transcoder {
    PyObject_HEAD fm_transcoder *handle; // open, from tp_new on
    bool is_busy;                        // changed under the GIL only
};

Transcoder *as_transcoder(PyObject *self) { return reinterpret_cast<Transcoder *>(self); }

void raise_error(const fm_error &error) {
    PyObject *const kind = error.status == FM_ERR_NOMEM      ? PyExc_MemoryError
                           : error.status == FM_ERR_ARGUMENT ? PyExc_ValueError
                                                             : PyExc_RuntimeError;
    PyErr_SetString(kind, error.message);
}

// __new__ opens the transcoder: there is never an object without one.
PyObject *transcoder_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static const char *const names[] = {"interval", "max_cost_ppm", "verify", nullptr};
    fm_transcoder_config config;
    fm_transcoder_config_init(&config);
    unsigned int interval = config.interval, max_cost_ppm = config.max_cost_ppm;
    int verify = config.verify;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$IIp:Transcoder", const_cast<char **>(names),
                                     &interval, &max_cost_ppm, &verify))
        return nullptr;
    config.interval = interval;
    config.max_cost_ppm = max_cost_ppm;
    config.verify = verify != 0;
    Ref object = allocate_object(type);
    if (!object) return nullptr;
    fm_error error;
    if (!fm_transcoder_open(&as_transcoder(object.get())->handle, &config, &error))
        return object.release();
    raise_error(error);
    return nullptr;
}

void transcoder_dealloc(PyObject *object) {
    fm_transcoder_close(&as_transcoder(object)->handle);
    free_object(object);
}

PyObject *tuple_of(const fm_transcoded &out) {
    const Ref why = text_from(out.why);
    if (!why) return nullptr;
    const Ref rows = make_tuple(FM_PACK_ROWS, [&out](size_t k) {
        return Ref(PyLong_FromUnsignedLongLong(out.row_offsets[k]));
    });
    if (!rows) return nullptr;
    return Py_BuildValue("iOy#iiIiiO", out.reason, why.get(),
                         reinterpret_cast<const char *>(out.bytes), Py_ssize_t(out.n_bytes),
                         int(out.width), int(out.height), unsigned(out.interval),
                         int(out.mcu_width_px), int(out.mcu_height_px), rows.get());
}

// Marks a transcoder as busy during a call.
class Busy {
  public:
    explicit Busy(Transcoder *transcoder) : transcoder_(transcoder) { transcoder_->is_busy = true; }
    Busy(const Busy &) = delete;
    Busy &operator=(const Busy &) = delete;
    ~Busy() { transcoder_->is_busy = false; }

  private:
    Transcoder *transcoder_;
};

PyObject *transcoder_run(PyObject *object, PyObject *data) {
    Transcoder *const self = as_transcoder(object);
    if (self->is_busy) {
        PyErr_SetString(PyExc_RuntimeError, "another thread uses this transcoder");
        return nullptr;
    }
    char *bytes;
    Py_ssize_t n_bytes;
    if (PyBytes_AsStringAndSize(data, &bytes, &n_bytes)) return nullptr;
    const Busy busy(self); // also while the result is read, which the transcoder owns
    fm_transcoded out;
    fm_error error;
    const int status = without_gil(
        [&] { return fm_transcoder_run(self->handle, bytes, size_t(n_bytes), &out, &error); });
    if (!status) return tuple_of(out);
    raise_error(error);
    return nullptr;
}

} // namespace

Ref pack_reasons() {
#define FM_X(name, value, text) text,
    static const char *const texts[] = { FM_PACK_REASON_LIST(FM_X) };
#undef FM_X
    return make_tuple(std::size(texts),
                      [](size_t i) { return Ref(PyUnicode_FromString(texts[i])); });
}

Ref make_transcoder_type(PyObject *module) {
    static PyMethodDef methods[] = {
        method_entry<transcoder_run>("run", METH_O,
                                     "Transcodes an encoded image; see _native.pyi."),
        {nullptr, nullptr, 0, nullptr}};
    static PyType_Slot slots[] = {
        slot_entry<transcoder_new>(Py_tp_new),
        {Py_tp_dealloc, reinterpret_cast<void *>(transcoder_dealloc)},
        {Py_tp_methods, methods},
        {Py_tp_doc, const_cast<char *>("Rewrites JPEGs so that their crops decode fast.")},
        {0, nullptr}};
    static PyType_Spec spec = {"feedmill._native.Transcoder", sizeof(Transcoder), 0,
                               Py_TPFLAGS_DEFAULT, slots};
    return Ref(PyType_FromModuleAndSpec(module, &spec, nullptr));
}

} // namespace feedmill
