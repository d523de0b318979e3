/*
 * How a test talks to the stub CUDA runtime (stub_cudart.c) inside a plug-in that was built with
 * it. The plug-in exports one function, stub_cudart(), that returns this table.
 *
 * The stub has two devices, each with a legacy default stream (NULL). Whatever is queued in a
 * stream runs on a thread of that stream's, in order, each copy or kernel after a delay. Rules that
 * are broken are complained about in words that begin with the rule's name:
 *
 *     pageable        a copy from memory that is not registered
 *     slot reused     memory that a copy reads was written, unregistered or freed before its end
 *     unordered       memory of the device is touched in a stream while another may be using it
 *     default stream  a copy or kernel in the legacy default stream or one that waits for it
 *     capture         something was queued in a captured stream, or would have broken a capture
 *     context         a call without a current context, or one that left another one behind
 *     target          a copy to what is no memory of the device
 *     leak            what is left at the end
 *
 * Which accesses are in order is known from the events alone (each stream has a vector clock), not
 * from when they happened to run.
 */
#ifndef FM_TEST_STUB_CUDART_H
#define FM_TEST_STUB_CUDART_H

#include <stddef.h>
#include <stdint.h>

typedef struct stub_cudart_calls {
    /* Everything anew. n_devices -1: there is no driver. */
    void (*reset)(int n_devices, uint64_t delay_ns);
    /* The n-th call from now on (from 1) fails; 0: none. */
    void (*fail_at)(long n);
    /* The name of the call that failed because of that; NULL: none has yet. */
    const char *(*failed)(void);
    void (*complain)(const char *text);
    /* What was complained about, one line each; "" if nothing was. Valid until reset(). */
    const char *(*complaints)(void);
    /* Complains about what is still there. */
    void (*check_leaks)(void);
    /* A stream of the consumer's, on a device; it stays until reset(). */
    void *(*stream)(int device);
    /* Memory of a device, the consumer's; it stays until reset(). */
    void *(*memory)(size_t n_bytes);
    /* A kernel in a stream that works on n_bytes: at its turn it puts their checksum to *sum (may
     * be NULL) and overwrites them. */
    void (*use)(int device, void *stream, void *memory, size_t n_bytes, uint64_t *sum);
    /* What is queued in `then` from now on comes after what is queued in `first`. */
    void (*after)(int device, void *then, void *first);
    /* A kernel that takes that long. */
    void (*spin)(int device, void *stream, uint64_t time_ns);
    /* Waits until all that was queued has run. */
    void (*finish)(int device, void *stream);
    /* From now on the stream is captured, or not any more. */
    void (*capture)(void *stream, int on);
    /* Complains if the calling thread's context is not what it was: that of the device, or -1. */
    void (*set_context)(int device);
    void (*check_context)(int device);
    uint64_t (*sum)(const void *bytes, size_t n_bytes);
    /* A kernel that runs until release(). What is queued behind it waits. One at a time. */
    void (*hold)(int device, void *stream);
    void (*release)(void);
} stub_cudart_calls;

typedef const stub_cudart_calls *stub_cudart_function(void);

#endif
