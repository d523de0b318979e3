// A lent batch as a DLPack capsule.
#pragma once
#include <cstdint>
#include <vector>

#include "feedmill/feedmill.h"
#include "python.h"

namespace feedmill {

// A batch that is given back when nobody needs it any more: once, from any thread, with or without
// the GIL, also while the interpreter ends.
class OwnedBatch {
  public:
    OwnedBatch() = default;
    OwnedBatch(OwnedBatch &&other) noexcept : batch_(std::exchange(other.batch_, fm_batch{})) {}
    OwnedBatch &operator=(OwnedBatch &&) = delete;
    ~OwnedBatch() { fm_batch_release(&batch_); }
    // For fm_loader_next() to fill; empty before.
    fm_batch *out() noexcept { return &batch_; }
    const fm_batch &get() const noexcept { return batch_; }

  private:
    fm_batch batch_{};
};

// A "dltensor" capsule of (n, 3, height, width) on the CPU, with the strides of the batch's layout,
// that owns the batch from now on. Its deleter calls no Python. None: a Python exception is set.
Ref capsule_from_batch(OwnedBatch batch);

// What a batch holds of an array: values of a DLPack type, each row of that shape.
struct Section {
    size_t offset = 0; // from fm_batch.images on
    uint8_t code = 0, bits = 0;
    std::vector<int64_t> shape, order; // of a row; its dimensions as they lie, innermost first
};

// Sets a section's type to that of images.
void set_image_type(Section *section, fm_dtype dtype);

// The same for a batch of arrays: a list of capsules, the last of which returns the loan.
Ref capsules_from_batch(OwnedBatch batch, const std::vector<Section> &sections);

} // namespace feedmill
