// Decodes a single image.
#pragma once
#include "python.h"

namespace feedmill {

// imread(path_or_bytes, bgr, max_image_pixels, rejected_formats=0): (bytearray, height, width), or
// a str with the reason why the image is not decoded natively. Releases the GIL while reading and
// decoding.
PyObject *imread(PyObject *module, PyObject *args);

} // namespace feedmill
