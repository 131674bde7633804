#pragma once
// Running primitives of oneDNN: with their arguments built once, their scratch memory handed in,
// and over a batch in a way whose results do not depend on threads. For dnnl.cpp and
// dnnl_matmul.cpp.

#include <omp.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <oneapi/dnnl/dnnl.hpp>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "backend/cpu/map.h"
#include "lockstep/core/tensor.h"

namespace lockstep::dnnl_pass {

using dnnl::memory;

inline dnnl::primitive_attr user_scratchpad() {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attr;
}

/// Hands out aligned pieces of the scratch memory in order; with a null base it only counts.
class Pieces {
 public:
  explicit Pieces(void* base) : base_(static_cast<std::byte*>(base)) {}

  void* take(std::size_t bytes) {
    std::byte* piece = base_ == nullptr ? nullptr : base_ + used_;
    used_ += (bytes + 63) / 64 * 64;
    return piece;
  }
  std::size_t used() const { return used_; }

 private:
  std::byte* base_;
  std::size_t used_ = 0;
};

/// A primitive with its arguments, built once: a call only changes addresses.
class Executable {
 public:
  Executable(dnnl::primitive primitive, const dnnl::engine& engine,
             const std::vector<std::pair<int, memory::desc>>& arguments)
      : primitive_(std::move(primitive)) {
    for (const auto& [id, desc] : arguments) {
      arguments_.emplace(id, memory(desc, engine, DNNL_MEMORY_NONE));
    }
  }

  void set(int id, const void* data) {
    arguments_.at(id).set_data_handle(const_cast<void*>(data));  // oneDNN reads what is an input
  }
  void set_piece(int id, Pieces& pieces) { set(id, pieces.take(bytes(id))); }
  std::size_t bytes(int id) const { return arguments_.at(id).get_desc().get_size(); }

  void run(dnnl::stream& stream) {
    primitive_.execute(stream, arguments_);
    stream.wait();
  }

 private:
  dnnl::primitive primitive_;
  std::unordered_map<int, memory> arguments_;
};

inline Executable make_reorder(const memory::desc& from, const memory::desc& to,
                               const dnnl::engine& engine, bool accumulate) {
  dnnl::primitive_attr attr = user_scratchpad();
  if (accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0F);
    attr.set_post_ops(sum);
  }
  const dnnl::reorder::primitive_desc desc(engine, from, engine, to, attr);
  return {
      dnnl::reorder(desc),
      engine,
      {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}, {DNNL_ARG_SCRATCHPAD, desc.scratchpad_desc()}}};
}

inline void run_reorder(Executable& reorder, const void* from, void* to, Pieces pieces,
                        dnnl::stream& stream) {
  reorder.set(DNNL_ARG_FROM, from);
  reorder.set(DNNL_ARG_TO, to);
  reorder.set_piece(DNNL_ARG_SCRATCHPAD, pieces);
  reorder.run(stream);
}

/// Weights in bf16, in a piece. oneDNN would round them while it reorders them, but where it
/// transposes them, too, at a fraction of the memory's speed.
inline const void* rounded_weights(const float* weight, const Shape& rows, Pieces& pieces,
                                   int threads) {
  const auto bytes = static_cast<std::size_t>(rows.elements()) * size_of(DType::kBFloat16);
  const Tensor rounded(pieces.take(bytes), rows, DType::kBFloat16);
  convert(Tensor(const_cast<float*>(weight), rows), rounded, false, threads);
  return rounded.data;
}

/// Primitives that the calling thread makes and runs meanwhile are for one thread.
class OneThread {
 public:
  OneThread() { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  const int before_ = omp_get_max_threads();
};

/// Whether the result of an image is known to depend on the number of threads and the batch around
/// it: so with matrix products, which are cut by threads, and with the strided kernels of oneDNN 3.
/// Its other generated kernels may depend on them, too, which a trial shows.
template <typename Desc>
bool depends_on_threads(const Desc& desc) {
  const std::string implementation = desc.impl_info_str();
  const bool generated = implementation.starts_with("jit") || implementation.starts_with("brg");
  return !generated || implementation.find("strided") != std::string::npos;
}

using Arguments = std::vector<std::pair<int, memory::desc>>;

/// A tensor of a pass: where its first image lies, and how far the next one is (0: all images share
/// it).
struct PassOperand {
  int id;
  const void* data;
  std::int64_t image_bytes;
};

/// A pass over a batch: one primitive for all of it on all threads, or one that takes an image on
/// one thread, while images go to threads. Images lie one after another.
class BatchPass {
 public:
  /// `arguments` without the scratchpad. `workers`: 0 for a primitive of the whole batch.
  BatchPass(const dnnl::primitive& primitive, const dnnl::engine& engine, Arguments arguments,
            const memory::desc& scratchpad, int workers)
      : by_image_(workers > 0) {
    arguments.emplace_back(DNNL_ARG_SCRATCHPAD, scratchpad);
    for (int i = 0; i < std::max(workers, 1); ++i) {
      workers_.push_back({Executable(primitive, engine, arguments), dnnl::stream(engine)});
    }
  }

  std::size_t bytes(int id) const { return workers_.front().main.bytes(id); }
  std::size_t scratch_bytes() const {
    Pieces pieces(nullptr);
    for (const Worker& worker : workers_) pieces.take(worker.main.bytes(DNNL_ARG_SCRATCHPAD));
    return pieces.used();
  }

  void run(std::int64_t images, std::span<const PassOperand> operands, Pieces pieces) {
    for (Worker& worker : workers_) worker.main.set_piece(DNNL_ARG_SCRATCHPAD, pieces);
    if (!by_image_) return workers_.front().run(operands, 0);
    std::exception_ptr failure;  // none may leave the parallel region
    const auto threads = static_cast<int>(workers_.size());
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (std::int64_t image = 0; image < images; ++image) {
      try {
        const OneThread also_where_this_is_the_only_one;
        workers_[static_cast<std::size_t>(omp_get_thread_num())].run(operands, image);
      } catch (...) {
#pragma omp critical(lockstep_dnnl_failure)
        failure = std::current_exception();
      }
    }
    if (failure) std::rethrow_exception(failure);
  }

 private:
  struct Worker {
    Executable main;
    dnnl::stream stream;

    void run(std::span<const PassOperand> operands, std::int64_t image) {
      for (const auto& [id, data, bytes] : operands) {
        main.set(id, static_cast<const std::byte*>(data) + image * bytes);
      }
      main.run(stream);
    }
  };
  const bool by_image_;
  std::vector<Worker> workers_;
};

}  // namespace lockstep::dnnl_pass
