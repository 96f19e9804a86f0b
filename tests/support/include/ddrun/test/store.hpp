#pragma once

#include <memory>

#include "ddrun/store/tcp_client.hpp"
#include "ddrun/store/tcp_server.hpp"
#include "ddrun/test/catch.hpp"
#include "ddrun/test/soon.hpp"

/// A store on the loopback, for tests that include this header and depend on the module `store`.
namespace ddrun::test {

inline std::unique_ptr<store::TcpServer> started(const store::TcpServerOptions& options = {}) {
  auto server = store::TcpServer::start(options);
  if (!server) FAIL(server.error().message);
  return std::move(*server);
}

inline std::unique_ptr<store::TcpClient> connected(std::uint16_t port) {
  auto client = store::TcpClient::connect("127.0.0.1", port, soon());
  if (!client) FAIL(client.error().message);
  return std::move(*client);
}

}  // namespace ddrun::test
