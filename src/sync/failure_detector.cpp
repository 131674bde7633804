#include "sync/failure_detector.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <random>
#include <sstream>
#include <utility>

#include "lockstep/core/check.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kConnectMilliseconds = 3000;
// A peer that does not even acknowledge for so long is gone.
constexpr int kSilenceMilliseconds = 3000;
constexpr std::chrono::seconds kPatience{1};
// What a process does whose threads do not come to say that another has failed.
constexpr std::chrono::milliseconds kSpeak{200}, kEnd{10'000};
constexpr int kExitCode = 5;  // as of a replica that has failed

// How often a process says that it runs; not to one that has been silent for so long that it would
// have to keep what it is told.
constexpr std::chrono::milliseconds kBeat{250}, kSilent{10'000};

constexpr char kFailed = 'F', kDone = 'D', kAlive = 'A';

[[noreturn]] void fail(const char* what) {
  throw Error(concat("the lifeline between the processes: ", what, ": ", std::strerror(errno)));
}

void set(int socket, int level, int option, int value) {
  setsockopt(socket, level, option, &value, sizeof value);
}

void watch_closely(int socket) {
  set(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(socket, IPPROTO_TCP, TCP_KEEPIDLE, 1);
  set(socket, IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set(socket, IPPROTO_TCP, TCP_KEEPCNT, 3);
  set(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, kSilenceMilliseconds);
  set(socket, IPPROTO_TCP, TCP_NODELAY, 1);
}

/// This machine's addresses: "127.0.0.1 10.77.0.1".
std::string own_addresses() {
  std::string text;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) fail("getifaddrs");
  for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET) continue;
    char name[INET_ADDRSTRLEN] = {};
    const auto* address = reinterpret_cast<const sockaddr_in*>(each->ifa_addr);
    inet_ntop(AF_INET, &address->sin_addr, name, sizeof name);
    text += (text.empty() ? "" : " ") + std::string(name);
  }
  freeifaddrs(all);
  return text;
}

bool send_bytes(int socket, const void* data, std::size_t bytes) {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t sent = ::send(socket, at, bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    at += sent;
    bytes -= static_cast<std::size_t>(sent);
  }
  return true;
}

bool receive_bytes(int socket, void* data, std::size_t bytes) {
  auto* at = static_cast<char*>(data);
  const Clock::time_point end = Clock::now() + std::chrono::milliseconds(kConnectMilliseconds);
  while (bytes > 0) {
    pollfd ready{socket, POLLIN, 0};
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
    if (left.count() <= 0 || poll(&ready, 1, static_cast<int>(left.count())) <= 0) return false;
    const ssize_t got = recv(socket, at, bytes, 0);
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

/// Who connects, and the proof that it is of this run.
struct Greeting {
  std::uint64_t token = 0;
  std::int64_t process = 0;
};

/// -1 where nobody of this run listens.
int try_address(const std::string& address, int port, const Greeting& greeting) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<std::uint16_t>(port));
  if (inet_pton(AF_INET, address.c_str(), &to.sin_addr) != 1) return -1;
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (socket < 0) return -1;
  connect(socket, reinterpret_cast<const sockaddr*>(&to), sizeof to);
  pollfd ready{socket, POLLOUT, 0};
  int error = ECONNREFUSED;
  socklen_t size = sizeof error;
  std::uint64_t answer = 0;
  const bool connected = poll(&ready, 1, kConnectMilliseconds) > 0 &&
                         getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
  fcntl(socket, F_SETFL, 0);
  if (connected && send_bytes(socket, &greeting, sizeof greeting) &&
      receive_bytes(socket, &answer, sizeof answer) && answer == greeting.token) {
    return socket;
  }
  close(socket);
  return -1;
}

/// Waits a moment for it.
bool has_ended(int socket) {
  pollfd ready{socket, POLLIN, 0};
  std::array<char, 4096> piece;
  return poll(&ready, 1, 50) > 0 && recv(socket, piece.data(), piece.size(), 0) <= 0;
}

std::uint64_t random_token() {
  std::random_device device;
  return std::uint64_t{device()} << 32U | device();
}

}  // namespace

FailureDetector::FailureDetector(World& world)
    : process_(world.process()), hosts_(world.hosts()), heard_at_(hosts_.size()) {
  for (auto& at : heard_at_) at = Clock::now().time_since_epoch().count();
  if (pipe2(wake_, O_CLOEXEC) != 0) fail("pipe");
  if (process_ == 0) {
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0) fail("socket");
    sockaddr_in any{};
    any.sin_family = AF_INET;
    socklen_t size = sizeof any;
    if (bind(listener, reinterpret_cast<sockaddr*>(&any), sizeof any) != 0 ||
        ::listen(listener, world.size()) != 0 ||
        getsockname(listener, reinterpret_cast<sockaddr*>(&any), &size) != 0) {
      fail("listen");
    }
    const std::uint64_t token = random_token();
    world.broadcast(concat(token, " ", ntohs(any.sin_port), " ", own_addresses()));
    accept_all(listener, token);
    close(listener);
  } else {
    connect_to_first(world.broadcast(""));
  }
  for (Line& line : lines_) watch_closely(line.socket);
  listener_ = std::thread([this] { listen(); });
}

FailureDetector::~FailureDetector() {
  leaving_ = true;
  send_all(kDone, "", -1);
  if (write(wake_[1], "", 1) == 1 && listener_.joinable()) listener_.join();
  for (const Line& line : lines_) close(line.socket);
  close(wake_[0]);
  close(wake_[1]);
}

void FailureDetector::accept_all(int listener, std::uint64_t token) {
  const Clock::time_point end = Clock::now() + std::chrono::seconds(20);
  while (lines_.size() + 1 < hosts_.size()) {
    pollfd ready{listener, POLLIN, 0};
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
    if (left.count() <= 0 || poll(&ready, 1, static_cast<int>(left.count())) <= 0) {
      throw Error(concat("the lifeline between the processes: ", hosts_.size() - 1 - lines_.size(),
                         " of ", hosts_.size() - 1, " processes have not connected to ",
                         hosts_.front(), " within 20 s; a firewall may block them"));
    }
    const int socket = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket < 0) continue;
    Greeting greeting;
    if (!receive_bytes(socket, &greeting, sizeof greeting) || greeting.token != token ||
        !send_bytes(socket, &token, sizeof token)) {
      close(socket);
      continue;
    }
    lines_.push_back({static_cast<int>(greeting.process), socket, {}, false});
  }
}

void FailureDetector::connect_to_first(const std::string& addresses) {
  std::istringstream words(addresses);
  Greeting greeting{0, process_};
  int port = 0;
  words >> greeting.token >> port;
  std::string tried;
  for (std::string address; words >> address;) {
    const bool own_machine = address.starts_with("127.");
    if (own_machine && hosts_[static_cast<std::size_t>(process_)] != hosts_.front()) continue;
    const int socket = try_address(address, port, greeting);
    if (socket >= 0) {
      lines_.push_back({0, socket, {}, false});
      return;
    }
    tried += (tried.empty() ? "" : ", ") + address;
  }
  throw Error(concat("the lifeline between the processes: process ", process_, " on ",
                     hosts_[static_cast<std::size_t>(process_)], " does not reach ", hosts_.front(),
                     " at port ", port, " of ", tried));
}

std::string FailureDetector::name(int process) const {
  return concat("process ", process, " (", hosts_[static_cast<std::size_t>(process)], ")");
}

void FailureDetector::listen() {
  constexpr int kLookMilliseconds = 50;  // once a failure was heard of
  std::vector<pollfd> ready;
  std::optional<Clock::time_point> heard;
  Clock::time_point next_beat = Clock::now();
  while (true) {
    if (failed_ && !heard) heard = Clock::now();
    if (Clock::now() >= next_beat) {
      say_alive();
      next_beat = Clock::now() + kBeat;
    }
    if (heard) speak_for_stuck_threads(*heard);
    ready.assign(1, {wake_[0], POLLIN, 0});
    for (const Line& line : lines_) ready.push_back({line.done ? -1 : line.socket, POLLIN, 0});
    const int wait = heard && !told_ ? kLookMilliseconds : static_cast<int>(kBeat.count());
    if (poll(ready.data(), ready.size(), wait) < 0 && errno != EINTR) return;
    if ((ready.front().revents & POLLIN) != 0) return;
    for (std::size_t i = 0; i < lines_.size(); ++i) {
      if (ready[i + 1].revents != 0) hear(lines_[i]);
    }
  }
}

void FailureDetector::speak_for_stuck_threads(Clock::time_point heard) {
  if (told_) return;
  const auto since = Clock::now() - heard;
  if (since > kSpeak) speak();
  if (since > kEnd) std::_Exit(kExitCode);
}

void FailureDetector::speak() {
  if (spoken_.exchange(true)) return;
  const std::string line = "lockstep: error: " + said_ + "\n";
  static_cast<void>(write(STDERR_FILENO, line.data(), line.size()));
}

// A message: kind, number of bytes in the order of this machine, text.
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
  constexpr std::size_t kHeader = 1 + sizeof(std::uint32_t);
  while (line.heard.size() >= kHeader) {
    std::uint32_t size = 0;
    std::memcpy(&size, line.heard.data() + 1, sizeof size);
    if (line.heard.size() < kHeader + size) return;
    const char kind = line.heard.front();
    const std::string text = line.heard.substr(kHeader, size);
    line.heard.erase(0, kHeader + size);
    take(line, kind, text);
  }
}

void FailureDetector::take(Line& line, char kind, const std::string& text) {
  line.done = kind == kDone;
  if (kind == kFailed) note(text, line.process);
  if (kind == kAlive) note_alive(line, text);
}

// To process 0 that this one runs, by it also for how long it has not heard of each of the others.
void FailureDetector::say_alive() {
  std::string silences;
  for (int process = 0; process_ == 0 && process < static_cast<int>(hosts_.size()); ++process) {
    const std::int64_t silence = silence_of(process).count();
    silences.append(reinterpret_cast<const char*>(&silence), sizeof silence);
  }
  for (const Line& line : lines_) {
    if (!line.done && silence_of(line.process) < kSilent) send(line, kAlive, silences);
  }
}

void FailureDetector::note_alive(const Line& line, const std::string& silences) {
  const Clock::rep now = Clock::now().time_since_epoch().count();
  for (std::size_t process = 0; process * sizeof(std::int64_t) < silences.size(); ++process) {
    std::int64_t silence = 0;
    std::memcpy(&silence, silences.data() + process * sizeof silence, sizeof silence);
    heard_at_[process] = now - silence;
  }
  heard_at_[static_cast<std::size_t>(line.process)] = now;
}

std::chrono::steady_clock::duration FailureDetector::silence_of(int process) const {
  if (process == process_) return {};
  return Clock::now() -
         Clock::time_point(Clock::duration(heard_at_[static_cast<std::size_t>(process)].load()));
}

// Process 0 tells the others, and whoever started them.
void FailureDetector::note(const std::string& text, int from) {
  {
    const std::lock_guard lock(mutex_);
    if (failed_ || leaving_) return;
    failure_ = text;
    heard_from_ = from;
    failed_ = true;
  }
  {
    const std::lock_guard lock(say_mutex_);
    said_ = say_ ? say_(text) : text;
  }
  if (process_ != 0) return;
  speak();
  send_all(kFailed, text, from);
}

// By one call, so that what two threads say does not mix.
void FailureDetector::send(const Line& line, char kind, const std::string& text) {
  const auto size = static_cast<std::uint32_t>(text.size());
  std::string message(1, kind);
  message.append(reinterpret_cast<const char*>(&size), sizeof size);
  message += text;
  send_bytes(line.socket, message.data(), message.size());
}

void FailureDetector::send_all(char kind, const std::string& text, int but) {
  for (const Line& line : lines_) {
    if (line.process != but) send(line, kind, text);
  }
}

std::optional<std::string> FailureDetector::failure() const {
  const std::lock_guard lock(mutex_);
  if (!failed_) return std::nullopt;
  told_ = true;
  return failure_;
}

// The first to fail waits until the others have written down why they end, process 0 until those
// behind it have. Those who only hear of it then say that they have, and listen on: the end of the
// one they heard it from, which is the first to fail or has waited for it, is when to end.
void FailureDetector::announce(const std::string& text) {
  if (leaving_.exchange(true)) return;
  if (!failed_) send_all(kFailed, concat(name(process_), ": ", text), -1);
  if (write(wake_[1], "", 1) == 1 && listener_.joinable()) listener_.join();
  const Clock::time_point end = Clock::now() + kPatience;
  for (Line& line : lines_) {
    const bool waits = !failed_ || (process_ == 0 && line.process != heard_from_);
    if (waits) wait_for_end(line, end);
  }
  if (!failed_) return;
  for (const Line& line : lines_) shutdown(line.socket, SHUT_WR);
  for (Line& line : lines_) {
    if (line.process == heard_from_) wait_for_end(line, end + kPatience);
  }
}

void FailureDetector::on_failure(std::function<std::string(const std::string&)> say) {
  const std::lock_guard lock(say_mutex_);
  say_ = std::move(say);
}

void FailureDetector::wait_for_end(Line& line, Clock::time_point until) {
  while (!line.done && Clock::now() < until) line.done = has_ended(line.socket);
}

}  // namespace lockstep
