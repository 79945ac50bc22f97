// Meshes whose ranks are threads of one process, for tests.
#pragma once

#include <fmt/core.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "bootstrap/exchange.h"
#include "mesh/mesh.h"
#include "store/store.h"
#include "transport/knobs.h"

namespace ringcoll::testing {

/// The defaults but for the transport, on loopback, with a small arena.
inline Config config_of(const std::string& transport) {
  Config config = read_config([](const char*) -> const char* { return nullptr; });
  config.transport = transport;
  config.interface = "lo";
  config.timeout_s = 60;
  config.arena_bytes = 1 << 20;
  return config;
}

using Wrap = std::function<std::unique_ptr<Exchange>(std::unique_ptr<Exchange>)>;

using Be = std::function<void(const Config&, Exchange&)>;

/// Has a thread for each of `configs` that is a rank, with an exchange among them that may be
/// wrapped. What they threw, as "code text"; "" where nothing.
inline std::vector<std::string> run_exchanges(const std::vector<Config>& configs, const Be& be,
                                              const Wrap& wrap = {}) {
  static std::atomic<int> worlds{0};
  std::string url = "local://ranks" + std::to_string(worlds++);
  auto size = static_cast<Rank>(configs.size());
  std::vector<std::string> errors(configs.size());
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < size; rank++)
    threads.emplace_back([&, rank] {
      try {
        Deadline deadline(seconds(60));
        auto exchange =
            make_store_exchange(open_store(url, "", rank, size, deadline), "w", rank, size);
        if (wrap) exchange = wrap(std::move(exchange));
        be(configs[rank], *exchange);
      } catch (const Error& error) {
        errors[rank] = fmt::format("{} {}", name_of(error.code()), error.what());
      }
    });
  for (std::thread& thread : threads) thread.join();
  return errors;
}

/// The same, with a mesh of each rank.
inline std::vector<std::string> run_ranks(const std::vector<Config>& configs,
                                          const std::function<void(Mesh&)>& body = {},
                                          const Wrap& wrap = {}) {
  auto be = [&](const Config& config, Exchange& exchange) {
    Mesh mesh(config, exchange);
    if (body) body(mesh);
  };
  return run_exchanges(configs, be, wrap);
}

}  // namespace ringcoll::testing
