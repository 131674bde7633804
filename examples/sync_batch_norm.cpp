// Synchronized BatchNorm in one file. Threads are devices. Each has a part of a batch, of any size.
// They meet at a barrier, whose callback merges their statistics. So together they compute what one
// device computes that has the whole batch.
//
// Forward:  a device shows (count, mean, M2) of each channel, M2 = sum (x - mean)^2, and gets those
//           of all images: y = (x - mean) / std, std^2 = M2 / count + eps.
// Backward: mean and std depend on every x of every device. So two more sums go over all of them:
//           dx = (dy - sum(dy) / count - y * sum(dy * y) / count) / std.
// (Ioffe and Szegedy 2015, algorithm 1, without gamma and beta, which are not synchronized.)
#include <lockstep/backend/backend.h>
#include <lockstep/sync/sync_group.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

using lockstep::Barrier, lockstep::SyncCall, lockstep::SyncGroup;

constexpr std::size_t kChannels = 3, kPixels = 16, kImages = 8;
constexpr double kEps = 1e-5;

using Values = std::vector<double>;  // [rows, kChannels]; a row is a pixel of an image

struct Moments {
  double count = 0, mean[kChannels] = {}, m2[kChannels] = {};

  double std(std::size_t c) const { return std::sqrt(m2[c] / count + kEps); }
};

struct Sums {
  double dy[kChannels] = {}, dy_y[kChannels] = {};
};

// --- what a device computes by itself ---

Moments moments_of(const Values& x) {
  Moments moments{.count = static_cast<double>(x.size() / kChannels)};  // without images: zeros
  for (std::size_t i = 0; i < x.size(); ++i) moments.mean[i % kChannels] += x[i] / moments.count;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double distance = x[i] - moments.mean[i % kChannels];
    moments.m2[i % kChannels] += distance * distance;
  }
  return moments;
}

Values normalised(Values x, const Moments& moments) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = (x[i] - moments.mean[i % kChannels]) / moments.std(i % kChannels);
  }
  return x;
}

Sums sums_of(const Values& dy, const Values& y) {
  Sums sums;
  for (std::size_t i = 0; i < dy.size(); ++i) {
    sums.dy[i % kChannels] += dy[i];
    sums.dy_y[i % kChannels] += dy[i] * y[i];
  }
  return sums;
}

Values input_gradient(Values dy, const Values& y, const Moments& moments, const Sums& sums) {
  for (std::size_t i = 0; i < dy.size(); ++i) {
    const std::size_t c = i % kChannels;
    dy[i] -= sums.dy[c] / moments.count + y[i] * sums.dy_y[c] / moments.count;
    dy[i] /= moments.std(c);
  }
  return dy;
}

// --- how the statistics of two become those of both ---

/// Chan, Golub and LeVeque 1979. Where the means differ, that is variance, too: without the last
/// term the variance of the whole batch would come out too small.
Moments merge(const Moments& a, const Moments& b) {
  Moments both{.count = a.count + b.count};
  if (both.count == 0) return both;
  for (std::size_t c = 0; c < kChannels; ++c) {
    const double distance = b.mean[c] - a.mean[c];
    both.mean[c] = a.mean[c] + distance * b.count / both.count;
    both.m2[c] = a.m2[c] + b.m2[c] + distance * distance * a.count * b.count / both.count;
  }
  return both;
}

Sums merge(Sums a, const Sums& b) {
  for (std::size_t c = 0; c < kChannels; ++c) {
    a.dy[c] += b.dy[c];
    a.dy_y[c] += b.dy_y[c];
  }
  return a;
}

/// Where devices meet: each shows a T and gets that of all. The callback runs once, on the thread
/// that comes last, over what was shown in the order of the devices, whoever came first.
template <typename T>
Barrier<T, T>& merging_barrier(SyncGroup& group) {
  return group.make_barrier<T, T>([](const SyncCall&, auto shown, auto answers) {
    T all;
    for (const T& device : shown) all = merge(all, device);
    std::fill(answers.begin(), answers.end(), all);
  });
}

// --- the devices ---

struct Device {
  Values x, dy;            // what it is given
  Values y = {}, dx = {};  // what it computes
};

/// A thread for each device. `broken`: one that fails between its two exchanges; -1: none. Its
/// failure ends the waits of the others, so that nobody hangs. Returns the first failure, or null.
std::exception_ptr run_all(std::vector<Device>& devices, int broken = -1) {
  SyncGroup group(lockstep::parse_devices("cpu:" + std::to_string(devices.size())));
  auto& forward = merging_barrier<Moments>(group);
  auto& backward = merging_barrier<Sums>(group);
  const auto work = [&](Device& own, int rank) {
    const Moments all = forward.exchange(rank, {.layer = "bn forward"}, moments_of(own.x));
    if (rank == broken) throw std::runtime_error("device " + std::to_string(rank) + " is broken");
    own.y = normalised(own.x, all);
    const Sums sums = backward.exchange(rank, {.layer = "bn backward"}, sums_of(own.dy, own.y));
    own.dx = input_gradient(own.dy, own.y, all, sums);
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < group.size(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        work(devices[static_cast<std::size_t>(rank)], rank);
      } catch (...) {
        group.abort(std::current_exception());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return group.failure();
}

/// Every image has a light of its own: so the statistics of a part differ from the whole batch's.
Values random_values(unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> noise;
  Values values(kImages * kPixels * kChannels);
  double light = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i % (kPixels * kChannels) == 0) light = noise(random);
    values[i] = light + noise(random);
  }
  return values;
}

/// Deals x and dy out: so many images to each device, in order.
std::vector<Device> deal(const std::vector<std::size_t>& images) {
  static const Values x = random_values(1), dy = random_values(2);
  std::vector<Device> devices;
  auto from_x = x.begin(), from_dy = dy.begin();
  for (const std::size_t count : images) {
    const auto values = static_cast<std::ptrdiff_t>(count * kPixels * kChannels);
    devices.push_back({.x = {from_x, from_x + values}, .dy = {from_dy, from_dy + values}});
    from_x += values, from_dy += values;
  }
  return devices;
}

/// The largest distance of what the devices compute from what one device computes.
double distance_from_one_device(const std::vector<std::size_t>& images) {
  std::vector<Device> one = deal({kImages}), many = deal(images);
  if (run_all(one) != nullptr || run_all(many) != nullptr) return HUGE_VAL;
  double largest = 0;
  std::size_t i = 0;
  for (const Device& device : many) {
    for (std::size_t k = 0; k < device.y.size(); ++k, ++i) {
      largest = std::max(
          {largest, std::abs(device.y[k] - one[0].y[i]), std::abs(device.dx[k] - one[0].dx[i])});
    }
  }
  return largest;
}

int main() {
  bool right = true;
  for (const auto& images : {std::vector<std::size_t>{2, 2, 2, 2}, {5, 2, 1}, {7, 0, 0, 1}}) {
    right = right && distance_from_one_device(images) < 1e-12;
  }
  std::printf("even, uneven and empty parts compute as one device: %s\n", right ? "yes" : "no");
  std::vector<Device> devices = deal({2, 2, 2, 2});
  try {
    if (const auto failure = run_all(devices, 2)) std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    std::printf("nobody hangs: %s\n", error.what());
  }
  return right ? 0 : 1;
}
