#pragma once
// A CUDA runtime and a cuDNN that do nothing and count what they are asked: memory is there and
// stays zero, kernels, convolutions and copies are over at once. So a step of a large network
// takes no longer than its host code.

#include <cstdint>

namespace lockstep::dry {

/// What a machine was asked to do.
struct Counts {
  std::int64_t kernels = 0;                      // launches of our own
  std::int64_t convolutions = 0;                 // executions of a plan, of one launch or several
  std::int64_t copies = 0, copied_bytes = 0;     // within devices and between them
  std::int64_t uploads = 0, uploaded_bytes = 0;  // from the host
  std::int64_t downloads = 0, downloaded_bytes = 0;  // to the host
  std::int64_t fills = 0, filled_bytes = 0;
  std::int64_t records = 0, stream_waits = 0;  // of events
  std::int64_t host_waits = 0;                 // for events, streams and devices
  std::int64_t graph_launches = 0;
};
Counts counts();

/// The nodes of the graph that was instantiated last.
struct Nodes {
  std::int64_t kernels = 0, convolutions = 0, copies = 0, fills = 0;
  std::int64_t edges_between_devices = 0;
};
Nodes last_graph();

/// GPUs that answer, and whether each reaches the others' memory.
void use(int devices, bool peer_access);

}  // namespace lockstep::dry
