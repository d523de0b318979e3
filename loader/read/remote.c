#define _GNU_SOURCE
#include "read/remote.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct fm_remote {
    fm_remote_config config;
    char *endpoint_url, *ca_bundle;
};

bool fm_remote_is_name(const char *path) {
    return !strncmp(path, "s3://", 5) || !strncmp(path, "gs://", 5) ||
           !strncmp(path, "http://", 7) || !strncmp(path, "https://", 8);
}

void fm_remote_config_init(fm_remote_config *config) {
    *config = (fm_remote_config){
        .struct_bytes = sizeof(*config),
        .region = "us-east-1",
        .max_requests = 256,
        .max_attempts = 10,
        .connect_timeout_ms = 10000,
        .stall_timeout_ms = 20000,
        .give_up_ms = 120000,
    };
}

int fm_remote_open(fm_remote **out, const fm_remote_config *config, fm_error *error) {
    *out = NULL;
#if FM_HAVE_HTTP
    fm_remote *const remote = calloc(1, sizeof(*remote));
    if (!remote) return fm_error_set(error, FM_ERR_NOMEM, "no memory for a remote");
    remote->config = *config;
    if (config->endpoint_url)
        remote->config.endpoint_url = remote->endpoint_url = strdup(config->endpoint_url);
    if (config->ca_bundle) remote->config.ca_bundle = remote->ca_bundle = strdup(config->ca_bundle);
    *out = remote;
    return FM_OK;
#else
    (void)config;
    return fm_error_set(error, FM_ERR_UNAVAILABLE,
                        "feedmill was built without libcurl, which reading objects needs");
#endif
}

int fm_remote_set_credentials(fm_remote *remote, const fm_remote_credentials *credentials,
                              fm_error *error) {
    (void)remote;
    (void)credentials;
    (void)error;
    return FM_OK;
}

void fm_remote_close(fm_remote *remote) {
    if (!remote) return;
    free(remote->endpoint_url);
    free(remote->ca_bundle);
    free(remote);
}

const fm_remote_config *fm_remote_settings(const fm_remote *remote) { return &remote->config; }

static bool add_header(fm_remote_request *out, const char *name, const char *value) {
    return asprintf(&out->headers[out->n_headers++], "%s: %s", name, value) >= 0;
}

int fm_remote_request_make(fm_remote *remote, const fm_remote_wish *wish, fm_remote_request *out,
                           fm_error *error) {
    *out = (fm_remote_request){0};
    const char *const name = wish->name;
    char range[64];
    if (!strncmp(name, "s3://", 5) && remote->endpoint_url) {
        if (asprintf(&out->url, "%s/%s", remote->endpoint_url, name + 5) < 0) out->url = NULL;
    } else if (!strncmp(name, "http", 4)) {
        out->url = strdup(name);
    } else {
        return fm_error_set(error, FM_ERR_ARGUMENT, "can't be requested");
    }
    snprintf(range, sizeof(range), "bytes=%llu-%llu", (unsigned long long)wish->offset_bytes,
             (unsigned long long)(wish->offset_bytes + wish->range_bytes - 1));
    if (wish->range_bytes) add_header(out, "Range", range);
    if (wish->etag) add_header(out, "If-Match", wish->etag);
    return FM_OK;
}

void fm_remote_request_free(fm_remote_request *request) {
    free(request->url);
    for (size_t i = 0; i < request->n_headers; i++) free(request->headers[i]);
    *request = (fm_remote_request){0};
}
