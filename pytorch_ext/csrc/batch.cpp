#include "batch.h"

#include <memory>

namespace feedmill {
namespace {

// The ABI of DLPack 0.x (dmlc/dlpack, dlpack.h), which every torch.from_dlpack() accepts.
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

// A DLPack tensor and a shared reference to the batch whose memory it uses.
struct BatchTensor {
    DLManagedTensor managed{};
    std::vector<int64_t> shape, strides;
    std::shared_ptr<const OwnedBatch> batch;
};

void delete_tensor(DLManagedTensor *self) { delete static_cast<BatchTensor *>(self->manager_ctx); }

// Destructor of a capsule. A consumer renames the capsule to "used_dltensor" and calls the deleter
// itself. For a capsule that was not consumed, the deleter is called here.
void delete_capsule(PyObject *capsule) {
    if (!PyCapsule_IsValid(capsule, "dltensor")) return;
    auto *const managed = static_cast<DLManagedTensor *>(PyCapsule_GetPointer(capsule, "dltensor"));
    managed->deleter(managed);
}

// Sets the strides of a tensor whose shape is set. `order`: dimensions by memory order, innermost
// first.
template <typename Order> void set_contiguous_strides(BatchTensor *tensor, const Order &order) {
    tensor->strides.resize(tensor->shape.size());
    int64_t stride = 1;
    for (const auto i : order) {
        tensor->strides[size_t(i)] = stride;
        stride *= tensor->shape[size_t(i)];
    }
}

// A capsule of a tensor whose shape and strides are set.
Ref capsule_of(std::unique_ptr<BatchTensor> tensor, DLDataType type, size_t offset) {
    void *const data = static_cast<char *>(tensor->batch->get().images) + offset;
    tensor->managed.dl_tensor = {data, {kDLCPU, 0},          int32_t(tensor->shape.size()),
                                 type, tensor->shape.data(), tensor->strides.data(),
                                 0};
    tensor->managed.manager_ctx = tensor.get();
    tensor->managed.deleter = delete_tensor;
    Ref capsule(PyCapsule_New(&tensor->managed, "dltensor", delete_capsule));
    if (capsule) tensor.release(); // now owned by the capsule
    return capsule;
}

Ref section_capsule(const std::shared_ptr<const OwnedBatch> &batch, const Section &section) {
    auto tensor = std::make_unique<BatchTensor>();
    tensor->batch = batch;
    tensor->shape.push_back(batch->get().n);
    tensor->shape.insert(tensor->shape.end(), section.shape.begin(), section.shape.end());
    std::vector<int64_t> order;
    for (const int64_t i : section.order) order.push_back(i + 1);
    order.push_back(0);
    set_contiguous_strides(tensor.get(), order);
    return capsule_of(std::move(tensor), {section.code, section.bits, 1}, section.offset);
}

} // namespace

void set_image_type(Section *section, fm_dtype dtype) {
    const DLDataType type = data_type(dtype);
    section->code = type.code;
    section->bits = type.bits;
}

Ref capsules_from_batch(OwnedBatch batch, const std::vector<Section> &sections) {
    const auto shared = std::make_shared<const OwnedBatch>(std::move(batch));
    Ref list(PyList_New(0));
    if (!list) return list;
    for (const Section &section : sections) {
        const Ref capsule = section_capsule(shared, section);
        if (!capsule || PyList_Append(list.get(), capsule.get())) return Ref();
    }
    return list;
}

Ref capsule_from_batch(OwnedBatch batch) {
    const fm_batch &images = batch.get();
    auto tensor = std::make_unique<BatchTensor>();
    tensor->shape = {images.n, images.channels, images.height, images.width};
    static const int planar[4] = {3, 2, 1, 0}, channels_last[4] = {1, 3, 2, 0};
    set_contiguous_strides(tensor.get(), images.layout == FM_NHWC ? channels_last : planar);
    const DLDataType type = data_type(images.dtype);
    tensor->batch = std::make_shared<const OwnedBatch>(std::move(batch));
    return capsule_of(std::move(tensor), type, 0);
}

} // namespace feedmill
