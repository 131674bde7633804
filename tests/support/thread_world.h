#pragma once
// A world whose processes are threads of one: what they say goes through memory.

#include <array>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "lockstep/core/check.h"
#include "lockstep/sync/world.h"

namespace lockstep::test {

/// What one process says to another in a channel. Whoever is through with an exchange may begin the
/// next one before the other has read, but cannot end it. The memory is used again.
class Letters {
 public:
  void put(std::span<const std::byte> letter) {
    LOCKSTEP_CHECK(put_ - got_ < letters_.size(), "a letter that nobody has room for");
    letters_[put_++ % letters_.size()].assign(letter.begin(), letter.end());
  }
  bool empty() const { return put_ == got_; }
  void get(Bytes& letter) {
    const Bytes& next = letters_[got_++ % letters_.size()];
    letter.assign(next.begin(), next.end());
  }

 private:
  std::array<Bytes, 2> letters_;
  std::size_t put_ = 0, got_ = 0;
};

/// What is under way between the processes.
struct Mail {
  std::mutex mutex;
  std::condition_variable came;
  std::map<std::tuple<int, int, int>, Letters> letters;  // [channel, from, to]
};

class ThreadWorld : public World {
 public:
  ThreadWorld(std::shared_ptr<Mail> mail, int process, std::vector<std::string> hosts)
      : World(process, std::move(hosts)), mail_(std::move(mail)) {}
  /// The same process once more.
  ThreadWorld(const ThreadWorld& other)
      : ThreadWorld(other.mail_, other.process(), other.hosts()) {}

  std::vector<int> waiting_for() const override {
    const std::lock_guard lock(mail_->mutex);
    return missing_ < 0 ? std::vector<int>() : std::vector<int>{missing_};
  }

 protected:
  void carry(int channel, std::span<const int> peers,
             std::span<const std::span<const std::byte>> out, std::span<Bytes> in,
             const std::function<bool()>& stop) override {
    std::unique_lock lock(mail_->mutex);
    for (const int peer : peers) {
      mail_->letters[{channel, process(), peer}].put(out[static_cast<std::size_t>(peer)]);
    }
    mail_->came.notify_all();
    for (const int peer : peers) {
      Letters& letters = mail_->letters[{channel, peer, process()}];
      missing_ = peer;
      while (letters.empty()) {
        if (stop()) throw PeerAborted("the process leaves the exchange");
        mail_->came.wait_for(lock, std::chrono::milliseconds(5));
      }
      letters.get(in[static_cast<std::size_t>(peer)]);
    }
    missing_ = -1;
  }

 private:
  const std::shared_ptr<Mail> mail_;
  int missing_ = -1;  // guarded by the mail's mutex
};

/// Runs work(world) as a process on each of `hosts`, all at the same time. What one throws comes to
/// the caller, the first process's first.
inline void run_world(const std::vector<std::string>& hosts,
                      const std::function<void(ThreadWorld&)>& work) {
  const auto mail = std::make_shared<Mail>();
  std::vector<std::exception_ptr> thrown(hosts.size());
  std::vector<std::thread> threads;
  for (std::size_t process = 0; process < hosts.size(); ++process) {
    threads.emplace_back([&, process] {
      ThreadWorld world(mail, static_cast<int>(process), hosts);
      try {
        work(world);
      } catch (...) {
        thrown[process] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : thrown) {
    if (failure) std::rethrow_exception(failure);
  }
}

/// The same on "host0", "host1" and so on.
inline void run_world(int processes, const std::function<void(ThreadWorld&)>& work) {
  std::vector<std::string> hosts;
  for (int i = 0; i < processes; ++i) hosts.push_back("host" + std::to_string(i));
  run_world(hosts, work);
}

}  // namespace lockstep::test
