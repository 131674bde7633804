#pragma once
// Images come from the host in fp32; a network may plan its input in another type.

#include "lockstep/backend/backend.h"

namespace lockstep {

/// Memory for images on their way into `input`, whose batch is the largest that will come. Empty
/// for an fp32 input, which takes them as they are.
Storage allocate_staging(Backend& backend, const Tensor& input);

/// Copies `images` (fp32, of input's shape, on the host) into `input`, which is dense, converting
/// them on the device. As Backend::upload, the host memory may be reused after `synchronize`.
/// `staging`: of allocate_staging, for a batch at least as large.
void upload_images(Backend& backend, const float* images, const Storage& staging,
                   const Tensor& input);

}  // namespace lockstep
