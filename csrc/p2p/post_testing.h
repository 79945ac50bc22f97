// Ranks whose messages are moved by a Post each, over channels that put off what they can.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "life/lifelines_testing.h"
#include "p2p/couriers_testing.h"
#include "p2p/post.h"

namespace ringcoll::testing {

/// Ranks of one group, each with what messages need.
class Office {
 public:
  explicit Office(Rank size, const Behaviour& behaviour, double timeout_s = 20, bool yields = false)
      : world(size, behaviour, 7), nodes(mesh(size)) {
    for (Rank rank = 0; rank < size; rank++) {
      health.push_back(std::make_unique<Health>(
          *nodes[rank]->lines,
          Health::Options{.group = 1,
                          .members = all_ranks(size),
                          .on_poison = [this, rank] { world.channels(rank).wake(); },
                          .describe =
                              [this](Rank named) {
                                if (on_describe) on_describe();
                                return describe(named);
                              }}));
      posts.push_back(std::make_unique<Post>(
          [this, rank]() -> MessageChannels& { return world.channels(rank); },
          Post::Options{.rank = rank,
                        .size = size,
                        .health = *health[rank],
                        .timeout_s = timeout_s,
                        .yields = yields,
                        .describe = describe,
                        .limits = kSmall}));
    }
  }
  ~Office() {
    for (auto& post : posts) post->close();
  }
  Post& operator[](Rank rank) { return *posts[rank]; }
  /// As a rank does that leaves in good order.
  void leave(Rank rank) {
    posts[rank]->close();
    health[rank]->leave();
  }

  /// Called when somebody is blamed. Set before anybody can be.
  std::function<void()> on_describe;
  FakeWorld world;
  std::vector<std::unique_ptr<Node>> nodes;
  std::vector<std::unique_ptr<Health>> health;
  std::vector<std::unique_ptr<Post>> posts;
};

inline Transfer send_of(const std::string& text, Rank to, int32_t tag, double timeout_s = 0) {
  Transfer send;
  send.peer = to;
  send.tag = tag;
  send.data = reinterpret_cast<std::byte*>(const_cast<char*>(text.data()));
  send.bytes = text.size();
  send.timeout_s = timeout_s;
  return send;
}

inline Transfer receive_of(std::string& room, Rank from, int32_t tag, double timeout_s = 0) {
  Transfer receive = send_of(room, from, tag, timeout_s);
  receive.receives = true;
  return receive;
}

inline void send(Post& post, const std::string& text, Rank to, int32_t tag) {
  Transfer transfer = send_of(text, to, tag);
  post.run(transfer);
}

inline std::string receive(Post& post, Rank from, int32_t tag, size_t room = 2000) {
  std::string text(room, '-');
  Transfer transfer = receive_of(text, from, tag);
  post.run(transfer);
  text.resize(transfer.received.bytes);
  return text;
}

inline std::string text_of(size_t bytes, int seed) {
  std::string text(bytes, '\0');
  for (size_t i = 0; i < bytes; i++) text[i] = static_cast<char>('a' + (seed * 31 + i * 7) % 26);
  return text;
}

}  // namespace ringcoll::testing
