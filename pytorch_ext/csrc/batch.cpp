#include "batch.h"

#include <atomic>
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
constexpr uint8_t kDLBfloat = 4;

DLDataType data_type(fm_dtype dtype) {
    switch (dtype) {
    case FM_UINT8:
        return {kDLUInt, 8, 1};
    case FM_FLOAT32:
        return {kDLFloat, 32, 1};
    case FM_FLOAT16:
        return {kDLFloat, 16, 1};
    case FM_BFLOAT16:
        break;
    }
    return {kDLBfloat, 16, 1};
}

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

// A batch that several tensors look into.
struct SharedBatch {
    fm_batch batch;
    std::atomic<size_t> n_users;
};

struct SectionTensor {
    DLManagedTensor managed;
    std::vector<int64_t> shape, strides;
    SharedBatch *shared;
};

void leave(SharedBatch *shared) {
    if (shared->n_users.fetch_sub(1) > 1) return;
    fm_batch_release(&shared->batch);
    delete shared;
}

void delete_section(DLManagedTensor *self) {
    auto *const tensor = static_cast<SectionTensor *>(self->manager_ctx);
    leave(tensor->shared);
    delete tensor;
}

// Does not enter the shared batch; nullptr: a Python exception is set.
SectionTensor *tensor_of(SharedBatch *shared, const feedmill::Section &section) {
    auto *const tensor = new (std::nothrow) SectionTensor{};
    if (!tensor) {
        PyErr_NoMemory();
        return nullptr;
    }
    tensor->shared = shared;
    tensor->shape.push_back(shared->batch.n);
    tensor->shape.insert(tensor->shape.end(), section.shape.begin(), section.shape.end());
    tensor->strides.resize(tensor->shape.size());
    int64_t stride = 1;
    for (const int64_t i : section.order) {
        tensor->strides[size_t(i) + 1] = stride;
        stride *= section.shape[size_t(i)];
    }
    tensor->strides[0] = stride;
    void *const data = static_cast<char *>(shared->batch.images) + section.offset;
    tensor->managed.dl_tensor = {data,
                                 {kDLCPU, 0},
                                 int32_t(tensor->shape.size()),
                                 {section.code, section.bits, 1},
                                 tensor->shape.data(),
                                 tensor->strides.data(),
                                 0};
    tensor->managed.manager_ctx = tensor;
    tensor->managed.deleter = delete_section;
    return tensor;
}

PyObject *section_capsule(SharedBatch *shared, const feedmill::Section &section) {
    SectionTensor *const tensor = tensor_of(shared, section);
    if (!tensor) return nullptr;
    shared->n_users.fetch_add(1);
    PyObject *const capsule = PyCapsule_New(&tensor->managed, "dltensor", delete_capsule);
    if (!capsule) delete_section(&tensor->managed);
    return capsule;
}

} // namespace

namespace feedmill {

void set_image_type(Section *section, fm_dtype dtype) {
    const DLDataType type = data_type(dtype);
    section->code = type.code;
    section->bits = type.bits;
}

PyObject *capsules_from_batch(fm_batch *batch, const std::vector<Section> &sections) {
    auto *const shared = new (std::nothrow) SharedBatch{*batch, {1}};
    if (!shared) {
        fm_batch_release(batch);
        return PyErr_NoMemory();
    }
    *batch = fm_batch{};
    PyObject *list = PyList_New(0);
    for (const Section &section : sections) {
        PyObject *const capsule = list ? section_capsule(shared, section) : nullptr;
        if (!capsule || PyList_Append(list, capsule)) {
            Py_XDECREF(list);
            list = nullptr;
        }
        Py_XDECREF(capsule);
    }
    leave(shared);
    return list;
}

PyObject *capsule_from_batch(fm_batch *batch) {
    auto *const lent = new (std::nothrow) LentTensor{};
    if (!lent) {
        fm_batch_release(batch);
        return PyErr_NoMemory();
    }
    lent->batch = *batch;
    const int64_t shape[4] = {batch->n, batch->channels, batch->height, batch->width};
    // The dimensions as they lie in memory, innermost first.
    static const int planar[4] = {3, 2, 1, 0}, channels_last[4] = {1, 3, 2, 0};
    int64_t stride = 1;
    for (const int i : batch->layout == FM_NHWC ? channels_last : planar) {
        lent->shape[i] = shape[i];
        lent->strides[i] = stride;
        stride *= shape[i];
    }
    lent->managed.dl_tensor = {batch->images, {kDLCPU, 0},   4, data_type(batch->dtype),
                               lent->shape,   lent->strides, 0};
    lent->managed.manager_ctx = lent;
    lent->managed.deleter = delete_tensor;
    *batch = fm_batch{};
    PyObject *const capsule = PyCapsule_New(&lent->managed, "dltensor", delete_capsule);
    if (!capsule) delete_tensor(&lent->managed);
    return capsule;
}

} // namespace feedmill
