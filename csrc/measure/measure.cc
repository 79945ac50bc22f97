#include "measure/measure.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "measure/pairs.h"

namespace ringcoll {
namespace {

using std::chrono::microseconds;

// Stands in the place of the collective, so that a call never mistakes these messages for its own.
constexpr uint8_t kMeasuring = 0xff;
enum class Phase : uint8_t { kRound, kPing, kPong, kTurn, kStream, kVerdict };

/// The envelope of a measuring message.
struct Label {
  uint64_t number = 0;
  int64_t value = 0;
  uint8_t measuring = kMeasuring;
  uint8_t phase = 0;
  uint8_t level = 0;
  uint8_t reserved = 0;
  int32_t left = 0;
};

// How many rounds ranks exchange messages in step. The first rounds do not count: they touch each
// message slot of a shared-memory link, whose new pages the kernel clears first.
struct Rounds {
  int uncounted;
  int counted;
};
constexpr Rounds kSharedMemory{40, 64}, kNetwork{2, 8}, kFewestRounds{2, 8};

// How long hosts ping each other.
constexpr Duration kPings = microseconds(1000);

// How long a stream lasts. Between hosts, TCP opens its window and the bucket of a shaper (about
// 256 KB at 1 Gb/s) runs empty in the first half.
constexpr Duration kStreamInsideHost = microseconds(400);
constexpr Duration kStreamOfNetworkInsideHost = microseconds(2000);
constexpr Duration kStreamBetweenHosts = microseconds(8000);
// For ranks that share cores inside a host: longer than the time slice of the kernel (3 ms or
// less), so that the result does not depend on which rank was stopped.
constexpr Duration kStreamOnSharedCores = microseconds(4000);
// A stream over a long line lasts this many round trips, but at most this many times longer.
constexpr int kRoundTrips = 25;
constexpr int kLongestStream = 3;

// A pair alone between hosts tries again if a rank was stopped meanwhile. The last try counts in
// any case: where stops come every few milliseconds (a guest without a processor of its own), calls
// will see that rate. Inside a host, streams are so short that one may be slow as a whole (an idle
// processor, another load). Nothing makes a stream faster than the link, so the best one counts.
constexpr int kTries = 3;

constexpr size_t kWarmUpPings = 2, kFewestPings = 5, kMostPings = 64;

// Messages of a stream in flight in each direction. Each message is sent from the slot into which
// an earlier one was received. A slot is free when the send from it is complete.
constexpr uint64_t kAhead = 4;
constexpr uint64_t kSlots = 3 * kAhead;
constexpr uint64_t kLeastMessageBytes = 4 << 10, kMostMessageBytes = 256 << 10;
// A message has this share of the bytes received so far. So everything in flight takes no longer
// than the stream has lasted, however slow the link is. A smaller share would grow too slowly where
// ranks share cores and a stream has only some ten round trips.
constexpr uint64_t kGrowth = kAhead;
// Messages over shared memory have a fixed length, in memory that was touched before. Calls reuse
// their memory, too, and a new page costs more than copying its bytes.
constexpr uint64_t kSharedMemoryMessageBytes = 64 << 10;

double microseconds_of(Duration time) { return to_seconds(time) * 1e6; }

Duration median(std::vector<Duration> times) {
  auto middle = times.begin() + static_cast<ptrdiff_t>(times.size() / 2);
  std::ranges::nth_element(times, middle);
  return *middle;
}

// The mean without the longest eighth, in which a rank was stopped. Ranks that share cores run in
// turn: a round whose messages are all there is short, and the next one is long.
Duration usual(std::vector<Duration> times) {
  std::ranges::sort(times);
  times.resize(times.size() - times.size() / 8);
  return std::accumulate(times.begin(), times.end(), Duration::zero()) / times.size();
}

/// Counts what a stream receives in the second half of its time.
class Window {
 public:
  Window(Clock::time_point begin, Duration length)
      : grown_(begin + length / 4), from_(begin + length / 2), to_(begin + length), last_(from_) {}

  /// True while messages may grow. They stop a quarter before counting begins, so that every slot
  /// is written once at full length and has its pages.
  bool growing(Clock::time_point now) const { return now < grown_; }
  bool over(Clock::time_point now) const { return now >= to_; }
  void add(Clock::time_point now, uint64_t bytes) {
    if (now < from_ || now > to_) return;
    if (bytes_ == 0) first_ = now, first_bytes_ = bytes;
    bytes_ += bytes;
    longest_gap_ = std::max(longest_gap_, now - last_);
    last_ = now;
  }
  void end(Clock::time_point now) { to_ = std::clamp(now, from_, to_); }
  /// The rate from the first message to the last. It is 0 if nothing came for half of the time or
  /// more, since a rank was stopped. With `may_stop` (ranks that share CPUs are always stopped) the
  /// whole time counts.
  double bytes_per_us(Duration least, bool may_stop) const {
    Duration length = to_ - from_;
    if (length < least) return 0;
    if (may_stop) return static_cast<double>(bytes_) / microseconds_of(length);
    if (std::max(longest_gap_, to_ - last_) > length / 2 || last_ <= first_) return 0;
    return static_cast<double>(bytes_ - first_bytes_) / microseconds_of(last_ - first_);
  }

 private:
  Clock::time_point grown_, from_, to_, first_, last_;
  Duration longest_gap_{};
  uint64_t bytes_ = 0, first_bytes_ = 0;
};

class Meter {
 public:
  Meter(const Topology& topology, Rank self, int share, MeasuredLinks& links)
      : topology_(topology),
        self_(self),
        share_(share),
        links_(links),
        memory_(links.memory()),
        slot_bytes_(std::min<uint64_t>(kMostMessageBytes, memory_.size() / kSlots / 4096 * 4096)) {}

  LevelSamples measure(int level);
  /// Waits until all sends are complete.
  void finish();

 private:
  struct Message {
    Phase phase;
    int64_t value = 0;  // last ping: the round trip in ns; verdict: 1 = try again
    int32_t left = 0;   // the last messages of a stream count down to 1; else 0
    uint64_t bytes = 0;
  };
  /// Both directions of a stream so far.
  struct Progress {
    uint64_t sent = 0, received = 0, received_bytes = 0;
    uint64_t message_bytes = kLeastMessageBytes;
    uint64_t before = 0;  // messages sent on this link before the stream
  };

  LinkSample measure(const Pairing& pairing);
  Duration stream_length(Rank peer) const;
  double exchange_in_step(const std::vector<Rank>& row);
  void exchange(Rank peer);
  double ping(Rank peer, Duration limit);
  void answer_pings(Rank peer);
  bool is_inside_host() const { return level_ <= topology_.host_level(); }
  bool is_memory(Rank peer) const { return is_inside_host() && !links_.is_network(peer); }
  void touch_slots();
  double stream_alone(Rank peer, Duration limit);
  double best_of_streams(Rank peer, Duration limit);
  double stream(Rank peer, Duration limit, bool may_stop);
  void send_ahead(Rank peer, Progress* progress);
  void note_received(Rank peer, uint64_t bytes, bool grow, Progress* progress);
  void pass_turn(const Pairing& pairing, bool to_the_first);

  void send(Rank peer, const Message& message, const std::byte* data = nullptr);
  Message receive(Rank peer, Phase phase, std::byte* place, uint64_t capacity);
  Message receive_empty(Rank peer, Phase phase);
  void expect(Rank peer, std::byte* place, uint64_t capacity);
  void complete(Rank peer, uint64_t number);
  template <typename Ready>
  void wait(Rank peer, Ready&& ready);
  std::byte* slot(uint64_t number) { return memory_.data() + number % kSlots * slot_bytes_; }

  const Topology& topology_;
  const Rank self_;
  const int share_;
  MeasuredLinks& links_;
  const std::span<std::byte> memory_;
  const uint64_t slot_bytes_;
  int level_ = 0;
  double host_round_us_ = 0;       // of a round in step inside the host, if cores are shared
  Duration round_trip_{};          // to the partner on another host; the same on both sides
  std::map<Rank, uint64_t> sent_;  // messages, by peer
};

Duration Meter::stream_length(Rank peer) const {
  if (!is_inside_host()) return kStreamBetweenHosts;
  if (share_ > 1) return kStreamOnSharedCores;
  return links_.is_network(peer) ? kStreamOfNetworkInsideHost : kStreamInsideHost;
}

LevelSamples Meter::measure(int level) {
  level_ = level;
  LevelSamples samples;
  auto sections = sections_of(topology_, level);
  std::optional<double> in_step_us;
  if (is_in_step(topology_, level, share_)) in_step_us = exchange_in_step(row_of(sections, self_));
  for (const Pairing& pairing : pairings_of(sections, self_, level))
    samples[pairing.round] = measure(pairing);
  if (in_step_us) samples[0].latency_us = *in_step_us, samples[1].latency_us = 0;
  return samples;
}

LinkSample Meter::measure(const Pairing& pairing) {
  LinkSample sample;
  bool paired = pairing.partner != kNobody;
  Duration length = paired ? stream_length(pairing.partner) : Duration::zero();
  // A minimum of pings comes first in any case, since the length of a stream depends on the line.
  Duration pings = is_in_step(topology_, level_, share_) ? Duration::zero() : kPings;
  if (paired && !is_inside_host()) {
    if (self_ < pairing.partner)
      sample.latency_us = ping(pairing.partner, pings);
    else
      answer_pings(pairing.partner);
  }
  if (paired && is_memory(pairing.partner)) touch_slots();
  pass_turn(pairing, true);
  if (paired && pairing.alone)
    sample.lane_bytes_per_us = sample.rank_bytes_per_us = stream_alone(pairing.partner, length);
  pass_turn(pairing, false);
  int together = is_inside_host() ? 1 : share_;
  if (paired && pairing.several)
    sample.lane_bytes_per_us = stream(pairing.partner, length * together, share_ > 1);
  return sample;
}

// Passes a message along the chain: to its first rank when all are ready, or from it when it is
// done.
void Meter::pass_turn(const Pairing& pairing, bool to_the_first) {
  size_t at = std::ranges::find(pairing.chain, self_) - pairing.chain.begin();
  Rank from = at + 1 < pairing.chain.size() ? pairing.chain[at + 1] : kNobody;
  Rank to = at > 0 ? pairing.chain[at - 1] : kNobody;
  if (!to_the_first) std::swap(from, to);
  if (from != kNobody) receive_empty(from, Phase::kTurn);
  if (to != kNobody) send(to, {Phase::kTurn});
}

// The time of an exchange with one neighbour. All ranks of a row take part, each with one neighbour
// and then the other, so that no rank finishes before others begin. Otherwise pairs that share two
// cores would have them alone, one pair after the other. Between hosts rows would; there the ranks
// of a host first exchange messages in each round, and the time of that is subtracted.
double Meter::exchange_in_step(const std::vector<Rank>& row) {
  auto neighbours = neighbours_in(row, self_);
  std::vector<Rank> beside;
  if (!is_inside_host()) beside = neighbours_in(ranks_beside(topology_, self_), self_);
  bool network = !is_inside_host() || (!neighbours.empty() && links_.is_network(neighbours[0]));
  const Rounds& rounds = network ? kNetwork : kSharedMemory;
  int uncounted = std::max(rounds.uncounted / share_, kFewestRounds.uncounted);
  int counted = std::max(rounds.counted / share_, kFewestRounds.counted);
  std::vector<Duration> times;
  for (int round = 0; round < uncounted + counted; round++) {
    auto start = Clock::now();
    for (Rank peer : beside) exchange(peer);
    for (Rank peer : neighbours) exchange(peer);
    if (round >= uncounted) times.push_back(Clock::now() - start);
  }
  if (neighbours.empty()) return 0;
  // Ranks at the ends of the row have one neighbour, but wait for ranks that have two.
  double exchanges = row.size() > 2 ? 2 : 1;
  if (share_ == 1) return microseconds_of(median(std::move(times))) / exchanges;
  double whole = microseconds_of(usual(std::move(times)));
  if (is_inside_host())
    host_round_us_ = whole;
  else
    whole = std::max(whole - host_round_us_, whole / 2);
  return whole / exchanges;
}

void Meter::exchange(Rank peer) {
  expect(peer, nullptr, 0);
  send(peer, {Phase::kRound});
  receive(peer, Phase::kRound, nullptr, 0);
}

// Half the median of the round trips. The first pings only show that both ranks have come.
double Meter::ping(Rank peer, Duration limit) {
  std::vector<Duration> trips;
  Deadline over(limit);
  bool last = false;
  for (size_t i = 0; !last; i++) {
    if (i == kWarmUpPings) over = Deadline(limit);
    last = trips.size() >= kFewestPings && (trips.size() == kMostPings || over.passed());
    if (last) round_trip_ = std::max<Duration>(median(trips), std::chrono::nanoseconds(1));
    auto start = Clock::now();
    send(peer, {Phase::kPing, last ? std::chrono::nanoseconds(round_trip_).count() : 0});
    receive_empty(peer, Phase::kPong);
    if (i >= kWarmUpPings) trips.push_back(Clock::now() - start);
  }
  return microseconds_of(round_trip_) / 2;
}

void Meter::answer_pings(Rank peer) {
  int64_t round_trip_ns = 0;
  while (round_trip_ns <= 0) {
    round_trip_ns = receive_empty(peer, Phase::kPing).value;
    send(peer, {Phase::kPong});
  }
  round_trip_ = std::chrono::nanoseconds(round_trip_ns);
}

void Meter::touch_slots() {
  for (uint64_t n = 0; n < kSlots; n++)
    std::memset(slot(n), 0, std::min(kSharedMemoryMessageBytes, slot_bytes_));
}

double Meter::stream_alone(Rank peer, Duration limit) {
  if (is_inside_host() && share_ == 1) return best_of_streams(peer, limit);
  double rate = 0;
  bool again = true;
  for (int tries = 1; again; tries++) {
    rate = stream(peer, limit, is_inside_host() || tries == kTries);
    if (self_ < peer) {
      again = rate == 0 && tries < kTries;
      send(peer, {Phase::kVerdict, again});
    } else {
      again = receive_empty(peer, Phase::kVerdict).value != 0;
    }
  }
  return rate;
}

double Meter::best_of_streams(Rank peer, Duration limit) {
  double best = 0;
  for (int tries = 1; tries <= kTries; tries++)
    best = std::max(best, stream(peer, limit, tries == kTries && best == 0));
  return best;
}

// Streams in both directions at once. A rank sends what it received kAhead messages ago, as in a
// ring, so the rate includes reading and writing memory. The lower rank ends the stream by its
// clock. The last kAhead messages of each rank are empty and say so. Thus a rank that receives any
// other message knows that kAhead more follow, and where they go.
double Meter::stream(Rank peer, Duration limit, bool may_stop) {
  limit = std::clamp(round_trip_ * kRoundTrips, limit, limit * kLongestStream);
  Progress progress{.before = sent_[peer]};
  bool grows = !is_memory(peer);
  if (!grows) progress.message_bytes = std::min(kSharedMemoryMessageBytes, slot_bytes_);
  for (uint64_t n = 0; n < kAhead; n++) expect(peer, slot(n + kAhead), slot_bytes_);
  send_ahead(peer, &progress);
  std::optional<Window> window;  // from the first message on: the peer may come later
  bool ending = false;
  for (int32_t left = 0; left != 1;) {
    Message got = receive(peer, Phase::kStream, slot(progress.received + kAhead), slot_bytes_);
    auto now = Clock::now();
    left = got.left;
    if (!window) window.emplace(now, limit);
    if (left > 0) {
      window->end(now);
    } else {
      window->add(now, got.bytes);
      note_received(peer, got.bytes, grows && window->growing(now), &progress);
    }
    if (!ending && (left > 0 || (self_ < peer && window->over(now)))) {
      ending = true;
      for (auto last = static_cast<int32_t>(kAhead); last > 0; last--)
        send(peer, {Phase::kStream, 0, last});
    }
    if (!ending) send_ahead(peer, &progress);
  }
  complete(peer, sent_[peer]);
  return window->bytes_per_us(limit / 4, may_stop);
}

void Meter::send_ahead(Rank peer, Progress* progress) {
  for (; progress->sent < progress->received + kAhead; progress->sent++)
    send(peer, {Phase::kStream, 0, 0, progress->message_bytes}, slot(progress->sent));
}

// Names the place for the message that comes kAhead messages after the current one. The send from
// that slot is complete or soon will be, since the peer has answered it.
void Meter::note_received(Rank peer, uint64_t bytes, bool grow, Progress* progress) {
  uint64_t number = progress->received++;
  progress->received_bytes += bytes;
  if (grow)
    progress->message_bytes = std::clamp(progress->received_bytes / kGrowth,
                                         std::min(kLeastMessageBytes, slot_bytes_), slot_bytes_);
  if (number >= kAhead) complete(peer, progress->before + number - kAhead + 1);
  expect(peer, slot(number + 2 * kAhead), slot_bytes_);
}

void Meter::finish() {
  for (auto [peer, number] : sent_) complete(peer, number);
}

void Meter::send(Rank peer, const Message& message, const std::byte* data) {
  Endpoint& link = links_.link(peer);
  Label label{.number = sent_[peer] + 1,
              .value = message.value,
              .phase = static_cast<uint8_t>(message.phase),
              .level = static_cast<uint8_t>(level_),
              .left = message.left};
  wait(peer, [&] {
    uint64_t number = link.try_send(Envelope::of(label), data, message.bytes);
    if (number == 0) link.progress();
    if (number > 0) sent_[peer] = number;
    return number > 0;
  });
}

Meter::Message Meter::receive(Rank peer, Phase phase, std::byte* place, uint64_t capacity) {
  Endpoint& link = links_.link(peer);
  View view;
  wait(peer, [&] { return link.try_recv(place, capacity, &view); });
  auto label = view.envelope.as<Label>();
  bool fits = label.measuring == kMeasuring && label.phase == static_cast<uint8_t>(phase) &&
              label.level == level_ && view.bytes <= capacity && label.left >= 0 &&
              label.left <= static_cast<int32_t>(kAhead);
  check(fits, Code::kMismatch,
        "rank {} does something else than rank {} while links are measured: install the same "
        "version of ringcoll on all hosts",
        peer, self_);
  if (view.bytes > 0 && view.data != place) std::memcpy(place, view.data, view.bytes);
  link.release();
  return {phase, label.value, label.left, view.bytes};
}

Meter::Message Meter::receive_empty(Rank peer, Phase phase) {
  expect(peer, nullptr, 0);
  return receive(peer, phase, nullptr, 0);
}

void Meter::expect(Rank peer, std::byte* place, uint64_t capacity) {
  if (links_.wants_places()) links_.link(peer).expect(place, capacity);
}

void Meter::complete(Rank peer, uint64_t number) {
  Endpoint& link = links_.link(peer);
  wait(peer, [&] {
    if (link.completed() >= number) return true;
    link.progress();
    return link.completed() >= number;
  });
}

template <typename Ready>
void Meter::wait(Rank peer, Ready&& ready) {
  if (!ready()) links_.wait(peer, std::ref(ready));
}

}  // namespace

std::vector<LevelSamples> measure_links(const Topology& topology, Rank self,
                                        const std::vector<bool>& wanted, int share,
                                        MeasuredLinks& links) {
  Meter meter(topology, self, share, links);
  std::vector<LevelSamples> samples(topology.levels());
  for (int level = 0; level < topology.levels(); level++)
    if (wanted[level]) samples[level] = meter.measure(level);
  meter.finish();
  return samples;
}

}  // namespace ringcoll
