// The type _native.Transcoder: JPEGs rewritten for packs.
#pragma once
#include "python.h"

namespace feedmill {

// Creates the type; none: a Python exception is set.
Ref make_transcoder_type(PyObject *module);

// The texts of an fm_pack_reason, by its value: a tuple. None: a Python exception is set.
Ref pack_reasons();

} // namespace feedmill
