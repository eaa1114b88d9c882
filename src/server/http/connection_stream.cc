#include "server/http/connection_stream.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>

namespace kvant::server {
namespace {

constexpr size_t kReceiveBytes = 16 << 10;
constexpr auto kSlice = std::chrono::milliseconds(200);
constexpr auto kLinger = std::chrono::milliseconds(500);

int poll_once(socket_t socket, short events, std::chrono::milliseconds timeout, short& seen) {
  pollfd entry{.fd = socket, .events = events, .revents = 0};
  const int result = poll(&entry, 1, static_cast<int>(std::max<int64_t>(timeout.count(), 0)));
  seen = entry.revents;
  return result < 0 && errno == EINTR ? 0 : result;
}

template <class Clock>
std::chrono::milliseconds until(std::chrono::time_point<Clock> deadline) {
  return std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
}

void name_of(const sockaddr_storage& address, socklen_t length, std::string& ip, int& port) {
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> service{};
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, host.data(), host.size(), service.data(),
                  service.size(), NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return;
  ip = host.data();
  port = std::atoi(service.data());
}

}  // namespace

bool ConnectionStream::wait_readable(Clock::time_point deadline) const {
  short seen = 0;
  while (true) {
    const auto left = until(deadline);
    if (left.count() <= 0) return false;
    const int result = poll_once(socket_, POLLIN, left, seen);
    if (result != 0) return result > 0;
  }
}

ssize_t ConnectionStream::receive() {
  buffer_.erase(0, read_);
  read_ = 0;
  const size_t before = buffer_.size();
  buffer_.resize(before + kReceiveBytes);
  ssize_t count = 0;
  do count = recv(socket_, buffer_.data() + before, kReceiveBytes, 0);
  while (count < 0 && errno == EINTR);
  buffer_.resize(before + static_cast<size_t>(std::max<ssize_t>(count, 0)));
  return count;
}

ConnectionStream::Head ConnectionStream::await_head(const std::atomic<bool>& stopping) {
  const Clock::time_point idle_end = Clock::now() + options_.idle_timeout;
  while (buffer_.size() == read_) {
    if (stopping || Clock::now() >= idle_end) return Head::kClosed;
    if (!wait_readable(std::min(idle_end, Clock::now() + kSlice))) continue;
    if (receive() <= 0) return Head::kClosed;
  }
  deadline_ = Clock::now() + options_.head_timeout;
  while (true) {
    const std::string_view received = std::string_view(buffer_).substr(read_);
    const size_t end = received.find("\r\n\r\n");
    if (std::min(end, received.size()) > options_.max_head_bytes) return Head::kTooLong;
    if (end != std::string_view::npos) break;
    if (!wait_readable(deadline_)) return Head::kLate;
    if (receive() <= 0) return Head::kClosed;
  }
  deadline_ = Clock::now() + options_.body_timeout;
  return Head::kReady;
}

bool ConnectionStream::peer_gone() const {
  short seen = 0;
  return poll_once(socket_, POLLRDHUP, {}, seen) > 0 && (seen & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0;
}

void ConnectionStream::close_gently() {
  shutdown(socket_, SHUT_WR);
  // Unread bytes at close would reset the connection and could take the response with them.
  const Clock::time_point end = Clock::now() + kLinger;
  while (wait_readable(end)) {
    buffer_.clear();
    read_ = 0;
    if (receive() <= 0) break;
  }
  close(socket_);
}

bool ConnectionStream::is_readable() const {
  short seen = 0;
  return buffer_.size() > read_ || poll_once(socket_, POLLIN, {}, seen) > 0;
}

bool ConnectionStream::is_writable() const { return !peer_gone(); }

ssize_t ConnectionStream::read(char* data, size_t size) {
  if (buffer_.size() == read_) {
    if (!wait_readable(deadline_)) return -1;
    if (const ssize_t count = receive(); count <= 0) return count;
  }
  const size_t count = std::min(size, buffer_.size() - read_);
  std::copy_n(buffer_.data() + read_, count, data);
  read_ += count;
  return static_cast<ssize_t>(count);
}

ssize_t ConnectionStream::write(const char* data, size_t size) {
  const Clock::time_point end = Clock::now() + options_.write_timeout;
  size_t sent = 0;
  while (sent < size) {
    const ssize_t count = send(socket_, data + sent, size - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count > 0) {
      sent += static_cast<size_t>(count);
      continue;
    }
    if (count < 0 && errno != EAGAIN && errno != EINTR) return -1;
    short seen = 0;
    if (until(end).count() <= 0) return -1;
    poll_once(socket_, POLLOUT, until(end), seen);
  }
  return static_cast<ssize_t>(size);
}

void ConnectionStream::get_remote_ip_and_port(std::string& ip, int& port) const {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  if (getpeername(socket_, reinterpret_cast<sockaddr*>(&address), &length) == 0) name_of(address, length, ip, port);
}

void ConnectionStream::get_local_ip_and_port(std::string& ip, int& port) const {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  if (getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &length) == 0) name_of(address, length, ip, port);
}

}  // namespace kvant::server
