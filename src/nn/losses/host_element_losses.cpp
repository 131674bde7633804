#include "nn/losses/host_element_losses.h"

#include <algorithm>

namespace lockstep {
namespace {

/// Every GPU's replica has a thread that computes.
int threads_beside_gpus() { return std::max(1, host_threads() / std::max(1, cuda_device_count())); }

Tensor bytes_at(const void* memory, std::size_t bytes) {
  return {const_cast<void*>(memory), Shape{1, static_cast<std::int64_t>(bytes)}, DType::kUInt8};
}

template <typename T>
std::size_t bytes_of(const std::vector<T>& values) {
  return values.size() * sizeof(T);
}

}  // namespace

HostElementLosses::HostElementLosses(Backend& device, const Shape& largest)
    : device_(device), host_(make_backend(Device{}, threads_beside_gpus())) {
  reserve(largest.elements());
}

void HostElementLosses::reserve(std::int64_t elements) {
  const auto count = static_cast<std::size_t>(elements);
  if (staged_.bytes() < count * sizeof(float)) staged_ = device_.allocate(count * sizeof(float));
  for (std::vector<float>* values : {&output_, &target_, &gradient_}) values->reserve(count);
}

void HostElementLosses::read(void* host, const void* device, std::size_t bytes) {
  device_.download(host, bytes_at(device, bytes));
}

void HostElementLosses::write(void* device, const void* host, std::size_t bytes) {
  device_.upload(bytes_at(device, bytes), host);
}

template <typename T>
T* HostElementLosses::fetch(std::vector<T>& host, const T* device, std::int64_t count) {
  if (device == nullptr) return nullptr;
  host.resize(static_cast<std::size_t>(count));
  read(host.data(), device, bytes_of(host));
  return host.data();
}

template <typename T>
DeviceScalar<T> HostElementLosses::fetch(std::vector<T>& host, const DeviceScalar<T>& scalar) {
  return {scalar.value, fetch(host, scalar.memory, 1)};
}

void HostElementLosses::compute(const ElementLosses& arguments) {
  const Shape& shape = arguments.output.shape;
  const std::int64_t elements = shape.elements();
  if (elements == 0) return;
  reserve(elements);
  const Tensor staged(staged_.data(), shape);
  device_.copy(arguments.output, staged, false);

  ElementLosses on_host = arguments;
  on_host.output = {fetch(output_, staged.floats(), elements), shape};
  on_host.target = {fetch(target_, arguments.target.floats(), elements), arguments.target.shape};
  on_host.sample_weights = fetch(sample_weights_, arguments.sample_weights, shape.batch());
  on_host.normalizer = fetch(normalizer_, arguments.normalizer);
  on_host.grad_scale = fetch(grad_scale_, arguments.grad_scale);
  on_host.loss = fetch(loss_, arguments.loss, 1);
  on_host.image_losses = fetch(image_losses_, arguments.image_losses, shape.batch());
  on_host.grad_output = {};
  if (arguments.grad_output) {
    gradient_.resize(static_cast<std::size_t>(elements));
    on_host.grad_output = {gradient_.data(), shape};
  }
  device_.synchronize();
  host_->losses().element_losses(on_host);

  write(arguments.loss, loss_.data(), bytes_of(loss_));
  if (arguments.image_losses != nullptr) {
    write(arguments.image_losses, image_losses_.data(), bytes_of(image_losses_));
  }
  if (!arguments.grad_output) return;
  write(staged.data, gradient_.data(), bytes_of(gradient_));
  device_.copy(staged, arguments.grad_output, false);
}

}  // namespace lockstep
