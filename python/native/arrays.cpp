#include "arrays.h"

#include <nanobind/stl/string.h>

#include <array>
#include <cstring>
#include <limits>
#include <utility>

#include "lockstep/core/check.h"
#include "options.h"

namespace lockstep::python {
namespace {

using Code = nb::dlpack::dtype_code;

struct ElementType {
  Code code;
  int bits;
  const char* numpy;
  const char* file;  // as safetensors writes it; null: no file has it
};
constexpr ElementType kElementTypes[] = {
    {Code::Float, 32, "float32", "F32"}, {Code::Float, 64, "float64", "F64"},
    {Code::Float, 16, "float16", "F16"}, {Code::Bfloat, 16, "bfloat16", "BF16"},
    {Code::Int, 64, "int64", "I64"},     {Code::Int, 32, "int32", "I32"},
    {Code::Int, 16, "int16", "I16"},     {Code::Int, 8, "int8", "I8"},
    {Code::UInt, 8, "uint8", "U8"},      {Code::UInt, 16, "uint16", nullptr},
    {Code::UInt, 32, "uint32", nullptr}, {Code::UInt, 64, "uint64", nullptr},
    {Code::Bool, 8, "bool", "BOOL"}};

const ElementType* type_of(const Array& array) {
  for (const ElementType& type : kElementTypes) {
    if (array.dtype() == nb::dlpack::dtype{static_cast<std::uint8_t>(type.code),
                                           static_cast<std::uint8_t>(type.bits), 1}) {
      return &type;
    }
  }
  return nullptr;
}

std::string describe(const Array& array) {
  const ElementType* type = type_of(array);
  std::string text = concat(type == nullptr ? "another type" : type->numpy, " [");
  for (std::size_t d = 0; d < array.ndim(); ++d) text += concat(d == 0 ? "" : ", ", array.shape(d));
  return text + "]";
}

bool is(const Array& array, const char* numpy) {
  const ElementType* type = type_of(array);
  return type != nullptr && std::string(type->numpy) == numpy;
}

/// Whether elements lie one after another when the axes are walked in this order, the last fastest.
bool is_dense(const Array& array, const std::vector<std::size_t>& order) {
  std::int64_t expected = 1;
  for (std::size_t i = order.size(); i-- > 0;) {
    const auto extent = static_cast<std::int64_t>(array.shape(order[i]));
    if (extent != 1 && array.stride(order[i]) != expected) return false;
    expected *= extent;
  }
  return true;
}

std::vector<std::size_t> c_order(const Array& array) {
  std::vector<std::size_t> order(array.ndim());
  for (std::size_t d = 0; d < order.size(); ++d) order[d] = d;
  return order;
}

/// Calls `visit` with every element, in C order.
template <typename Element, typename Visit>
void for_each_element(const Array& array, Visit visit) {
  const auto* data = static_cast<const Element*>(array.data());
  if (is_dense(array, c_order(array))) {
    for (std::size_t i = 0; i < array.size(); ++i) visit(data[i]);
    return;
  }
  const std::size_t rank = array.ndim();
  std::vector<std::size_t> index(rank, 0);
  std::int64_t at = 0;
  for (std::size_t i = 0; i < array.size(); ++i) {
    visit(data[at]);
    for (std::size_t d = rank; d-- > 0;) {
      at += array.stride(d);
      if (++index[d] < array.shape(d)) break;
      at -= static_cast<std::int64_t>(array.shape(d)) * array.stride(d);
      index[d] = 0;
    }
  }
}

template <typename Element>
void convert_labels(const Array& array, int ignore_index, std::vector<Label>& labels) {
  for_each_element<Element>(array, [&](Element value) {
    if (!std::in_range<Label>(value)) {
      throw Error(concat("labels: expected classes from 0, and ", ignore_index,
                         " (ignore_index) for what does not count, got ", +value));
    }
    labels.push_back(static_cast<Label>(value));
  });
}

template <typename... Elements>
void convert_any_labels(const Array& array, int ignore_index, std::vector<Label>& labels) {
  const auto convert = [&]<typename Element>(Element) {
    if (array.dtype() == nb::dtype<Element>()) convert_labels<Element>(array, ignore_index, labels);
  };
  (convert(Elements{}), ...);
}

/// The bytes of an array in C order.
std::vector<std::byte> bytes_of(const Array& array) {
  std::vector<std::byte> bytes(array.nbytes());
  const std::size_t size = array.itemsize();
  if (is_dense(array, c_order(array))) {
    if (!bytes.empty()) std::memcpy(bytes.data(), array.data(), bytes.size());
    return bytes;
  }
  std::byte* to = bytes.data();
  const auto copy = [&](const auto& element) {
    std::memcpy(to, &element, sizeof element);
    to += sizeof element;
  };
  if (size == 1) for_each_element<std::uint8_t>(array, copy);
  if (size == 2) for_each_element<std::uint16_t>(array, copy);
  if (size == 4) for_each_element<std::uint32_t>(array, copy);
  if (size == 8) for_each_element<std::uint64_t>(array, copy);
  return bytes;
}

/// A tensor of BF16, which NumPy has not, as F32, which has all its values.
HostTensor widened(const HostTensor& tensor) {
  HostTensor wide{"F32", tensor.shape, std::vector<std::byte>(2 * tensor.data.size())};
  for (std::size_t i = 0; i < tensor.data.size(); ++i) {
    wide.data[2 * i + 2 - i % 2] = tensor.data[i];
  }
  return wide;
}

}  // namespace

Array array_of(nb::handle given, const char* argument) {
  Array array;
  if (!nb::try_cast(given, array, false)) {
    const nb::object dtype = nb::getattr(given, "dtype", nb::none());
    throw Error(concat(
        argument, ": expected an array of NumPy, or a tensor that DLPack can share, ", "got ",
        nb::cast<std::string>(nb::str(given.type())),
        dtype.is_none() ? "" : concat(", whose elements, ", shown(dtype), ", it cannot share")));
  }
  if (array.device_type() != nb::device::cpu::value) {
    throw Error(concat(argument, ": expected an array in the host's memory, got one of another ",
                       "device; .cpu() brings a tensor of PyTorch there"));
  }
  return array;
}

void check_images(const Array& array) {
  if (!is(array, "float32")) {
    throw Error(concat("images: expected float32 [N, C, H, W], normalised as in training, got ",
                       describe(array),
                       "; images.astype('float32') makes them float32, of PyTorch images.float()"));
  }
  if (array.ndim() == 4 && array.size() > 0) return;
  throw Error(
      concat("images: expected float32 [N, C, H, W] of one image or more, got ", describe(array)));
}

Shape image_shape(const Array& array) {
  const auto extent = [&](std::size_t d) { return static_cast<std::int64_t>(array.shape(d)); };
  return {extent(0), extent(2), extent(3), extent(1)};
}

Images read_images(const Array& array) {
  Images images;
  const auto* data = static_cast<const float*>(array.data());
  if (is_dense(array, {0, 2, 3, 1})) {
    images.layout = ImageLayout::kChannelsLast;
  } else if (!is_dense(array, {0, 1, 2, 3})) {
    images.copy.reserve(array.size());
    for_each_element<float>(array, [&](float value) { images.copy.push_back(value); });
    data = images.copy.data();
  }
  images.values = {data, array.size()};
  return images;
}

void check_labels(const Array& array, const std::vector<std::int64_t>& shape) {
  const ElementType* type = type_of(array);
  bool fits = type != nullptr && (type->code == Code::Int || type->code == Code::UInt) &&
              array.ndim() == shape.size();
  std::string expected;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    fits = fits && static_cast<std::int64_t>(array.shape(d)) == shape[d];
    expected += concat(d == 0 ? "" : ", ", shape[d]);
  }
  if (fits) return;
  throw Error(concat("labels: expected integers [", expected, "], got ", describe(array)));
}

Labels read_labels(const Array& array, int ignore_index) {
  Labels labels;
  if (is(array, "uint16") && is_dense(array, c_order(array))) {
    labels.values = {static_cast<const Label*>(array.data()), array.size()};
    return labels;
  }
  labels.copy.reserve(array.size());
  convert_any_labels<std::int64_t, std::int32_t, std::int16_t, std::int8_t, std::uint8_t,
                     std::uint16_t, std::uint32_t, std::uint64_t>(array, ignore_index, labels.copy);
  labels.values = labels.copy;
  return labels;
}

TensorMap tensors_of(nb::handle given) {
  TensorMap tensors;
  const nb::dict arrays = nb::cast<nb::dict>(nb::module_::import_("builtins").attr("dict")(given));
  for (const auto& [key, value] : arrays) {
    std::string name;
    if (!nb::try_cast(key, name)) {
      throw DataError(concat("a state dict: expected names of tensors, got ", shown(key)));
    }
    const Array array = array_of(value, name.c_str());
    const ElementType* type = type_of(array);
    if (type == nullptr || type->file == nullptr) {
      throw DataError(concat(name,
                             ": expected float32, or another type that files of weights have, ",
                             "got ", describe(array)));
    }
    HostTensor& tensor = tensors[name];
    tensor.dtype = type->file;
    for (std::size_t d = 0; d < array.ndim(); ++d) {
      tensor.shape.push_back(static_cast<std::int64_t>(array.shape(d)));
    }
    tensor.data = bytes_of(array);
  }
  return tensors;
}

nb::dict arrays_of(TensorMap tensors) {
  nb::dict arrays;
  for (auto& [name, tensor] : tensors) {
    if (tensor.dtype == "BF16") tensor = widened(tensor);
    const ElementType* found = nullptr;
    for (const ElementType& type : kElementTypes) {
      if (type.file != nullptr && tensor.dtype == type.file) found = &type;
    }
    if (found == nullptr) {
      throw DataError(concat(name, " has elements ", tensor.dtype,
                             ", which NumPy has not: save the "
                             "weights as float32"));
    }
    const std::vector<std::size_t> shape(tensor.shape.begin(), tensor.shape.end());
    const Kept<std::byte> kept(std::move(tensor.data));
    const nb::dlpack::dtype dtype{static_cast<std::uint8_t>(found->code),
                                  static_cast<std::uint8_t>(found->bits), 1};
    arrays[name.c_str()] = nb::cast(nb::ndarray<nb::numpy>(
        kept.values->data(), shape.size(), shape.data(), kept.owner, nullptr, dtype));
  }
  return arrays;
}

}  // namespace lockstep::python
