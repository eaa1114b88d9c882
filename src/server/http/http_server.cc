#include "server/http/http_server.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <exception>
#include <utility>

#include <fmt/format.h>
#include <httplib.h>

#include "server/http/connection_stream.h"
#include "server/http/connection_threads.h"

namespace kvant::server {
namespace {

constexpr int kBacklog = 1024;

// What a handler may ask of its connection. It travels in `progress`, a field that only clients of the library use.
constexpr uint64_t kAskWhetherOpen = 0;
constexpr uint64_t kCloseAfterwards = 1;

/// cpp-httplib with our connections.
class LibraryServer : public httplib::Server {
 public:
  LibraryServer(const HttpOptions& options, const HttpService& service) : options_(options), service_(service) {}

  /// The library listens with a backlog of 5, too short for a burst of clients.
  void lengthen_backlog() { ::listen(svr_sock_, kBacklog); }
  int bound_port() const {
    sockaddr_storage address{};
    socklen_t length = sizeof(address);
    if (getsockname(svr_sock_, reinterpret_cast<sockaddr*>(&address), &length) != 0) return -1;
    const auto port = address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                                    : reinterpret_cast<const sockaddr_in&>(address).sin_port;
    return ntohs(port);
  }
  void note_stop() { stopping_ = true; }

 private:
  bool process_and_close_socket(socket_t socket) override {
    ConnectionStream stream(socket, options_);
    try {
      while (serve_one(stream)) {
      }
    } catch (const std::exception&) {
      // Out of memory, for one: this connection ends, the process goes on.
    }
    stream.close_gently();
    return true;
  }

  /// False when the connection has to end.
  bool serve_one(ConnectionStream& stream) {
    switch (stream.await_head(stopping_)) {
      case ConnectionStream::Head::kReady: break;
      case ConnectionStream::Head::kClosed: return false;
      case ConnectionStream::Head::kLate: refuse(stream, 408, "the request did not arrive in time"); return false;
      case ConnectionStream::Head::kTooLong:
        refuse(stream, 431, fmt::format("the head of the request is longer than {} bytes", options_.max_head_bytes));
        return false;
    }
    bool closing = false;
    // Until the head has been understood nobody knows where the next request begins.
    bool unread_body = true;
    const bool served = process_request(stream, false, closing, [&](httplib::Request& request) {
      // A body that no handler reads would be taken for the next request.
      const bool has_body = request.has_header("Content-Length") || request.has_header("Transfer-Encoding");
      unread_body = has_body && (request.method != "POST" || find_route(request) == nullptr);
      request.ranges.clear();  // Answers are not files.
      request.progress = [&](uint64_t wish, uint64_t) {
        unread_body = unread_body || wish == kCloseAfterwards;
        return !stream.peer_gone();
      };
    });
    return served && !closing && !unread_body && !stopping_;
  }

  const HttpRoute* find_route(const httplib::Request& request) const {
    const auto found = std::find_if(service_.routes.begin(), service_.routes.end(), [&](const HttpRoute& route) {
      return route.path == request.path && route.method == request.method;
    });
    return found == service_.routes.end() ? nullptr : &*found;
  }

  void refuse(ConnectionStream& stream, int status, const std::string& message) const {
    const HttpResponse response = service_.error(status, message);
    const std::string text =
        fmt::format("HTTP/1.1 {} Refused\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}",
                    status, response.content_type, response.body.size(), response.body);
    stream.write(text.data(), text.size());
  }

  const HttpOptions& options_;
  const HttpService& service_;
  std::atomic<bool> stopping_ = false;
};

HttpRequest to_request(const httplib::Request& in) {
  return {.method = in.method == "HEAD" ? "GET" : in.method,
          .path = in.path,
          .authorization = in.get_header_value("Authorization"),
          .origin = in.get_header_value("Origin"),
          .host = in.get_header_value("Host"),
          .body = {},
          .client_gone = [&in] { return in.progress && !in.progress(kAskWhetherOpen, 0); }};
}

void set_response(HttpResponse response, httplib::Response& out) {
  out.status = response.status;
  for (const auto& [name, value] : response.headers) out.set_header(name, value);
  if (!response.stream) {
    out.set_content(response.body, response.content_type);
    return;
  }
  out.set_chunked_content_provider(response.content_type,
                                   [stream = std::move(response.stream)](size_t, httplib::DataSink& sink) {
                                     bool open = true;
                                     stream([&](std::string_view part) {
                                       open = open && sink.write(part.data(), part.size());
                                       return open;
                                     });
                                     if (open) sink.done();
                                     return open;
                                   });
}

class LibraryHttpServer : public HttpServer {
 public:
  LibraryHttpServer(const HttpOptions& options, HttpService service)
      : options_(options), service_(std::move(service)), server_(options_, service_) {}

  Status bind() {
    add_routes();
    server_.new_task_queue = [this] { return new ConnectionThreads(options_.max_connections); };
    httplib::Headers headers;
    for (const auto& [name, value] : service_.headers) headers.emplace(name, value);
    server_.set_default_headers(std::move(headers));
    server_.set_tcp_nodelay(true);
    server_.set_payload_max_length(options_.max_body_bytes);
    server_.set_keep_alive_timeout(options_.idle_timeout.count() / 1000);
    server_.set_keep_alive_max_count(1'000'000);
    // The library's default would let a second server take the same port.
    server_.set_socket_options([](socket_t socket) {
      const int on = 1;
      setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    });
    errno = 0;
    const bool bound = options_.port == 0 ? server_.bind_to_any_port(options_.host) > 0
                                          : server_.bind_to_port(options_.host, options_.port);
    if (!bound) {
      return {StatusCode::kInvalidArgument,
              fmt::format("cannot listen on {}:{}{}; choose another --host or --port", options_.host, options_.port,
                          errno != 0 ? fmt::format(" ({})", std::strerror(errno)) : std::string())};
    }
    server_.lengthen_backlog();
    return {};
  }

  int port() const override { return server_.bound_port(); }
  Status run() override {
    if (!server_.listen_after_bind()) return {StatusCode::kInternal, "the listening socket failed"};
    return {};
  }
  void stop() override {
    server_.note_stop();
    server_.stop();
  }

 private:
  void add_routes() {
    server_.set_pre_routing_handler([this](const httplib::Request& in, httplib::Response& out) {
      return refused_early(in, out) ? httplib::Server::HandlerResponse::Handled
                                    : httplib::Server::HandlerResponse::Unhandled;
    });
    for (const HttpRoute& route : service_.routes) {
      if (route.method == "POST") {
        server_.Post(route.path,
                     [this, &route](const httplib::Request& in, httplib::Response& out,
                                    const httplib::ContentReader& reader) { post(route, in, out, reader); });
      } else {
        server_.Get(route.path, [&route](const httplib::Request& in, httplib::Response& out) {
          set_response(route.handler(to_request(in)), out);
        });
      }
    }
    const httplib::Server::Handler add_body = [this](const httplib::Request&, httplib::Response& out) {
      // What the library itself refuses has a status and no body.
      if (out.body.empty() && !out.content_provider_) set_response(service_.error(out.status, "bad request"), out);
    };
    server_.set_error_handler(add_body);
    server_.set_exception_handler([this](const httplib::Request&, httplib::Response& out, std::exception_ptr error) {
      std::string what = "unknown exception";
      try {
        std::rethrow_exception(std::move(error));
      } catch (const std::exception& exception) {
        what = exception.what();
      } catch (...) {  // NOLINT(bugprone-empty-catch): named above
      }
      set_response(service_.error(500, what), out);
    });
  }

  bool refused_early(const httplib::Request& in, httplib::Response& out) const {
    HttpResponse response;
    if (service_.filter && service_.filter(to_request(in), response)) {
      set_response(std::move(response), out);
      return true;
    }
    const std::string method = in.method == "HEAD" ? "GET" : in.method;
    const HttpRoute* same_path = nullptr;
    for (const HttpRoute& route : service_.routes) {
      if (route.path != in.path) continue;
      same_path = &route;
      if (route.method != method) continue;
      if (!in.is_multipart_form_data()) return false;
      set_response(service_.error(415, "multipart bodies are not accepted; send JSON"), out);
      return true;
    }
    if (same_path == nullptr) {
      set_response(service_.error(404, fmt::format("there is no '{}' here", in.path)), out);
    } else {
      set_response(service_.error(405, fmt::format("'{}' takes {}, not {}", in.path, same_path->method, in.method)),
                   out);
      out.set_header("Allow", same_path->method);
    }
    return true;
  }

  void post(const HttpRoute& route, const httplib::Request& in, httplib::Response& out,
            const httplib::ContentReader& reader) const {
    HttpRequest request = to_request(in);
    bool too_long = false;
    // Counted here too: the library's limit does not see chunked and compressed bodies.
    const bool complete = reader([&](const char* data, size_t size) {
      too_long = request.body.size() + size > options_.max_body_bytes;
      if (!too_long) request.body.append(data, size);
      return !too_long;
    });
    if (!complete && in.progress) in.progress(kCloseAfterwards, 0);
    if (too_long || out.status == 413) {
      set_response(service_.error(413, fmt::format("the body is longer than {} bytes", options_.max_body_bytes)), out);
    } else if (!complete) {
      set_response(service_.error(400, "the body did not arrive as announced"), out);
    } else {
      set_response(route.handler(request), out);
    }
  }

  HttpOptions options_;
  HttpService service_;
  LibraryServer server_;
};

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::bind(const HttpOptions& options, HttpService service) {
  auto server = std::make_unique<LibraryHttpServer>(options, std::move(service));
  KVANT_FAIL_IF_ERROR(server->bind());
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace kvant::server
