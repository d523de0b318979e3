// A transform that is applied to one image at a time (transformer.h of the C library).
#pragma once
#include "python.h"

namespace feedmill {

// The type _native.Transformer; none: a Python exception is set.
Ref make_transformer_type(PyObject *module);

} // namespace feedmill
