/* SHA-256 and HMAC-SHA-256. Any thread. */
#ifndef FM_BASE_DIGEST_H
#define FM_BASE_DIGEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FM_DIGEST_BYTES 32

/* Each returns false if it failed, or if feedmill was built without libcrypto. */
bool fm_digest_sha256(const void *bytes, size_t n_bytes, uint8_t out[FM_DIGEST_BYTES]);
/* `out` may be the key's memory. */
bool fm_digest_hmac(const void *key, size_t key_bytes, const void *bytes, size_t n_bytes,
                    uint8_t out[FM_DIGEST_BYTES]);

#endif
