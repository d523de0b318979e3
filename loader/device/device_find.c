/* Finds the calls of a kind of device: in this library, or in a plug-in that is loaded here. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/device.h"

#define PLUGIN_FILE "libfeedmill_cuda.so"
#define PATH_BYTES 4096

/* The plug-in's path: in the folder of the library that this code is part of. */
static void path_beside(char out[PATH_BYTES]) {
    Dl_info info;
    /* A function's address as the data pointer that dladdr() takes. */
    const union {
        int (*function)(fm_device_kind, const fm_device_calls **, fm_error *);
        const void *data;
    } here = {.function = fm_device_find};
    const char *slash = NULL;
    if (dladdr(here.data, &info) && info.dli_fname) slash = strrchr(info.dli_fname, '/');
    const int n = slash ? (int)(slash + 1 - info.dli_fname) : 0;
    snprintf(out, PATH_BYTES, "%.*s%s", n, slash ? info.dli_fname : "", PLUGIN_FILE);
}

static int check_version(const fm_device_calls *calls, const char *path, fm_error *error) {
    if (calls && calls->version == FM_DEVICE_VERSION && calls->struct_bytes == sizeof(*calls))
        return FM_OK;
    return fm_error_set(
        error, FM_ERR_UNAVAILABLE,
        "%s is not for this version of feedmill (%s): build or install both together", path,
        FM_VERSION_STRING);
}

static int load(const fm_device_calls **out, fm_error *error) {
    char path[PATH_BYTES];
    const char *const named = getenv("FEEDMILL_CUDA_LIBRARY");
    if (named && *named)
        snprintf(path, sizeof(path), "%s", named);
    else
        path_beside(path);
    /* RTLD_NODELETE, as the CUDA runtime can't be unloaded safely. */
    void *const library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library)
        return fm_error_set(error, FM_ERR_UNAVAILABLE,
                            "no CUDA: the plug-in can't be loaded (%s); install feedmill-cuda13, "
                            "build feedmill with the CUDA toolkit installed, or set its path in "
                            "FEEDMILL_CUDA_LIBRARY",
                            dlerror());
    union {
        void *data;
        fm_device_plugin *function;
    } symbol = {.data = dlsym(library, FM_DEVICE_SYMBOL)};
    if (!symbol.data)
        return fm_error_set(error, FM_ERR_UNAVAILABLE,
                            "%s is not a plug-in of feedmill: it has no %s", path,
                            FM_DEVICE_SYMBOL);
    const fm_device_calls *const calls = symbol.function();
    const int status = check_version(calls, path, error);
    if (!status) *out = calls;
    return status;
}

int fm_device_find(fm_device_kind kind, const fm_device_calls **out, fm_error *error) {
    *out = NULL;
    switch (kind) {
    case FM_DEVICE_HOST:
        *out = fm_device_host();
        return FM_OK;
    case FM_DEVICE_CUDA:
        return load(out, error);
    case FM_DEVICE_NONE:
        break;
    }
    return fm_error_set(error, FM_ERR_ARGUMENT, "%d is not a kind of device", (int)kind);
}

int fm_device_count(fm_device_kind kind, int32_t *n_devices, fm_error *error) {
    fm_error_clear(error);
    if (n_devices) *n_devices = 0;
    const fm_device_calls *calls;
    int32_t n = 0;
    int status = fm_device_find(kind, &calls, error);
    if (!status) status = calls->count(&n, error);
    if (!status && n_devices) *n_devices = n;
    return status;
}
