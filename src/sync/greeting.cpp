#include "sync/greeting.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/system_text.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kHearing{3000};     // how long a connection may take to say who it is
constexpr std::size_t kMostUnknown = 128;  // connections that have not said so

/// What a process says first. Of fixed size: no length of a stranger's is believed.
struct Greeting {
  std::uint64_t question = 0;
  std::int64_t process = 0;
};

/// Bytes of one value, as they come.
template <typename Value>
class Incoming {
 public:
  /// Whether the connection goes on.
  bool receive(int socket) {
    const ssize_t got = recv(socket, bytes_.data() + count_, bytes_.size() - count_, MSG_DONTWAIT);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    count_ += static_cast<std::size_t>(got);
    return got > 0;
  }
  bool complete() const { return count_ == bytes_.size(); }
  Value value() const {
    Value value;
    std::memcpy(&value, bytes_.data(), sizeof value);
    return value;
  }

 private:
  std::array<std::byte, sizeof(Value)> bytes_{};
  std::size_t count_ = 0;
};

template <typename Value>
bool send_value(int socket, const Value& value) {
  return send(socket, &value, sizeof value, MSG_NOSIGNAL) == ssize_t{sizeof value};
}

void wait_in_calls(int socket) { fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) & ~O_NONBLOCK); }

int milliseconds_until(Clock::time_point end) {
  const auto left = std::chrono::ceil<milliseconds>(end - Clock::now()).count();
  return static_cast<int>(std::max<std::int64_t>(left, 0));
}

// --- process 0 ---

/// A connection of which nobody knows yet whose it is.
struct Unknown {
  int socket = -1;
  Clock::time_point until;
  Incoming<Greeting> greeting = {};
};

class Door {
 public:
  Door(int listener, int processes, const Passwords& passwords)
      : listener_(listener),
        passwords_(passwords),
        missing_(processes - 1),
        sockets_(static_cast<std::size_t>(processes), -1) {
    fcntl(listener, F_SETFL, fcntl(listener, F_GETFL) | O_NONBLOCK);
  }
  ~Door() {
    for (const Unknown& each : unknown_) close(each.socket);
  }
  Door(const Door&) = delete;
  Door& operator=(const Door&) = delete;

  int missing() const { return missing_; }
  const std::vector<int>& sockets() const { return sockets_; }

  /// Looks after all connections, once one of them has something to say.
  void serve(Clock::time_point until);

 private:
  void let_in();
  /// Whether it stays unknown.
  bool hear(Unknown& unknown);
  bool is_expected(const Greeting& greeting) const;

  const int listener_;
  const Passwords passwords_;
  int missing_;
  std::vector<int> sockets_;  // [process]
  std::vector<Unknown> unknown_;
};

void Door::serve(Clock::time_point until) {
  std::vector<pollfd> ready{{listener_, POLLIN, 0}};
  for (const Unknown& each : unknown_) {
    ready.push_back({each.socket, POLLIN, 0});
    until = std::min(until, each.until);
  }
  if (poll(ready.data(), ready.size(), milliseconds_until(until)) < 0 && errno != EINTR) return;
  std::vector<Unknown> still;
  for (std::size_t i = 0; i < unknown_.size(); ++i) {
    const bool stays =
        ready[i + 1].revents == 0 ? Clock::now() < unknown_[i].until : hear(unknown_[i]);
    if (stays) still.push_back(unknown_[i]);
    if (!stays && unknown_[i].socket >= 0) close(unknown_[i].socket);
  }
  unknown_ = std::move(still);
  if (ready.front().revents != 0) let_in();
}

void Door::let_in() {
  const int socket = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  const bool full = unknown_.size() == kMostUnknown || (socket < 0 && errno == EMFILE);
  if (full && !unknown_.empty()) {
    close(unknown_.front().socket);
    unknown_.erase(unknown_.begin());
  }
  if (socket >= 0) unknown_.push_back({socket, Clock::now() + kHearing});
}

bool Door::is_expected(const Greeting& greeting) const {
  return greeting.question == passwords_.question && greeting.process > 0 &&
         greeting.process < static_cast<std::int64_t>(sockets_.size()) &&
         sockets_[static_cast<std::size_t>(greeting.process)] < 0;
}

bool Door::hear(Unknown& unknown) {
  if (!unknown.greeting.receive(unknown.socket)) return false;
  if (!unknown.greeting.complete()) return Clock::now() < unknown.until;
  const Greeting greeting = unknown.greeting.value();
  if (!is_expected(greeting) || !send_value(unknown.socket, passwords_.answer)) return false;
  wait_in_calls(unknown.socket);
  sockets_[static_cast<std::size_t>(greeting.process)] = std::exchange(unknown.socket, -1);
  --missing_;
  return false;
}

// --- another process ---

/// An address of process 0, perhaps.
struct Attempt {
  int socket = -1;  // -1: given up
  bool connected = false;
  Incoming<std::uint64_t> answer = {};
};

Attempt dial(const std::string& address, int port) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<std::uint16_t>(port));
  if (inet_pton(AF_INET, address.c_str(), &to.sin_addr) != 1) return {};
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (socket < 0) return {};
  if (connect(socket, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0 ||
      errno == EINPROGRESS) {
    return {socket};
  }
  close(socket);
  return {};
}

/// Whether it may still become the connection.
bool go_on(Attempt& attempt, const Greeting& greeting) {
  if (attempt.connected) return attempt.answer.receive(attempt.socket);
  int error = 0;
  socklen_t size = sizeof error;
  attempt.connected = getsockopt(attempt.socket, SOL_SOCKET, SO_ERROR, &error, &size) == 0 &&
                      error == 0 && send_value(attempt.socket, greeting);
  return attempt.connected;
}

void give_up(Attempt& attempt) {
  if (attempt.socket >= 0) close(std::exchange(attempt.socket, -1));
}

/// The socket of the attempt that was answered as it should be, which then is no attempt any more;
/// -1: none yet.
int answered(std::vector<Attempt>& attempts, const Passwords& passwords) {
  for (Attempt& attempt : attempts) {
    if (attempt.socket < 0 || !attempt.answer.complete()) continue;
    if (attempt.answer.value() == passwords.answer) return std::exchange(attempt.socket, -1);
    give_up(attempt);
  }
  return -1;
}

/// Waits for one of them. Whether any is left.
bool wait_for(std::vector<Attempt>& attempts, const Greeting& greeting, Clock::time_point until) {
  std::vector<pollfd> ready;
  for (const Attempt& each : attempts) {
    ready.push_back({each.socket, static_cast<short>(each.connected ? POLLIN : POLLOUT), 0});
  }
  if (std::ranges::all_of(attempts, [](const Attempt& each) { return each.socket < 0; })) {
    return false;
  }
  if (poll(ready.data(), ready.size(), milliseconds_until(until)) < 0 && errno != EINTR)
    return false;
  for (std::size_t i = 0; i < attempts.size(); ++i) {
    if (attempts[i].socket < 0 || ready[i].revents == 0) continue;
    if (!go_on(attempts[i], greeting)) give_up(attempts[i]);
  }
  return true;
}

}  // namespace

Passwords draw_passwords() {
  Passwords passwords;
  if (getrandom(&passwords, sizeof passwords, 0) != ssize_t{sizeof passwords}) {
    throw Error(concat("getrandom: ", system_text(errno)));
  }
  return passwords;
}

std::vector<int> accept_processes(int listener, int processes, const Passwords& passwords,
                                  milliseconds patience) {
  Door door(listener, processes, passwords);
  Clock::time_point until = Clock::now() + patience;
  for (int missing = door.missing(); missing > 0 && Clock::now() < until;) {
    door.serve(until);
    if (door.missing() < missing) until = Clock::now() + patience;
    missing = door.missing();
  }
  return door.sockets();
}

int reach_first(const std::vector<std::string>& addresses, int port, int process,
                const Passwords& passwords, milliseconds patience) {
  std::vector<Attempt> attempts;
  for (const std::string& address : addresses) attempts.push_back(dial(address, port));
  const Clock::time_point until = Clock::now() + patience;
  int socket = -1;
  while (socket < 0 && Clock::now() < until &&
         wait_for(attempts, {passwords.question, process}, until)) {
    socket = answered(attempts, passwords);
  }
  for (Attempt& attempt : attempts) give_up(attempt);
  if (socket >= 0) wait_in_calls(socket);
  return socket;
}

}  // namespace lockstep
