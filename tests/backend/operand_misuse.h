#pragma once
// Calls of a backend's operations with one argument wrong at a time: each is an error that names
// the operation and the argument, and the same call with all of them right is none.

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/backend/backend.h"
#include "lockstep/core/check.h"
#include "support/backends.h"

namespace lockstep::test {

inline constexpr std::int64_t kRows = 32, kChannels = 4;
inline const Shape kImages{2, 4, 4, kChannels};
inline const Shape kPooled{2, 2, 2, kChannels};
inline const Shape kLabels{2, 4, 4, 1};

/// Memory of a device, as much as a call asks for. It is zero.
class Memory {
 public:
  explicit Memory(Backend& backend) : backend_(backend) {}

  template <typename T>
  T* of(std::int64_t count) {
    held_.push_back(backend_.allocate(static_cast<std::size_t>(count) * sizeof(T)));
    return static_cast<T*>(held_.back().data());
  }
  float* floats(std::int64_t count) { return of<float>(count); }
  Tensor tensor(const Shape& shape, DType dtype = DType::kFloat32) {
    return {of<std::byte>(shape.elements() * static_cast<std::int64_t>(size_of(dtype))), shape,
            dtype};
  }

 private:
  Backend& backend_;
  std::vector<Storage> held_;
};

/// What is wrong with the arguments of a call. `says`: a part of the error. `tensor`: the same
/// operand, when it is a tensor, of which other things can be wrong. `alone`: no other operand has
/// its extents.
template <typename Arguments>
struct Misuse {
  using TensorOf = std::function<Tensor&(Arguments&)>;

  Misuse(std::string words, std::function<void(Arguments&)> wrong, TensorOf of = nullptr,
         bool lone = false)
      : says(std::move(words)), make(std::move(wrong)), tensor(std::move(of)), alone(lone) {}

  std::string says;
  std::function<void(Arguments&)> make;
  TensorOf tensor;
  bool alone;
};

/// Rows that overlap by an element.
inline void narrow(Tensor& tensor) { tensor.row_stride = tensor.shape.channels() - 1; }

/// Another type than the tensor has: one that no activation has, or that labels and the like have
/// not.
inline void retype(Tensor& tensor) {
  tensor.dtype = tensor.dtype == DType::kFloat32 ? DType::kUInt8 : DType::kFloat32;
}

/// Another batch, and other channels. REQUIRES: nobody reads it.
inline void reshape(Tensor& tensor) {
  const Shape& shape = tensor.shape;
  const Shape other = shape.with_batch(shape.batch() + 1).with_channels(shape.channels() + 1);
  tensor = Tensor(tensor.data, other, tensor.dtype);
}

/// A batch of images without pixels, of other channels.
inline void empty(Tensor& tensor) {
  tensor = Tensor(tensor.data, Shape{2, 0, 4, tensor.shape.channels() + 1}, tensor.dtype);
}

template <typename Arguments>
Misuse<Arguments> null(const char* name, Tensor Arguments::*operand, bool alone = false) {
  return {concat("'", name, "'"), [operand](Arguments& a) { (a.*operand).data = nullptr; },
          [operand](Arguments& a) -> Tensor& { return a.*operand; }, alone};
}

/// An operand that may be missing, made of another one whose rows overlap.
template <typename Arguments>
Misuse<Arguments> narrowed(const char* name, Tensor Arguments::*optional,
                           Tensor Arguments::*other) {
  return {concat("'", name, "'"),
          [=](Arguments& a) {
            a.*optional = a.*other;
            narrow(a.*optional);
          },
          [=](Arguments& a) -> Tensor& { return a.*optional = a.*other; }};
}

template <typename Arguments, typename T>
Misuse<Arguments> null(const char* name, T* Arguments::*operand) {
  return {concat("'", name, "'"), [operand](Arguments& a) { a.*operand = nullptr; }};
}

template <typename Arguments>
Misuse<Arguments> null_saved() {
  return {"'saved'", [](Arguments& a) { a.saved.data = nullptr; }};
}

template <typename Arguments, typename T>
Misuse<Arguments> size(const char* name, T Arguments::*number, T value) {
  return {concat("'", name, "'"), [number, value](Arguments& a) { a.*number = value; }};
}

/// Something whose memory is not there, in place of spans of it.
inline const std::array<StatSlot, 2> kNullSlots{StatSlot{0, nullptr}, StatSlot{kRows, nullptr}};
inline const std::array<StatSlot, 1> kNegativeSlots{StatSlot{-2, nullptr}};
inline constexpr float kNumber = 0;
inline const std::array<StatSlot, 1> kUnevenSlots{StatSlot{kRows - 1, &kNumber, 2}};
inline const std::array<const double*, 1> kNullDoubles{nullptr};
inline const std::array<const float*, 1> kNullGrads{nullptr};
inline const std::array<float*, 1> kNullWeights{nullptr};

/// `call` with the arguments as they are, and with each misuse.
template <typename Arguments, typename Call>
void check_misuse(const char* operation, const Arguments& good, const Call& call,
                  const std::vector<Misuse<Arguments>>& all) {
  CAPTURE(std::string(operation));
  CHECK_NOTHROW(call(good));
  const auto error_of = [&](const std::function<void(Arguments&)>& make) -> std::string {
    Arguments bad = good;
    make(bad);
    try {
      call(bad);
    } catch (const Error& thrown) {
      return thrown.what();
    }
    return "";
  };
  for (const Misuse<Arguments>& misuse : all) {
    CAPTURE(misuse.says);
    const std::string error = error_of(misuse.make);
    CHECK_MESSAGE(error.find(operation) != std::string::npos, error);
    CHECK_MESSAGE(error.find(misuse.says) != std::string::npos, error);
    if (misuse.tensor == nullptr) continue;
    const auto error_with = [&](void (*change)(Tensor&)) {
      return error_of([&](Arguments& a) { change(misuse.tensor(a)); });
    };
    const std::string overlap = error_with(narrow);
    CHECK_MESSAGE(overlap.find(concat(operation, ": expected a row stride")) == 0, overlap);
    CHECK_MESSAGE(overlap.find(misuse.says) != std::string::npos, overlap);
    for (const auto& change : {retype, empty, misuse.alone ? retype : reshape}) {
      const std::string error_of_tensor = error_with(change);
      CHECK_MESSAGE(error_of_tensor.find(concat(operation, ": ")) == 0, error_of_tensor);
    }
  }
}

struct NamedTensor {
  const char* name;
  Tensor tensor;
};

/// `call(tensors)` with each of them null, and with all that can be wrong with a tensor.
template <typename Call>
void check_nulls(const char* operation, const std::vector<NamedTensor>& named, const Call& call) {
  using Tensors = std::vector<Tensor>;
  Tensors good;
  std::vector<Misuse<Tensors>> all;
  for (std::size_t i = 0; i < named.size(); ++i) {
    const std::string says = concat("'", named[i].name, "'");
    good.push_back(named[i].tensor);
    all.push_back({says, [i](Tensors& tensors) { tensors[i].data = nullptr; },
                   [i](Tensors& tensors) -> Tensor& { return tensors[i]; }, named.size() == 1});
    all.push_back({says, [i](Tensors& tensors) { tensors[i] = Tensor(); }});
  }
  check_misuse(operation, good, call, all);
}

/// On every backend that is there.
inline void check_everywhere(
    const std::vector<std::function<void(Backend& backend, Memory& memory)>>& checks) {
  for (NamedBackend& named : available_backends()) {
    CAPTURE(named.name);
    Memory memory(*named.backend);
    for (const auto& check : checks) check(*named.backend, memory);
    CHECK_NOTHROW(named.backend->synchronize());
  }
}

}  // namespace lockstep::test
