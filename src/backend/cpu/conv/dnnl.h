#pragma once
// Convolutions by oneDNN.

#include <memory>
#include <string>

#include "backend/cpu/conv/convolution.h"

namespace lockstep {

/// Any geometry, one batch size. Created on the thread that will use it, because oneDNN remembers
/// the number of OpenMP threads.
std::unique_ptr<Convolution> make_dnnl_convolution(const ConvGeometry& geometry, const Shape& input,
                                                   int threads);

/// Version and instruction set, as results may depend on them: "oneDNN 2.6.0 avx2".
std::string dnnl_version();

}  // namespace lockstep
