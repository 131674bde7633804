// What NVIDIA's tools hear: NVTX hands its table of functions to the library that is injected into
// the process, here this file.

#include "kernels/device/nvtx_profiler.h"

#include <cuda_profiler_api.h>
#include <doctest/doctest.h>
#include <nvtx3/nvToolsExt.h>

#include <string>
#include <vector>

namespace {

thread_local std::vector<std::string> heard;  // of this thread: others train meanwhile
bool looks = false;

nvtxDomainHandle_t create_domain(const char* name) {
  static int domain;
  heard.push_back(std::string("domain ") + name);
  return reinterpret_cast<nvtxDomainHandle_t>(&domain);
}
int push(nvtxDomainHandle_t, const nvtxEventAttributes_t* event) {
  heard.push_back(std::string("begin ") + event->message.ascii + " " +
                  std::to_string(event->payload.llValue));
  return 0;
}
int pop(nvtxDomainHandle_t) {
  heard.push_back("end");
  return 0;
}

int inject(NvtxGetExportTableFunc_t get_table) {
  const auto* callbacks =
      static_cast<const NvtxExportTableCallbacks*>(get_table(NVTX_ETID_CALLBACKS));
  unsigned size = 0;
  NvtxFunctionTable table = nullptr;
  if (callbacks == nullptr ||
      callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) == 0) {
    return 0;
  }
  *table[NVTX_CBID_CORE2_DomainCreateA] = reinterpret_cast<NvtxFunctionPointer>(create_domain);
  *table[NVTX_CBID_CORE2_DomainRangePushEx] = reinterpret_cast<NvtxFunctionPointer>(push);
  *table[NVTX_CBID_CORE2_DomainRangePop] = reinterpret_cast<NvtxFunctionPointer>(pop);
  return 1;
}

// NVTX's own variable, which it looks at where no environment variable names a library: set before
// anything else of the program starts.
__attribute__((constructor(101))) void be_injected() { InitializeInjectionNvtx2_fnptr = inject; }

}  // namespace

extern "C" {

// The fake runtime's part of a profiler.
cudaError_t cudaProfilerStart() {
  looks = true;
  return cudaSuccess;
}
cudaError_t cudaProfilerStop() {
  looks = false;
  return cudaSuccess;
}

}  // extern "C"

namespace lockstep::gpu {
namespace {

TEST_CASE("NVIDIA's tools hear of ranges by name and number, in a domain of our own") {
  Profiler& profiler = nvtx_profiler();
  heard.clear();
  profiler.begin_range("step", 17);
  profiler.begin_range("down1.conv1", 0);
  profiler.end_range();
  profiler.end_range();
  CHECK(heard == std::vector<std::string>{"begin step 17", "begin down1.conv1 0", "end", "end"});
}

TEST_CASE("they are told when to look") {
  nvtx_profiler().start();
  CHECK(looks);
  nvtx_profiler().stop();
  CHECK_FALSE(looks);
}

}  // namespace
}  // namespace lockstep::gpu
