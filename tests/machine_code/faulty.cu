// Kernels that machine_code.py's checks must see, each with the fault of its name. keeps_order has
// none.

struct alignas(16) Pack {
  float values[4];
};

// --- accesses

__global__ void divides(long long* a) { a[threadIdx.x] /= a[32]; }

__global__ void stores_narrow(const Pack* from, float* to) {
  const Pack pack = from[threadIdx.x];
  for (int i = 0; i < 4; ++i) to[5 * threadIdx.x + i] = pack.values[i];
}

// --- dependent launches

__device__ void wait() { cudaGridDependencySynchronize(); }
__device__ void allow() { cudaTriggerProgrammaticLaunchCompletion(); }

__global__ void keeps_order(const float* from, float* to, unsigned* count) {
  wait();
  to[threadIdx.x] = from[threadIdx.x];
  allow();
  __syncthreads();
  if (threadIdx.x == 0) atomicInc(count, 7);
}

__global__ void never_waits(const float* from, float* to) { to[threadIdx.x] = from[threadIdx.x]; }

__global__ void waits_sometimes(const float* from, float* to, bool early) {
  if (early) wait();
  to[threadIdx.x] = from[threadIdx.x];
}

__global__ void reads_first(const float* from, float* to) {
  const float value = from[threadIdx.x];
  wait();
  to[threadIdx.x] = value;
}

__global__ void writes_first(const float* from, float* to) {
  to[threadIdx.x + blockDim.x] = 0;
  wait();
  to[threadIdx.x] = from[threadIdx.x];
}

__global__ void leaves_first(const float* from, float* to, unsigned threads) {
  if (threadIdx.x >= threads) return;
  wait();
  to[threadIdx.x] = from[threadIdx.x];
}

__global__ void reads_constant(const float* from, float* to) {
  wait();
  to[threadIdx.x] = __ldg(from + threadIdx.x);
}

__global__ void allows_before_waiting(const float* from, float* to, unsigned* count) {
  allow();
  wait();
  to[threadIdx.x] = from[threadIdx.x];
  atomicInc(count, 7);
}

__global__ void allows_before_reading(const float* from, float* to, unsigned* count) {
  wait();
  allow();
  to[threadIdx.x] = from[threadIdx.x];
  atomicInc(count, 7);
}

__global__ void allows_after_the_count(const float* from, float* to, unsigned* count) {
  wait();
  to[threadIdx.x] = from[threadIdx.x];
  atomicInc(count, 7);
  allow();
}

// --- registers and stack

__global__ void keeps_stack(const int* places, float* to) {
  float values[64];
  for (int i = 0; i < 64; ++i) values[i] = to[i];
  for (int i = 0; i < 64; ++i) values[places[i]] += 1;
  for (int i = 0; i < 64; ++i) to[i] = values[places[i]];
}

__global__ void takes_registers(const volatile float* from, volatile float* to) {
  float values[150];
#pragma unroll
  for (int i = 0; i < 150; ++i) values[i] = from[i * 256 + threadIdx.x];
#pragma unroll
  for (int i = 0; i < 150; ++i) to[i * 256 + threadIdx.x] = values[149 - i];
}
