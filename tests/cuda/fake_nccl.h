#pragma once
// NCCL without GPUs: its collectives as work of the fake runtime's streams. Communicators block:
// making one waits for all ranks, come what may. As NCCL's kernels, a collective holds its GPU
// until all ranks are in it, and ends early only when its own rank's communicator is aborted.

namespace lockstep::fake_nccl {

/// Times that a collective began on a GPU which another one held, since the last call of this.
int take_overlaps();

/// Communicators that are neither destroyed nor aborted yet.
int communicators();

/// The next collective of this rank (-1: of nobody) is stuck on the host until its communicator is
/// aborted.
void get_stuck(int rank);
/// Whether it is.
bool is_stuck();

/// Communicators that were aborted since the last call of this.
int take_aborts();

/// What every set-up of a communicator fails with, in NCCL's words; empty: none fails.
void fail_set_up(const char* words);

/// Makes ids be refused, as where there is no network interface.
void refuse_ids(bool refuse);

}  // namespace lockstep::fake_nccl
