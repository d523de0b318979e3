// The type _native.Loader.
#pragma once
#include "python.h"

namespace feedmill {

// Creates the type; none: a Python exception is set. `module` must hold Error and BudgetError.
Ref make_loader_type(PyObject *module);

} // namespace feedmill
