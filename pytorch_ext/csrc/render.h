// A part of one image, decoded, turned, resized and cropped (render.h of the C library).
#pragma once
#include "python.h"

namespace feedmill {

// image_header(data): see _native.pyi.
PyObject *image_header(PyObject *module, PyObject *args);

// render(...): see _native.pyi.
PyObject *render(PyObject *module, PyObject *args);

// render_at(...): see _native.pyi.
PyObject *render_at(PyObject *module, PyObject *args);

} // namespace feedmill
