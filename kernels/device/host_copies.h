#pragma once
// Copies between host and device by way of pinned memory: of one from or to pageable memory the
// host would wait for all that the stream has been given.

#include <array>
#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "kernels/device/device.h"
#include "kernels/device/host_waits.h"
#include "lockstep/backend/backend.h"

namespace lockstep::gpu {

/// Uploads into a stream: the host copies a piece into one buffer of a ring while the GPU fetches
/// others, and waits only where the stream is a whole ring behind. Used by a replica's thread.
class UploadRing {
 public:
  /// `waits` and `stream`, of the device, outlive the object.
  UploadRing(int ordinal, HostWaits& waits, Stream stream);

  /// Copies `bytes` to the device in the order of the stream. The source may be reused when it
  /// returns.
  void upload(void* destination, const void* source, std::size_t bytes);

 private:
  static constexpr std::size_t kBufferBytes = std::size_t{4} << 20;

  struct Buffer {
    explicit Buffer(int ordinal)
        : memory(ordinal, kBufferBytes), fetched(ordinal, Event::Kind::kHost) {}
    PinnedMemory memory;
    Event fetched;  // the GPU is done with what the buffer held
  };

  HostWaits& waits_;
  const Stream stream_;
  std::array<Buffer, 3> buffers_;
  std::size_t next_ = 0;
};

/// Downloads that the host waits for later. Owned by the run, beside the backend whose stream it
/// uses.
class PinnedReadback final : public Readback {
 public:
  /// `copying` is called when the stream has been given a copy.
  PinnedReadback(int ordinal, HostWaits& waits, Stream stream, std::function<void()> copying,
                 const Tensor& source, int slots);
  /// Waits for the stream, which may still write to the host's memory.
  ~PinnedReadback() override;

  void start(int slot) override;
  const void* wait(int slot) override;

 private:
  struct Slot {
    PinnedMemory memory;
    Event copied;
  };
  Slot& at(int slot) { return slots_.at(static_cast<std::size_t>(slot)); }

  const int ordinal_;
  HostWaits& waits_;
  const Stream stream_;
  const std::function<void()> copying_;
  const Tensor source_;
  std::vector<Slot> slots_;
};

/// Pinned memory beside each tensor; copies have a stream of their own. Owned by the run, beside
/// the backend whose stream it uses.
class PinnedOffload final : public Offload {
 public:
  /// `stream`: of what uses the tensors; `wait_for` makes it wait.
  PinnedOffload(int ordinal, Stream stream, std::function<void(const Event&)> wait_for,
                std::span<const Tensor> tensors);
  /// Waits for the copies that are under way.
  ~PinnedOffload() override;

  void send(int tensor) override;
  void fetch(int tensor) override;
  void wait(int tensor) override;

 private:
  struct Place {
    Tensor tensor;
    PinnedMemory memory;
    Event copied;
  };
  Place& at(int tensor) { return places_.at(static_cast<std::size_t>(tensor)); }
  void copy(Place& place, bool to_host);

  const int ordinal_;
  const Stream stream_;
  const std::function<void(const Event&)> wait_for_;
  StreamOwner copies_;
  Event issued_;  // what the replica's stream was given before a copy
  std::vector<Place> places_;
};

}  // namespace lockstep::gpu
