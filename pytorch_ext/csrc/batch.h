// Borrowed batches as DLPack capsules.
#pragma once
#include <cstdint>
#include <vector>

#include "feedmill/feedmill.h"
#include "python.h"

namespace feedmill {

// Releases a batch when it goes out of scope. Any thread, with or without the GIL, also while the
// interpreter exits.
class OwnedBatch {
  public:
    OwnedBatch() = default;
    OwnedBatch(OwnedBatch &&other) noexcept : batch_(std::exchange(other.batch_, fm_batch{})) {}
    OwnedBatch &operator=(OwnedBatch &&) = delete;
    ~OwnedBatch() { fm_batch_release(&batch_); }
    // The empty batch, for fm_loader_next() to fill.
    fm_batch *out() noexcept { return &batch_; }
    const fm_batch &get() const noexcept { return batch_; }

  private:
    fm_batch batch_{};
};

// A "dltensor" capsule of shape (n, channels, height, width) on the CPU, with the strides of the
// batch's layout. It takes ownership of the batch; its deleter does not call Python. None: a Python
// exception is set.
Ref capsule_from_batch(OwnedBatch batch);

// The part of a batch's memory that holds one array's rows, each with a DLPack type and a shape.
struct Section {
    size_t offset = 0; // from fm_batch.images on
    uint8_t code = 0, bits = 0;
    std::vector<int64_t> shape, order; // of a row; its dimensions by memory order, innermost first
};

// Sets a section's type to that of images with this dtype.
void set_image_type(Section *section, fm_dtype dtype);

// The same for a batch of arrays: a list of capsules. The batch is released with the last one.
Ref capsules_from_batch(OwnedBatch batch, const std::vector<Section> &sections);

} // namespace feedmill
