#include "transformer.h"

#include <cstring>
#include <memory>

#include "convert.h"
#include "feedmill/transformer.h"

namespace feedmill {
namespace {

struct Transformer {
    PyObject_HEAD fm_transformer *handle; // open, from tp_new on
    bool is_busy;                         // changed under the GIL only
};

Transformer *as_transformer(PyObject *self) { return reinterpret_cast<Transformer *>(self); }

// torch's state of a CPU generator (CPUGeneratorImplState in ATen/CPUGeneratorImpl.cpp).
struct TorchState {
    uint64_t seed;
    int32_t left, is_seeded; // words that are left before new ones are made
    uint64_t next;
    uint64_t words[FM_MT19937_N];
    double normal_x, normal_y, normal_rho;
    int32_t has_normal;
    float float_normal;
    uint8_t has_float_normal;
};
static_assert(sizeof(TorchState) == 5056);

fm_streams streams_of(const TorchState &state) {
    fm_streams streams{};
    streams.has_torch_normal = state.has_normal != 0;
    streams.torch_normal = state.has_normal ? state.normal_y : 0.0;
    for (size_t i = 0; i < FM_MT19937_N; i++) streams.torch.words[i] = uint32_t(state.words[i]);
    streams.torch.next = state.left == 1 ? FM_MT19937_N : uint32_t(state.next);
    streams.python.next = streams.numpy.next = FM_MT19937_N;
    return streams;
}

bool has_drawn(const fm_mt19937 &generator, const fm_mt19937 &before) {
    return generator.next != before.next ||
           std::memcmp(generator.words, before.words, sizeof(before.words)) != 0;
}

// Sets a state to what its generator is behind a sample; `before` is what streams_of() returned.
// Nothing is changed if nothing was drawn.
void go_on(TorchState *state, const fm_streams &streams, const fm_streams &before) {
    if (has_drawn(streams.torch, before.torch)) {
        for (size_t i = 0; i < FM_MT19937_N; i++) state->words[i] = streams.torch.words[i];
        state->next = streams.torch.next;
        state->left = int32_t(FM_MT19937_N + 1 - streams.torch.next);
    }
    state->normal_y = streams.torch_normal;
    state->has_normal = streams.has_torch_normal;
}

// Reads a random.getstate(): (version, (624 words and the place of the next one), number that
// random.gauss() keeps or None).
bool read_python_state(PyObject *state, fm_streams *streams) {
    PyObject *words, *normal;
    int version;
    if (!PyArg_ParseTuple(state, "iO!O", &version, &PyTuple_Type, &words, &normal)) return false;
    if (PyTuple_Size(words) != FM_MT19937_N + 1) {
        PyErr_SetString(PyExc_ValueError, "not a state of Python's generator");
        return false;
    }
    for (Py_ssize_t i = 0; i <= FM_MT19937_N; i++) {
        const unsigned long word = PyLong_AsUnsignedLong(PyTuple_GetItem(words, i));
        if (PyErr_Occurred()) return false;
        (i < FM_MT19937_N ? streams->python.words[i] : streams->python.next) = uint32_t(word);
    }
    if (normal == Py_None) return true;
    streams->has_python_normal = 1;
    streams->python_normal = PyFloat_AsDouble(normal);
    return !PyErr_Occurred();
}

// The random.getstate() of the generator in `streams`, of the version that `state` has.
PyObject *python_state_of(const fm_streams &streams, PyObject *state) {
    const Ref words = make_tuple(FM_MT19937_N + 1, [&streams](size_t i) {
        return Ref(PyLong_FromUnsignedLong(i < FM_MT19937_N ? streams.python.words[i]
                                                            : streams.python.next));
    });
    const Ref normal = streams.has_python_normal ? Ref(PyFloat_FromDouble(streams.python_normal))
                                                 : Ref::borrow(Py_None);
    if (!words || !normal) return nullptr;
    return PyTuple_Pack(3, PyTuple_GetItem(state, 0), words.get(), normal.get());
}

// __new__ opens the transformer: there is never an object without one.
PyObject *transformer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    const auto config = std::make_unique<Config>();
    if (!config_from_kwargs(args, kwargs, config.get())) return nullptr;
    Ref object = allocate_object(type);
    if (!object) return nullptr;
    fm_error error;
    const int status =
        fm_transformer_open(&as_transformer(object.get())->handle, &config->config.transform,
                            config->config.max_image_pixels, &error);
    if (!status) return object.release();
    PyErr_SetString(status == FM_ERR_NOMEM ? PyExc_MemoryError : PyExc_ValueError, error.message);
    return nullptr;
}

void transformer_dealloc(PyObject *object) {
    fm_transformer_close(&as_transformer(object)->handle);
    free_object(object);
}

// (bytes of a file,) or (RGB pixels as bytes, width, height)
bool image_from_tuple(PyObject *tuple, fm_source_image *image) {
    char *data;
    Py_ssize_t n_bytes;
    PyObject *bytes;
    int width = 0, height = 0;
    if (!PyArg_ParseTuple(tuple, "S|ii", &bytes, &width, &height) ||
        PyBytes_AsStringAndSize(bytes, &data, &n_bytes))
        return false;
    if (PyTuple_Size(tuple) == 1) {
        image->data = data;
        image->data_bytes = size_t(n_bytes);
        return true;
    }
    if (width < 1 || height < 1 || n_bytes / 3 / width < height) {
        PyErr_SetString(PyExc_ValueError, "fewer bytes than pixels");
        return false;
    }
    image->pixels = reinterpret_cast<const uint8_t *>(data);
    image->pixels_width = width;
    image->pixels_height = height;
    return true;
}

// Calls a function with the transformer's handle, unless another thread is in a call of it. Returns
// a new reference: None, or a text that says why not.
template <typename Call> PyObject *called(Transformer *self, Call call) {
    if (self->is_busy) {
        PyErr_SetString(PyExc_RuntimeError, "another thread uses this transformer");
        return nullptr;
    }
    self->is_busy = true;
    fm_error error;
    const int status = call(self->handle, &error);
    self->is_busy = false;
    if (status) return text_from(error.message).release();
    Py_RETURN_NONE;
}

bool streams_from_bytes(PyObject *bytes, fm_streams *streams) {
    char *data;
    Py_ssize_t n_bytes;
    if (PyBytes_AsStringAndSize(bytes, &data, &n_bytes)) return false;
    if (size_t(n_bytes) == sizeof(*streams)) {
        std::memcpy(streams, data, sizeof(*streams));
        return true;
    }
    PyErr_Format(PyExc_ValueError, "the state has %zd bytes, not %zu", n_bytes, sizeof(*streams));
    return false;
}

// The states of generators as Python gives them: an fm_streams as bytes; or the address of torch's
// state (0: none), and maybe Python's state.
struct States {
    PyObject *state = nullptr, *python_state = nullptr;
    TorchState *of_torch = nullptr;
    fm_streams streams;

    // False: a Python exception is set.
    bool read() {
        if (PyBytes_CheckExact(state)) return streams_from_bytes(state, &streams);
        of_torch = reinterpret_cast<TorchState *>(uintptr_t(PyLong_AsUnsignedLongLong(state)));
        if (PyErr_Occurred()) return false;
        streams = of_torch ? streams_of(*of_torch) : streams_of(TorchState{});
        return !python_state || read_python_state(python_state, &streams);
    }

    // The states behind an image, once `streams` are; torch's is written to where it is. A new
    // reference: see _native.pyi.
    PyObject *behind(const fm_streams &before) {
        if (PyBytes_CheckExact(state))
            return PyBytes_FromStringAndSize(reinterpret_cast<const char *>(&streams),
                                             sizeof(streams));
        const bool drew_from_python = streams.has_python_normal != before.has_python_normal ||
                                      has_drawn(streams.python, before.python);
        if ((drew_from_python && !python_state) || has_drawn(streams.numpy, before.numpy) ||
            (!of_torch && has_drawn(streams.torch, before.torch)))
            Py_RETURN_FALSE;
        Ref result =
            python_state ? Ref(python_state_of(streams, python_state)) : Ref::borrow(Py_None);
        if (result && of_torch) go_on(of_torch, streams, before);
        return result.release();
    }
};

PyObject *transformer_draw(PyObject *object, PyObject *args) {
    States states;
    int width, height;
    if (!PyArg_ParseTuple(args, "iiO|O!", &width, &height, &states.state, &PyTuple_Type,
                          &states.python_state) ||
        !states.read())
        return nullptr;
    const fm_streams before = states.streams;
    // With the GIL: no other thread of Python draws between the states before and those behind.
    const Ref result(called(as_transformer(object), [&](fm_transformer *handle, fm_error *error) {
        return fm_transformer_draw(handle, width, height, &states.streams, error);
    }));
    if (!result || result.get() != Py_None) return Ref::borrow(result.get()).release();
    return states.behind(before);
}

PyObject *transformer_run(PyObject *object, PyObject *args) {
    PyObject *source;
    States states;
    unsigned long long address;
    fm_source_image image{};
    if (!PyArg_ParseTuple(args, "O!KO|O!", &PyTuple_Type, &source, &address, &states.state,
                          &PyTuple_Type, &states.python_state) ||
        !image_from_tuple(source, &image) || !states.read())
        return nullptr;
    return called(as_transformer(object), [&](fm_transformer *handle, fm_error *error) {
        return without_gil([&] {
            return fm_transformer_run(handle, &image, &states.streams,
                                      reinterpret_cast<void *>(uintptr_t(address)), error);
        });
    });
}

PyObject *transformer_shape(PyObject *object, void *) {
    const fm_sample_shape shape = fm_transformer_shape(as_transformer(object)->handle);
    return Py_BuildValue("iii", int(shape.channels), int(shape.height), int(shape.width));
}

} // namespace

Ref make_transformer_type(PyObject *module) {
    static PyMethodDef methods[] = {
        method_entry<transformer_draw>("draw", METH_VARARGS,
                                       "The generators behind an image; see _native.pyi."),
        method_entry<transformer_run>("run", METH_VARARGS, "Transforms an image; see _native.pyi."),
        {nullptr, nullptr, 0, nullptr}};
    static PyGetSetDef attributes[] = {
        getter_entry<transformer_shape>("shape", "(channels, height, width) of the result"),
        {nullptr, nullptr, nullptr, nullptr, nullptr}};
    static PyType_Slot slots[] = {
        slot_entry<transformer_new>(Py_tp_new),
        {Py_tp_dealloc, reinterpret_cast<void *>(transformer_dealloc)},
        {Py_tp_methods, methods},
        {Py_tp_getset, attributes},
        {Py_tp_doc, const_cast<char *>("Applies a transform to one image at a time.")},
        {0, nullptr}};
    static PyType_Spec spec = {"feedmill._native.Transformer", sizeof(Transformer), 0,
                               Py_TPFLAGS_DEFAULT, slots};
    return Ref(PyType_FromModuleAndSpec(module, &spec, nullptr));
}

} // namespace feedmill
