#pragma once
// A number in device memory, of any backend.

#include <cstdint>

#include "lockstep/backend/backend.h"

namespace lockstep::test {

template <typename T>
class DeviceNumber {
 public:
  DeviceNumber(Backend& backend, T value)
      : backend_(backend), storage_(backend.allocate(sizeof(T))) {
    set(value);
  }
  void set(T value) {
    backend_.upload(tensor(), &value);
    backend_.synchronize();
  }
  T get() const {
    T value;
    backend_.download(&value, tensor());
    backend_.synchronize();
    return value;
  }
  T* pointer() const { return static_cast<T*>(storage_.data()); }

 private:
  Tensor tensor() const {
    return {storage_.data(), Shape{1, static_cast<std::int64_t>(sizeof(T))}, DType::kUInt8};
  }

  Backend& backend_;
  Storage storage_;
};

}  // namespace lockstep::test
