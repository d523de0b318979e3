#include "base/digest.h"

#include <string.h>

#if FM_HAVE_HTTP
#include <openssl/evp.h>
#include <openssl/hmac.h>

bool fm_digest_sha256(const void *bytes, size_t n_bytes, uint8_t out[FM_DIGEST_BYTES]) {
    return EVP_Digest(bytes, n_bytes, out, NULL, EVP_sha256(), NULL) == 1;
}

bool fm_digest_hmac(const void *key, size_t key_bytes, const void *bytes, size_t n_bytes,
                    uint8_t out[FM_DIGEST_BYTES]) {
    uint8_t digest[FM_DIGEST_BYTES];
    if (!HMAC(EVP_sha256(), key, (int)key_bytes, bytes, n_bytes, digest, NULL)) return false;
    memcpy(out, digest, sizeof(digest));
    return true;
}

#else

bool fm_digest_sha256(const void *bytes, size_t n_bytes, uint8_t out[FM_DIGEST_BYTES]) {
    (void)bytes;
    (void)n_bytes;
    memset(out, 0, FM_DIGEST_BYTES);
    return false;
}

bool fm_digest_hmac(const void *key, size_t key_bytes, const void *bytes, size_t n_bytes,
                    uint8_t out[FM_DIGEST_BYTES]) {
    (void)key;
    (void)key_bytes;
    return fm_digest_sha256(bytes, n_bytes, out);
}

#endif
