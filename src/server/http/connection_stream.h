#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <string>

#include <httplib.h>

#include "server/http/http_server.h"

namespace kvant::server {

/// One connection as the HTTP library reads it. It adds what the library does not have: the head of a request as a
/// whole within a time and a size, one time limit for a body, and the news that the client is gone.
class ConnectionStream : public httplib::Stream {
 public:
  ConnectionStream(socket_t socket, const HttpOptions& options) : socket_(socket), options_(options) {}

  enum class Head : unsigned char {
    kReady,   ///< A whole head has been received.
    kClosed,  ///< No further request will come.
    kLate,    ///< It took too long.
    kTooLong,
  };
  /// Waits for the next request. Gives up early when `stopping` turns true and no byte of it has come.
  Head await_head(const std::atomic<bool>& stopping);

  /// The client has closed its side, or the connection is broken.
  bool peer_gone() const;
  /// Ends the connection so that what was sent last arrives even if the client is still sending.
  void close_gently();

  bool is_readable() const override;
  bool is_writable() const override;
  ssize_t read(char* data, size_t size) override;
  ssize_t write(const char* data, size_t size) override;
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  socket_t socket() const override { return socket_; }

 private:
  using Clock = std::chrono::steady_clock;

  bool wait_readable(Clock::time_point deadline) const;
  /// Bytes appended to the buffer; 0 or less at the end of the stream or on an error.
  ssize_t receive();

  socket_t socket_;
  const HttpOptions& options_;
  std::string buffer_;  ///< Received, not yet read.
  size_t read_ = 0;     ///< Of the buffer.
  Clock::time_point deadline_;
};

}  // namespace kvant::server
