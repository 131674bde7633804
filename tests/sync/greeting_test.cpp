#include "sync/greeting.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace lockstep {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPatience{20'000};
constexpr Passwords kPasswords{0x1234567890ABCDEF, 0xFEDCBA0987654321};
const std::vector<std::string> kHere{"127.0.0.1"};

/// A port of this machine that is listened at.
class Port {
 public:
  Port() : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = at(0);
    socklen_t size = sizeof address;
    REQUIRE(bind(socket_, reinterpret_cast<sockaddr*>(&address), size) == 0);
    REQUIRE(::listen(socket_, 64) == 0);
    REQUIRE(getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    number_ = ntohs(address.sin_port);
  }
  ~Port() { close(socket_); }
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;

  int socket_of() const { return socket_; }
  int number() const { return number_; }
  int connect_to() const {
    const int own = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_in address = at(number_);
    REQUIRE(connect(own, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    return own;
  }

 private:
  static sockaddr_in at(int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    return address;
  }

  int socket_ = -1, number_ = 0;
};

std::string greeting(std::uint64_t question, std::int64_t process) {
  std::string bytes(reinterpret_cast<const char*>(&question), sizeof question);
  return bytes.append(reinterpret_cast<const char*>(&process), sizeof process);
}

/// A connection of somebody else, who says `text` and stays.
class Stranger {
 public:
  Stranger(const Port& port, const std::string& text) : socket_(port.connect_to()) {
    static_cast<void>(send(socket_, text.data(), text.size(), MSG_NOSIGNAL));
  }
  Stranger(Stranger&& other) noexcept : socket_(std::exchange(other.socket_, -1)) {}
  ~Stranger() {
    if (socket_ >= 0) close(socket_);
  }
  /// What it hears until the other end closes.
  std::string hears() const {
    std::string text;
    std::array<char, 64> piece{};
    for (ssize_t got = 0; (got = recv(socket_, piece.data(), piece.size(), 0)) > 0;)
      text.append(piece.data(), static_cast<std::size_t>(got));
    return text;
  }

 private:
  int socket_;
};

/// The socket that process `process` gets of `port`.
int reach(const Port& port, int process) {
  return reach_first(kHere, port.number(), process, kPasswords, kPatience);
}

/// Somebody else who listens, and does `answer` with the connection.
class OtherServer {
 public:
  explicit OtherServer(std::function<void(int socket)> answer)
      : thread_([this, answer = std::move(answer)] {
          const int socket = accept(port_.socket_of(), nullptr, nullptr);
          answer(socket);
          ended_.get_future().wait();
          close(socket);
        }) {}
  ~OtherServer() {
    ended_.set_value();
    thread_.join();
  }
  const Port& port() const { return port_; }

 private:
  Port port_;
  std::promise<void> ended_;
  std::thread thread_;
};

}  // namespace

TEST_CASE("strangers at the port of process 0 keep nobody waiting") {
  const Port port;
  std::vector<Stranger> strangers;
  strangers.emplace_back(port, "");                                    // silent
  strangers.emplace_back(port, "GET ");                                // has not said all
  strangers.emplace_back(port, std::string(100'000, 'x'));             // babbles
  strangers.emplace_back(port, greeting(kPasswords.question + 1, 1));  // of another run
  strangers.emplace_back(port, greeting(kPasswords.question, 0));      // no other process
  strangers.emplace_back(port, greeting(kPasswords.question, 3));
  strangers.emplace_back(port, greeting(kPasswords.question, -1));
  for (int i = 0; i < 20; ++i) strangers.emplace_back(port, "");
  auto first = std::async(std::launch::async, [&] {
    return accept_processes(port.socket_of(), 3, kPasswords, kPatience);
  });
  const int two = reach(port, 2), one = reach(port, 1);
  const std::vector<int> sockets = first.get();
  REQUIRE(sockets.size() == 3);
  CHECK(sockets[0] == -1);
  // Each is the other end of the process's own.
  for (const auto& [own, other] : {std::pair{one, sockets[1]}, {two, sockets[2]}}) {
    REQUIRE(own >= 0);
    REQUIRE(other >= 0);
    char byte = 0;
    CHECK(send(own, "a", 1, MSG_NOSIGNAL) == 1);
    CHECK(recv(other, &byte, 1, 0) == 1);
    CHECK(byte == 'a');
    close(own);
    close(other);
  }
  for (std::size_t i = 0; i < 7; ++i) CHECK(strangers[i].hears().empty());
}

TEST_CASE("a second connection of a process is turned away") {
  const Port port;
  auto first = std::async(std::launch::async, [&] {
    return accept_processes(port.socket_of(), 3, kPasswords, kPatience);
  });
  const int one = reach(port, 1);
  const Stranger again(port, greeting(kPasswords.question, 1));
  CHECK(again.hears().empty());
  const int two = reach(port, 2);
  for (const int socket : {one, two}) close(socket);
  for (const int socket : first.get()) close(socket);
}

TEST_CASE("processes that do not come are the ones without a socket") {
  const Port port;
  auto first = std::async(std::launch::async, [&] {
    return accept_processes(port.socket_of(), 3, kPasswords, milliseconds(300));
  });
  const int two = reach(port, 2);
  const std::vector<int> sockets = first.get();
  CHECK(sockets[1] == -1);
  CHECK(sockets[2] >= 0);
  close(two);
  close(sockets[2]);
}

TEST_CASE("a process knows whom it has reached") {
  const auto reached = [](std::function<void(int)> answer) {
    const OtherServer server(std::move(answer));
    return reach_first(kHere, server.port().number(), 1, kPasswords, milliseconds(300));
  };
  CHECK(reached([](int) {}) == -1);  // silent
  CHECK(reached([](int socket) { send(socket, "HTTP/1.1 400", 12, MSG_NOSIGNAL); }) == -1);
  CHECK(reached([](int socket) {  // an echo
          std::array<char, 16> heard{};
          if (recv(socket, heard.data(), heard.size(), MSG_WAITALL) == 16)
            send(socket, heard.data(), heard.size(), MSG_NOSIGNAL);
        }) == -1);
  CHECK(reached([](int socket) { shutdown(socket, SHUT_RDWR); }) == -1);
}

TEST_CASE("an address at which somebody else listens does not hide that of process 0") {
  const Port port;
  auto first = std::async(std::launch::async, [&] {
    return accept_processes(port.socket_of(), 2, kPasswords, kPatience);
  });
  // Nobody listens at the first, and the second is none.
  const int socket =
      reach_first({"127.0.0.2", "nowhere", "127.0.0.1"}, port.number(), 1, kPasswords, kPatience);
  CHECK(socket >= 0);
  close(first.get()[1]);
  close(socket);
}

TEST_CASE("passwords are new ones") {
  const Passwords a = draw_passwords(), b = draw_passwords();
  CHECK(a.question != b.question);
  CHECK(a.question != a.answer);
}

}  // namespace lockstep
