/*
 * A test's interface to the stub CUDA runtime (stub_cudart.c) in a plug-in that was built with it.
 * The plug-in exports one function, stub_cudart(), that returns this table.
 *
 * The stub has two devices, each with a legacy default stream (NULL). Whatever is queued in a
 * stream runs on that stream's thread, in order, each copy or kernel after a delay. The stub
 * reports broken rules by messages that begin with the rule's name:
 *
 *     pageable        a copy from memory that is not registered
 *     slot reused     memory that a copy reads was written, unregistered or freed before its end
 *     unordered       memory of the device is touched in a stream while another may be using it
 *     default stream  a copy or kernel in the legacy default stream or one that waits for it
 *     capture         something was queued in a captured stream, or would have broken a capture
 *     context         a call without a current context, or one that changed it
 *     target          a copy to memory that is not on the device
 *     leak            objects that still exist at the end
 *
 * Which accesses are in order is known from the events alone (each stream has a vector clock), not
 * from when they happened to run.
 */
#ifndef FM_TEST_STUB_CUDART_H
#define FM_TEST_STUB_CUDART_H

#include <stddef.h>
#include <stdint.h>

typedef struct stub_cudart_calls {
    /* Resets all state. n_devices -1: there is no driver. */
    void (*reset)(int n_devices, uint64_t delay_ns);
    /* The n-th call from now on (from 1) fails; 0: none. */
    void (*fail_at)(long n);
    /* The name of the call that was made to fail; NULL: none yet. */
    const char *(*failed)(void);
    void (*complain)(const char *text);
    /* The reported broken rules, one per line; "" if there are none. Valid until reset(). */
    const char *(*complaints)(void);
    /* Reports all objects that still exist as leaks. */
    void (*check_leaks)(void);
    /* Creates a stream of the consumer on a device; it exists until reset(). */
    void *(*stream)(int device);
    /* Allocates device memory of the consumer; it exists until reset(). */
    void *(*memory)(size_t n_bytes);
    /* A kernel in a stream that works on n_bytes: at its turn it puts their checksum to *sum (may
     * be NULL) and overwrites them. */
    void (*use)(int device, void *stream, void *memory, size_t n_bytes, uint64_t *sum);
    /* Makes later work in `then` wait for the work queued in `first` so far. */
    void (*after)(int device, void *then, void *first);
    /* Queues a kernel that takes that long. */
    void (*spin)(int device, void *stream, uint64_t time_ns);
    /* Waits until all queued work has run. */
    void (*finish)(int device, void *stream);
    /* Begins or ends the capture of a stream. */
    void (*capture)(void *stream, int on);
    /* Reports a broken rule unless the calling thread's context is that of the device; -1: none. */
    void (*set_context)(int device);
    void (*check_context)(int device);
    uint64_t (*sum)(const void *bytes, size_t n_bytes);
    /* Queues a kernel that runs until release(), and delays the work after it. One at a time. */
    void (*hold)(int device, void *stream);
    void (*release)(void);
} stub_cudart_calls;

typedef const stub_cudart_calls *stub_cudart_function(void);

#endif
