#include "batch.h"

#include <cstdint>
#include <new>

namespace {

// The ABI of DLPack 0.x (dmlc/dlpack, dlpack.h), which torch.from_dlpack() takes in all versions.
struct DLDevice {
    int32_t device_type;
    int32_t device_id;
};
struct DLDataType {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
};
struct DLTensor {
    void *data;
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t *shape;
    int64_t *strides;
    uint64_t byte_offset;
};
struct DLManagedTensor {
    DLTensor dl_tensor;
    void *manager_ctx;
    void (*deleter)(DLManagedTensor *self);
};
constexpr int32_t kDLCPU = 1;
constexpr uint8_t kDLUInt = 1;
constexpr uint8_t kDLFloat = 2;

struct LentTensor {
    DLManagedTensor managed;
    int64_t shape[4];
    int64_t strides[4];
    fm_batch batch;
};

void delete_tensor(DLManagedTensor *self) {
    auto *const lent = static_cast<LentTensor *>(self->manager_ctx);
    fm_batch_release(&lent->batch);
    delete lent;
}

// A consumer renames the capsule to "used_dltensor" and takes the deleter over; one that nobody
// consumed returns its batch here.
void delete_capsule(PyObject *capsule) {
    if (!PyCapsule_IsValid(capsule, "dltensor")) return;
    auto *const managed = static_cast<DLManagedTensor *>(PyCapsule_GetPointer(capsule, "dltensor"));
    managed->deleter(managed);
}

} // namespace

namespace feedmill {

PyObject *capsule_from_batch(fm_batch *batch) {
    auto *const lent = new (std::nothrow) LentTensor{};
    if (!lent) {
        fm_batch_release(batch);
        return PyErr_NoMemory();
    }
    lent->batch = *batch;
    const int64_t shape[4] = {batch->n, batch->channels, batch->height, batch->width};
    int64_t stride = 1;
    for (int i = 3; i >= 0; i--) {
        lent->shape[i] = shape[i];
        lent->strides[i] = stride;
        stride *= shape[i];
    }
    const bool is_float = batch->dtype == FM_FLOAT32;
    lent->managed.dl_tensor = {batch->images,
                               {kDLCPU, 0},
                               4,
                               {is_float ? kDLFloat : kDLUInt, uint8_t(is_float ? 32 : 8), 1},
                               lent->shape,
                               lent->strides,
                               0};
    lent->managed.manager_ctx = lent;
    lent->managed.deleter = delete_tensor;
    *batch = fm_batch{};
    PyObject *const capsule = PyCapsule_New(&lent->managed, "dltensor", delete_capsule);
    if (!capsule) delete_tensor(&lent->managed);
    return capsule;
}

} // namespace feedmill
