#include "mesh/group/group_messages.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <mutex>
#include <utility>

#include "base/log.h"
#include "mesh/group/group.h"

namespace ringcoll {
namespace {

// How long a rank that leaves moves its queued sends.
constexpr Duration kLongestFlush = std::chrono::seconds(5);
// How often it looks whether peers have left meanwhile.
constexpr Duration kLook = std::chrono::milliseconds(1);

}  // namespace

// Shared with the connector, which may still notify when the channels have been closed.
struct GroupMessages::News {
  std::atomic<bool> any{true};  // peers may have called before
  std::mutex mutex;
  WaitSet* set = nullptr;  // null: closed

  void tell() {
    std::lock_guard lock(mutex);
    any = true;
    if (set) set->wake();
  }
};

GroupMessages::GroupMessages(Group& group, std::span<std::byte> staging)
    : group_(group),
      staging_(staging),
      parts_(group.mesh(), part_of_mesh()),
      set_(group.mesh().bells(), group.mesh().topology().crowded(group.mesh().rank())),
      news_(std::make_shared<News>()) {}

// The extent is the memory that messages are sent from. If a device registers it, it is taken here.
TransportPart GroupMessages::part_of_mesh() {
  Extents& extents = group_.mesh().message_extents();
  if (staging_.empty() && group_.registers_extents()) take_staging();
  return {.rank = group_.rank(),
          .members = group_.members(),
          .extent = staging_.empty() ? extents.region() : staging_,
          .has_streams = false};
}

void GroupMessages::take_staging() {
  own_staging_ = std::make_unique<Staging>(group_.mesh().message_extents());
  staging_ = own_staging_->memory;
}

GroupMessages::~GroupMessages() {
  close();
  if (own_staging_) parts_.add_readers(&own_staging_->readers);
}

void GroupMessages::begin() {
  near_closed_.clear();  // an earlier begin() may have failed
  for (Rank peer = 0; peer < size(); peer++) {
    auto [row, part] = parts_.links()[peer];
    if (!row) continue;
    set_.add(*part);
    if (row->link != LinkClass::kNetwork) near_closed_.push_back(peer);
    std::string why = parts_.reach(peer, addresses_.at(peer));
    check(why.empty(), Code::kTransport, "{} is not reached by {} for messages: {}",
          group_.topology().describe(peer), row->name, why);
  }
  if (staging_.empty()) take_staging();
  news_->set = &set_;
  peers_.resize(size());
  group_.mesh().connector().listen_for_messages(group_.number(), [news = news_] { news->tell(); });
}

Rank GroupMessages::rank() const { return group_.rank(); }
Rank GroupMessages::size() const { return group_.size(); }
uint64_t GroupMessages::inline_bytes() const {
  return static_cast<uint64_t>(group_.config().inline_bytes);
}
uint64_t GroupMessages::copies_up_to(Rank peer) const {
  return parts_.links()[peer].transport->copies_up_to();
}
bool GroupMessages::sends_from_anywhere(Rank peer) const {
  return parts_.links()[peer].transport->sends_from_anywhere();
}

// Loans are counted over all transports, so one of them may keep more than it has to.
uint64_t GroupMessages::lend(Rank peer, Loan loan, uint64_t oldest) {
  const Parts::Link& link = parts_.links()[peer];
  if (link.row->link != LinkClass::kNetwork) return 0;
  size_t in_flight = oldest > 0 ? lent_ - oldest + 1 : 0;
  link.transport->lend(std::span(&loan, 1), in_flight);
  lent_++;
  return loan.granted ? lent_ : 0;
}

void GroupMessages::revoke() noexcept {
  for (Transport* part : set_.parts()) part->revoke();
}

// ---- Opening ----

bool GroupMessages::try_open(Rank rank) {
  group_.health().throw_if_poisoned();
  Peer& peer = peers_[rank];
  if (peer.why) throw Error(*peer.why);
  if (peer.channel) return true;
  if (!peer.opening) {
    check(!group_.health().gone(rank), Code::kPeerLost, "{} has left the communicator",
          group_.topology().describe(rank));
    begin_opening(rank);
  }
  return advance(rank);
}

void GroupMessages::begin_opening(Rank rank) {
  Opening::Of messages{group_.mesh(),   group_.number(),
                       group_.health(), Connector::Ends::kEither,
                       kMessageChannel, [news = news_] { news->tell(); }};
  peers_[rank].opening = std::make_unique<Opening>(
      messages, Opening::Peer{rank, group_.members()[rank]}, parts_.links()[rank].transport,
      Deadline(seconds(group_.config().timeout_s)));
  std::erase(near_closed_, rank);
  opening_.push_back(rank);
}

// Advances as far as possible. Returns true if the channel is open.
bool GroupMessages::advance(Rank rank) {
  Peer& peer = peers_[rank];
  try {
    auto state = peer.opening->advance();
    if (state < Opening::State::kEstablishing) return false;  // the connector has the deadline
    check(state == Opening::State::kOpen || !peer.opening->is_late(), Code::kTimeout,
          "opening a channel for messages: {} does not answer", group_.topology().describe(rank));
    if (state != Opening::State::kOpen) return false;
    peer.channel = peer.opening->take_link();
    open_.push_back(rank);
  } catch (const Error& error) {
    peer.why = Error(error.code(), error.what(), rank);
  }
  peer.opening.reset();
  std::erase(opening_, rank);
  if (peer.why) throw Error(*peer.why);
  return true;
}

// Errors are kept for try_open() of that channel.
bool GroupMessages::advance_all() {
  bool moved = false;
  for (size_t i = 0; i < opening_.size();) {
    Rank rank = opening_[i];
    auto before = peers_[rank].opening->state();
    try {
      advance(rank);
    } catch (const Error& error) {
      log_debug("{}", error.what());
    }
    bool is_over = !peers_[rank].opening;
    moved |= is_over || peers_[rank].opening->state() != before;
    if (!is_over) i++;
  }
  return moved;
}

// Opens the channels that peers have opened.
bool GroupMessages::answer() {
  std::vector<Rank> ranks;
  for (Rank rank : near_closed_)
    if (parts_.links()[rank].transport->connected_by(rank)) ranks.push_back(rank);
  if (news_->any.load(std::memory_order_relaxed)) {
    news_->any.exchange(false);  // before the peers are read
    for (Rank member : group_.mesh().connector().peers_with_messages(group_.number()))
      ranks.push_back(static_cast<Rank>(std::ranges::find(group_.members(), member) -
                                        group_.members().begin()));
  }
  std::erase_if(ranks, [this](Rank rank) {
    return rank == size() || peers_[rank].opening || peers_[rank].channel || peers_[rank].why;
  });
  for (Rank rank : ranks) begin_opening(rank);
  return !ranks.empty();
}

bool GroupMessages::progress() {
  group_.health().throw_if_poisoned();
  bool moved = answer();
  if (!opening_.empty()) moved |= advance_all();
  for (Rank rank : open_) {
    Endpoint* channel = peers_[rank].channel.get();
    if (channel && channel->busy()) moved |= channel->progress();
  }
  return moved;
}

void GroupMessages::drop(Rank rank) {
  Peer& peer = peers_[rank];
  peer.why = Error(Code::kPeerLost,
                   fmt::format("{}: its channel for messages has failed, or it has left",
                               group_.topology().describe(rank)),
                   rank);
  peer.channel.reset();
}

// ---- Waiting ----

// True if the wait is to end for another reason than a link that may be ready.
bool GroupMessages::is_roused() const {
  return news_->any.load(std::memory_order_relaxed) || set_.woken() || group_.health().poisoned() ||
         std::ranges::any_of(near_closed_, [this](Rank rank) {
           return parts_.links()[rank].transport->connected_by(rank);
         });
}

void GroupMessages::wait(Duration limit, uint64_t bytes) {
  Deadline over(limit);
  Duration spinning = std::min(group_.channels().spin(bytes), over.left());
  auto ready = [this] { return set_.may_be_ready() || is_roused(); };
  if (set_.spin(spinning, ready, [] {})) return set_.end_wait();
  set_.sleep(std::min(over.left(), WaitSet::kLongestSleep), [this] { return is_roused(); });
}

// ---- Leaving ----

void GroupMessages::finish() {
  const Health& health = group_.health();
  auto each = [&](Duration limit, const std::function<bool(Endpoint&)>& is_done) {
    Deadline deadline(limit);
    for (bool all = false; !all && !health.poisoned() && !deadline.passed();) {
      all = true;
      for (Rank rank : open_) {
        Endpoint* channel = peers_[rank].channel.get();
        if (!channel || health.gone(rank)) continue;
        try {
          all &= is_done(*channel);
        } catch (const Error& error) {
          log_debug("leaving: {}", error.what());
          drop(rank);
        }
      }
      if (!all) set_.sleep(kLook);
    }
  };
  each(std::min<Duration>(seconds(group_.config().timeout_s), kLongestFlush),
       [](Endpoint& channel) {
         channel.progress();
         return !channel.busy();
       });
  each(kLongestDrain, [](Endpoint& channel) { return channel.drained(); });
}

void GroupMessages::close() {
  if (peers_.empty()) return;  // begin() was not called
  group_.mesh().connector().end_messages(group_.number());
  {
    std::lock_guard lock(news_->mutex);
    news_->set = nullptr;
  }
  peers_.clear();
}

}  // namespace ringcoll
