// What tch does not offer: a tensor over memory that somebody else owns, with a function that
// gives the memory back, and all that a call must know of a tensor in one go.

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include <cstddef>
#include <cstdint>

struct View {
  void* data;
  const int64_t* sizes;
  size_t rank;
  int32_t scalar_type;
  bool dense;
  bool compact;
};

// Fills `view`. `dense`: memory of the CPU that holds the values themselves; `compact`: without
// gaps and in row-major order. `sizes` belongs to the tensor, and `data`, which is for reading, is
// null where it is not both. False where libtorch cannot say.
extern "C" bool kernel_bridge_view(const at::Tensor* tensor, View* view) noexcept {
  try {
    const auto sizes = tensor->sizes();
    view->sizes = sizes.data();
    view->rank = sizes.size();
    view->scalar_type = static_cast<int32_t>(tensor->scalar_type());
    view->dense = tensor->device().is_cpu() && tensor->layout() == at::kStrided &&
        tensor->has_storage() && !tensor->is_neg() && !tensor->is_conj();
    view->compact = view->dense && tensor->is_contiguous();
    view->data =
        view->compact ? const_cast<void*>(tensor->unsafeGetTensorImpl()->data()) : nullptr;
    return true;
  } catch (...) {
    return false;
  }
}

// A compact CPU tensor over `data`; `release(owner)` is called when its last user is gone. Null
// where it cannot be made, and then `owner` is kept.
extern "C" at::Tensor* kernel_bridge_adopt(
    void* data,
    const int64_t* sizes,
    size_t rank,
    int32_t scalar_type,
    void* owner,
    void (*release)(void*)) noexcept {
  try {
    const auto options = at::TensorOptions()
                             .dtype(static_cast<at::ScalarType>(scalar_type))
                             .device(at::kCPU);
    return new at::Tensor(at::from_blob(
        data, at::IntArrayRef(sizes, rank), [=](void*) { release(owner); }, options));
  } catch (...) {
    return nullptr;
  }
}
