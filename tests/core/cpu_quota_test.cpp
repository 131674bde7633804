#include "core/cpu_quota.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <string>

#include "support/temporary_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

/// A machine's /proc and /sys.
class Machine {
 public:
  void write(const std::string& file, const std::string& text) {
    fs::create_directories((folder_.path() / file).parent_path());
    folder_.write(file, text);
  }
  std::optional<double> quota() const { return cpu_quota(folder_.path()); }

 private:
  test::TemporaryFolder folder_;
};

constexpr const char* kSecond =
    "25 30 0:23 / /proc rw - proc proc rw\n"
    "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";

}  // namespace

TEST_CASE("a quota of version 2 is the least of all levels") {
  Machine machine;
  CHECK_FALSE(machine.quota());
  machine.write("proc/self/mountinfo", kSecond);
  machine.write("proc/self/cgroup", "0::/user/job\n");
  CHECK_FALSE(machine.quota());
  machine.write("sys/fs/cgroup/user/job/cpu.max", "max 100000\n");
  CHECK_FALSE(machine.quota());
  machine.write("sys/fs/cgroup/user/cpu.max", "150000 100000\n");
  CHECK(machine.quota() == 1.5);
  machine.write("sys/fs/cgroup/user/job/cpu.max", "50000 100000\n");
  CHECK(machine.quota() == 0.5);
  machine.write("sys/fs/cgroup/user/job/cpu.max", "300000 100000\n");
  CHECK(machine.quota() == 1.5);
}

TEST_CASE("a quota of version 1 is that of the controller cpu") {
  Machine machine;
  machine.write("proc/self/mountinfo",
                "31 30 0:27 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
                "32 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n");
  machine.write("proc/self/cgroup", "9:cpuset:/other\n4:cpu,cpuacct:/slurm/job\n0::/\n");
  machine.write("sys/fs/cgroup/cpu,cpuacct/slurm/job/cpu.cfs_quota_us", "200000\n");
  machine.write("sys/fs/cgroup/cpu,cpuacct/slurm/job/cpu.cfs_period_us", "100000\n");
  machine.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  machine.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  CHECK(machine.quota() == 2);
}

TEST_CASE("a container that sees its own group alone finds its quota") {
  Machine machine;
  machine.write("sys/fs/cgroup/cpu.max", "100000 100000\n");
  machine.write("proc/self/mountinfo", kSecond);
  machine.write("proc/self/cgroup", "0::/\n");  // by a namespace of groups
  CHECK(machine.quota() == 1);
  machine.write("proc/self/mountinfo",  // without: mount and process name the host's group
                "30 23 0:26 /docker/1 /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
  machine.write("proc/self/cgroup", "0::/docker/1\n");
  CHECK(machine.quota() == 1);
  machine.write("proc/self/cgroup", "0::/elsewhere\n");
  CHECK(machine.quota() == 1);
}

TEST_CASE("what is no quota is none") {
  Machine machine;
  machine.write("proc/self/mountinfo", std::string("nonsense\n") + kSecond);
  machine.write("proc/self/cgroup", "0\n0::/job\n");
  for (const char* text : {"", "max", "-1 100000", "0 100000", "100000 0", "100000", "x y"}) {
    machine.write("sys/fs/cgroup/job/cpu.max", text);
    CHECK_FALSE(machine.quota());
  }
}

}  // namespace lockstep
