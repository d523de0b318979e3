// A single image as an array's memory.
#pragma once
#include "python.h"

namespace feedmill {

// imread(path_or_bytes, bgr, max_image_pixels, rejected_formats=0): (bytearray, height, width), or
// the text of why the native decoder does not take it. The GIL is released while the file is read
// and decoded.
PyObject *imread(PyObject *module, PyObject *args);

} // namespace feedmill
