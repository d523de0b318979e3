// Stands in for libgcc_s.so.1 when the extension module is linked, so that the module uses the
// unwinder that glibc loads. With one of its own inside, a thread that ends in the middle of the
// module's C++ (as Python ends threads that ask for the GIL while the interpreter exits) would be
// unwound by glibc's, which hands its own structures to functions of the other.
#define UNWINDER(name) \
    void name(void) {}
UNWINDER(_Unwind_Backtrace)
UNWINDER(_Unwind_DeleteException)
UNWINDER(_Unwind_FindEnclosingFunction)
UNWINDER(_Unwind_ForcedUnwind)
UNWINDER(_Unwind_GetCFA)
UNWINDER(_Unwind_GetDataRelBase)
UNWINDER(_Unwind_GetGR)
UNWINDER(_Unwind_GetIP)
UNWINDER(_Unwind_GetIPInfo)
UNWINDER(_Unwind_GetLanguageSpecificData)
UNWINDER(_Unwind_GetRegionStart)
UNWINDER(_Unwind_GetTextRelBase)
UNWINDER(_Unwind_RaiseException)
UNWINDER(_Unwind_Resume)
UNWINDER(_Unwind_Resume_or_Rethrow)
UNWINDER(_Unwind_SetGR)
UNWINDER(_Unwind_SetIP)
