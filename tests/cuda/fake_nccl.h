#pragma once
// NCCL without GPUs: its collectives as work of the fake runtime's streams. Communicators do not
// block, and are busy for a while after every call. As NCCL's kernels, a collective holds its GPU
// until all ranks are in it, and ends early only when its own rank's communicator is aborted.

namespace lockstep::fake_nccl {

/// Times that a collective began on a GPU which another one held, since the last call of this.
int take_overlaps();

/// Communicators that are not aborted yet.
int communicators();

}  // namespace lockstep::fake_nccl
