#include "sync/failure_detector.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "core/start_thread.h"
#include "core/system_text.h"
#include "core/words.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kReach{3000};         // of a call that sends or receives
constexpr milliseconds kAllConnect{20'000};  // for the next process to connect
constexpr int kUnacknowledged = 3000;        // milliseconds until TCP gives a peer up
constexpr milliseconds kBeat{250};           // how often a process says that it runs
constexpr milliseconds kPatience{1000};      // for others to write down why they end
// When the listener speaks for threads that do not come to say that another has failed, and when it
// ends the process for them, with the exit code of a replica that has failed.
constexpr milliseconds kSpeak{200}, kEnd{10'000};
constexpr int kExitCode = 5;

// The first letter of a message; a text and a zero follow.
constexpr char kFailed = 'F', kDone = 'D', kAlive = 'A';

[[noreturn]] void fail(const std::string& what) {
  throw Error("the failure detector between the processes: " + what);
}

[[noreturn]] void fail_by_errno(const char* call) { fail(concat(call, ": ", system_text(errno))); }

void set(int socket, int level, int option, int value) {
  setsockopt(socket, level, option, &value, sizeof value);
}

/// Of recv and send.
void limit(int socket, milliseconds time) {
  const timeval limit{time.count() / 1000, time.count() % 1000 * 1000};
  setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

void watch_closely(int socket) {
  set(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(socket, IPPROTO_TCP, TCP_KEEPIDLE, 1);
  set(socket, IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set(socket, IPPROTO_TCP, TCP_KEEPCNT, 3);
  set(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, kUnacknowledged);
  set(socket, IPPROTO_TCP, TCP_NODELAY, 1);
}

/// This machine's addresses: " 127.0.0.1 10.77.0.1".
std::string own_addresses() {
  std::string text;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) fail_by_errno("getifaddrs");
  for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET) continue;
    char name[INET_ADDRSTRLEN] = {};
    const auto* address = reinterpret_cast<const sockaddr_in*>(each->ifa_addr);
    text += concat(" ", inet_ntop(AF_INET, &address->sin_addr, name, sizeof name));
  }
  freeifaddrs(all);
  return text;
}

/// Waits a moment for it.
bool has_ended(int socket) {
  pollfd ready{socket, POLLIN, 0};
  std::array<char, 4096> piece;
  return poll(&ready, 1, 50) > 0 && recv(socket, piece.data(), piece.size(), 0) <= 0;
}

}  // namespace

FailureDetector::FailureDetector(World& carrier)
    : process_(carrier.process()), hosts_(carrier.hosts()), heard_at_(hosts_.size()) {
  for (auto& at : heard_at_) at = Clock::now().time_since_epoch().count();
  if (pipe2(wake_, O_CLOEXEC) != 0) fail_by_errno("pipe");
  connect_all(carrier);
  for (const Line& line : lines_) watch_closely(line.socket);
  listener_ = start_thread<std::thread>("to hear of other processes", [this] { listen(); });
}

FailureDetector::~FailureDetector() {
  leaving_ = true;
  send_all({kDone});
  end_listener();
  for (const Line& line : lines_) close(line.socket);
  close(wake_[0]);
  close(wake_[1]);
}

void FailureDetector::connect_all(World& carrier) {
  if (process_ != 0) return connect_to_first(carrier.broadcast(""));
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in any{};
  any.sin_family = AF_INET;
  socklen_t size = sizeof any;
  if (listener < 0 || bind(listener, reinterpret_cast<sockaddr*>(&any), sizeof any) != 0 ||
      ::listen(listener, carrier.size()) != 0 ||
      getsockname(listener, reinterpret_cast<sockaddr*>(&any), &size) != 0) {
    fail_by_errno("listen");
  }
  const Passwords passwords = draw_passwords();
  carrier.broadcast(
      concat(passwords.question, " ", passwords.answer, " ", ntohs(any.sin_port), own_addresses()));
  accept_all(listener, passwords);
  close(listener);
}

void FailureDetector::accept_all(int listener, const Passwords& passwords) {
  const std::vector<int> sockets =
      accept_processes(listener, static_cast<int>(hosts_.size()), passwords, kAllConnect);
  std::string missing;
  for (int process = 1; process < static_cast<int>(sockets.size()); ++process) {
    const int socket = sockets[static_cast<std::size_t>(process)];
    if (socket < 0) missing += (missing.empty() ? "" : ", ") + name(process);
    if (socket < 0) continue;
    limit(socket, kReach);
    lines_.push_back({process, socket, {}, false});
  }
  if (missing.empty()) return;
  for (const Line& line : lines_) close(line.socket);
  fail(concat(missing, ": has not connected to ", hosts_.front(),
              " within 20 s; a firewall may block it"));
}

void FailureDetector::connect_to_first(const std::string& told) {
  std::istringstream words(told);
  Passwords passwords;
  int port = 0;
  words >> passwords.question >> passwords.answer >> port;
  const std::string& own_host = hosts_[static_cast<std::size_t>(process_)];
  std::vector<std::string> addresses;
  for (std::string address; words >> address;) {
    if (address.starts_with("127.") && own_host != hosts_.front()) continue;
    addresses.push_back(address);
  }
  const int socket = reach_first(addresses, port, process_, passwords, kAllConnect);
  if (socket < 0) {
    fail(concat(name(process_), " does not reach ", hosts_.front(), " at port ", port, " of ",
                joined(addresses)));
  }
  limit(socket, kReach);
  lines_.push_back({0, socket, {}, false});
}

std::string FailureDetector::name(int process) const {
  return concat("process ", process, " (", hosts_[static_cast<std::size_t>(process)], ")");
}

// --- the listener's thread ---

void FailureDetector::listen() {
  constexpr milliseconds kLook{50};  // how often, once a failure was heard of
  std::optional<Clock::time_point> heard;
  Clock::time_point next_beat = Clock::now();
  std::vector<pollfd> ready;
  while (true) {
    if (Clock::now() >= next_beat) {
      say_alive();
      next_beat = Clock::now() + kBeat;
    }
    if (failed_ && !heard) heard = Clock::now();
    const bool stuck = heard && !told_;
    if (stuck) speak_for_stuck_threads(Clock::now() - *heard);
    ready.assign(1, {wake_[0], POLLIN, 0});
    for (const Line& line : lines_) ready.push_back({line.done ? -1 : line.socket, POLLIN, 0});
    const auto wait = static_cast<int>((stuck ? kLook : kBeat).count());
    if (poll(ready.data(), ready.size(), wait) < 0 && errno != EINTR) return;
    if ((ready.front().revents & POLLIN) != 0) return;
    for (std::size_t i = 0; i < lines_.size(); ++i) {
      if (ready[i + 1].revents != 0) hear(lines_[i]);
    }
  }
}

void FailureDetector::speak_for_stuck_threads(Clock::duration since_heard) {
  if (since_heard > kSpeak) speak();
  if (since_heard > kEnd) std::_Exit(kExitCode);
}

void FailureDetector::speak() {
  if (spoken_.exchange(true)) return;
  const std::string line = "lockstep: error: " + explained_ + "\n";
  static_cast<void>(write(STDERR_FILENO, line.data(), line.size()));
}

void FailureDetector::hear(Line& line) {
  std::array<char, 4096> piece;
  const ssize_t got = recv(line.socket, piece.data(), piece.size(), 0);
  if (got <= 0) {
    line.done = true;
    // A reset: it had not read all that it was told.
    const bool ended = got == 0 || errno == ECONNRESET;
    const char* how = ended ? " ended without a word" : " cannot be reached any more";
    return note(name(line.process) + how, line.process);
  }
  line.heard.append(piece.data(), static_cast<std::size_t>(got));
  for (auto end = line.heard.find('\0'); end != std::string::npos; end = line.heard.find('\0')) {
    const std::string message = line.heard.substr(0, end);
    line.heard.erase(0, end + 1);
    take(line, message);
  }
}

void FailureDetector::take(Line& line, const std::string& message) {
  const std::string text = message.substr(1);
  if (message.front() == kDone) line.done = true;
  if (message.front() == kFailed) note(text, line.process);
  if (message.front() != kAlive) return;
  const Clock::time_point now = Clock::now();
  std::istringstream silences(text);
  std::int64_t silence = 0;
  for (std::size_t process = 0; silences >> silence; ++process) {
    heard_at_[process] = (now - milliseconds(silence)).time_since_epoch().count();
  }
  heard_at_[static_cast<std::size_t>(line.process)] = now.time_since_epoch().count();
}

// Process 0 says, too, for how many milliseconds it has not heard of each process. A beat that
// there is no room for, since the peer is stopped, is left out.
void FailureDetector::say_alive() {
  std::string beat{kAlive};
  for (int process = 0; process_ == 0 && process < static_cast<int>(hosts_.size()); ++process) {
    beat += concat(std::chrono::duration_cast<milliseconds>(silence_of(process)).count(), " ");
  }
  for (const Line& line : lines_) {
    if (line.done) continue;
    static_cast<void>(
        ::send(line.socket, beat.c_str(), beat.size() + 1, MSG_NOSIGNAL | MSG_DONTWAIT));
  }
}

// Process 0 tells the others, and whoever started them.
void FailureDetector::note(const std::string& reason, int from) {
  {
    const std::lock_guard lock(mutex_);
    if (failed_ || leaving_) return;
    failure_ = reason;
    heard_from_ = from;
    failed_ = true;
  }
  {
    const std::lock_guard lock(explain_mutex_);
    explained_ = explain_ ? explain_(reason) : reason;
  }
  if (process_ != 0) return;
  speak();
  send_all(kFailed + reason, from);
}

// --- any thread ---

// By one call, so that what two threads say does not mix.
void FailureDetector::send_all(const std::string& message, int but) const {
  for (const Line& line : lines_) {
    if (line.process == but) continue;
    static_cast<void>(::send(line.socket, message.c_str(), message.size() + 1, MSG_NOSIGNAL));
  }
}

std::chrono::steady_clock::duration FailureDetector::silence_of(int process) const {
  if (process == process_) return {};
  return Clock::now() -
         Clock::time_point(Clock::duration(heard_at_[static_cast<std::size_t>(process)].load()));
}

std::optional<std::string> FailureDetector::failure() const {
  const std::lock_guard lock(mutex_);
  if (!failed_) return std::nullopt;
  told_ = true;
  return failure_;
}

void FailureDetector::on_failure(std::function<std::string(const std::string&)> explain) {
  const std::lock_guard lock(explain_mutex_);
  explain_ = std::move(explain);
}

void FailureDetector::end_listener() {
  if (write(wake_[1], "", 1) == 1 && listener_.joinable()) listener_.join();
}

// The first to fail waits until the others have written down why they end, process 0 until those
// behind it have. Those who only hear of it then say that they have, and listen on: the end of the
// one they heard it from, which is the first to fail or has waited for it, is when to end.
void FailureDetector::announce(const std::string& reason) {
  if (leaving_.exchange(true)) return;
  if (!failed_) send_all(concat(kFailed, name(process_), ": ", reason));
  end_listener();
  const Clock::time_point end = Clock::now() + kPatience;
  const auto wait_for_end = [](Line& line, Clock::time_point until) {
    while (!line.done && Clock::now() < until) line.done = has_ended(line.socket);
  };
  for (Line& line : lines_) {
    if (!failed_ || (process_ == 0 && line.process != heard_from_)) wait_for_end(line, end);
  }
  if (!failed_) return;
  for (const Line& line : lines_) shutdown(line.socket, SHUT_WR);
  for (Line& line : lines_) {
    if (line.process == heard_from_) wait_for_end(line, end + kPatience);
  }
}

}  // namespace lockstep
