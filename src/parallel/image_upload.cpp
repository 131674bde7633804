#include "parallel/image_upload.h"

namespace lockstep {

Storage allocate_staging(Backend& backend, const Tensor& input) {
  if (input.dtype == DType::kFloat32) return {};
  return backend.allocate(static_cast<std::size_t>(input.shape.elements()) * sizeof(float));
}

void upload_images(Backend& backend, const float* images, const Storage& staging,
                   const Tensor& input) {
  if (input.dtype == DType::kFloat32) return backend.upload(input, images);
  const Tensor staged(staging.data(), input.shape);
  backend.upload(staged, images);
  backend.copy(staged, input, false);
}

}  // namespace lockstep
