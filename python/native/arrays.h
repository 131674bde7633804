#pragma once
// Arrays of NumPy, PyTorch and whoever else speaks DLPack, as the library's images, labels and
// weights, and back. Making an Array needs the interpreter's lock; what reads its memory does not.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/shape.h"
#include "lockstep/io/image.h"
#include "lockstep/io/weights.h"

namespace lockstep::python {

namespace nb = nanobind;

using Array = nb::ndarray<nb::ro>;

/// An argument as an array, whatever its shape and type. Throws Error naming `argument` where it is
/// none, or does not lie in the host's memory.
Array array_of(nb::handle given, const char* argument);

/// Images [N, C, H, W] of fp32, as the library takes them: where they lie, if they are C order or
/// its channels-last counterpart, else in `copy`.
struct Images {
  std::span<const float> values;
  ImageLayout layout = ImageLayout::kChannelsFirst;
  std::vector<float> copy;
};
/// Throws Error for another type or number of dimensions, and for none.
void check_images(const Array& array);
/// [N, H, W, C] of images [N, C, H, W]. REQUIRES: they are checked.
Shape image_shape(const Array& array);
/// REQUIRES: they are checked. The result refers to the array's memory.
Images read_images(const Array& array);

/// Labels: where they lie, if they are uint16 in C order, else in `copy`.
struct Labels {
  std::span<const Label> values;
  std::vector<Label> copy;
};
/// Throws Error for what is no array of integers of this shape.
void check_labels(const Array& array, const std::vector<std::int64_t>& shape);
/// REQUIRES: they are checked. Throws Error for a number that no label can be.
Labels read_labels(const Array& array, int ignore_index);

/// A state dict from a mapping of names to arrays. Throws DataError for an element type that no
/// file of weights has.
TensorMap tensors_of(nb::handle given);
/// A dictionary of names and arrays of NumPy, which take over the tensors' memory; BF16 becomes
/// float32. Throws DataError for an element type that NumPy has not.
nb::dict arrays_of(TensorMap tensors);

/// Values that Python keeps as long as an array refers to them.
template <typename Value>
struct Kept {
  explicit Kept(std::vector<Value> from)
      : values(new std::vector<Value>(std::move(from))),
        owner(values, [](void* p) noexcept { delete static_cast<std::vector<Value>*>(p); }) {}

  std::vector<Value>* values;
  nb::capsule owner;
};

/// A NumPy array that takes over the values. `shape`: its extents; `strides`: in elements, empty
/// for C order.
template <typename Value>
nb::object to_numpy(std::vector<Value> values, const std::vector<std::size_t>& shape,
                    const std::vector<std::int64_t>& strides = {}) {
  const Kept<Value> kept(std::move(values));
  return nb::cast(nb::ndarray<nb::numpy, Value>(kept.values->data(), shape.size(), shape.data(),
                                                kept.owner,
                                                strides.empty() ? nullptr : strides.data()));
}

}  // namespace lockstep::python
