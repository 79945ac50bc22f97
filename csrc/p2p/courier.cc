// Begins and ends transfers, and handles what comes in. What goes out is in courier_send.cc. Long
// messages are in courier_long.cc.
#include "p2p/courier.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/copy.h"
#include "base/log.h"

namespace ringcoll {
namespace {

using Stage = Transfer::Stage;

// advance() calls MessageChannels::progress() every so many times; it polls open channels each
// time.
constexpr uint64_t kThorough = 16;
// Messages that are taken from one peer before the next peer has its turn.
constexpr int kMostAtOnce = 64;

}  // namespace

std::string Transfer::describe() const {
  std::string what = receives ? fmt::format("receive of at most {} bytes", bytes)
                              : fmt::format("send of {} bytes", bytes);
  what += receives ? " from " : " to ";
  what += peer == kAnySource ? "any rank" : fmt::format("rank {}", peer);
  return what + (tag == kAnyTag ? ", any tag" : fmt::format(", tag {}", tag));
}

Courier::Courier(MessageChannels& channels, const Limits& limits,
                 std::function<void(Transfer*)> over)
    : channels_(channels),
      limits_(limits),
      over_(std::move(over)),
      inline_bytes_(channels.inline_bytes()),
      staging_(channels.staging(), limits.small_bytes, limits.staged_bytes),
      peers_(static_cast<size_t>(channels.size())) {}

Courier::Peer& Courier::peer(Rank rank) {
  auto& found = peers_[static_cast<size_t>(rank)];
  if (!found) {
    found = std::make_unique<Peer>();
    found->rank = rank;
  }
  return *found;
}

void Courier::end(Transfer* transfer, std::optional<Error> error) {
  transfer->stage = Stage::kOver;
  if (error) {
    transfer->error = std::move(error);
  } else if (transfer->receives) {
    counts_.received += 1;
    counts_.received_bytes += transfer->received.bytes;
  } else {
    counts_.sent += 1;
    counts_.sent_bytes += transfer->bytes;
  }
  over_(transfer);
}

// ---- Beginning ----

void Courier::begin(Transfer* transfer) {
  if (transfer->receives)
    begin_receive(transfer);
  else if (transfer->peer == channels_.rank())
    begin_own_send(transfer);
  else
    begin_send(transfer);
}

void Courier::begin_send(Transfer* send) {
  Peer& to = peer(send->peer);
  send->stage = Stage::kOffered;
  to.queue.push(send);
  want_channel(to);
}

void Courier::begin_own_send(Transfer* send) {
  Rank own = channels_.rank();
  if (Transfer* receive = take_receive(own, send->tag, send->bytes)) {
    receive->received = {own, send->tag, send->bytes};
    copy_bytes(receive->data, send->data, send->bytes);
    end(receive);
    return end(send);
  }
  auto arrival = std::make_unique<Arrival>();
  arrival->source = own;
  arrival->tag = send->tag;
  arrival->bytes = send->bytes;
  if (send->bytes <= limits_.short_bytes &&
      own_keeps_ + cost_of(send->bytes) <= limits_.kept_bytes) {
    own_keeps_ += cost_of(send->bytes);
    arrival->kept = std::make_unique_for_overwrite<std::byte[]>(send->bytes);
    arrival->whole = true;
    copy_bytes(arrival->kept.get(), send->data, send->bytes);
    counts_.kept += 1;
    end(send);
  } else {
    send->stage = Stage::kOwn;
    arrival->own = send;
  }
  matching_.keep(std::move(arrival));
}

void Courier::begin_receive(Transfer* receive) {
  matching_.line_up(receive);
  Arrival* found = matching_.find(*receive);
  if (!found) return matching_.post(receive);
  if (found->bytes > receive->bytes)
    return too_long(receive, found->source, found->tag, found->bytes);
  receive->received = {found->source, found->tag, found->bytes};
  fill(receive, matching_.remove(found));
}

void Courier::fill(Transfer* receive, ArrivalPtr arrival) {
  receive->stage = Stage::kUnderWay;
  if (arrival->own) {
    copy_bytes(receive->data, arrival->own->data, arrival->bytes);
    end(arrival->own);
    return end(receive);
  }
  if (arrival->announced)
    return fetch(peer(arrival->source), receive, arrival->number, arrival->address);
  if (!arrival->whole) {
    arrival->taker = receive;
    peer(arrival->source).incoming.taken = std::move(arrival);
    return;
  }
  copy_bytes(receive->data, arrival->kept.get(), arrival->bytes);
  if (arrival->source == channels_.rank())
    own_keeps_ -= cost_of(arrival->bytes);
  else
    return_credit(peer(arrival->source), cost_of(arrival->bytes));
  end(receive);
}

void Courier::too_long(Transfer* receive, Rank source, int32_t tag, uint64_t bytes) {
  receive->received = {source, tag, bytes};
  end(receive, Error(Code::kTooLong,
                     fmt::format("{}: the message from rank {}, tag {}, has {} bytes. It is still "
                                 "there: receive it into a buffer of {} bytes",
                                 receive->describe(), source, tag, bytes, bytes),
                     source));
}

// Receives that match before it and are too short end with kTooLong.
Transfer* Courier::take_receive(Rank source, int32_t tag, uint64_t bytes) {
  while (Transfer* receive = matching_.take(source, tag)) {
    if (bytes <= receive->bytes) return receive;
    too_long(receive, source, tag, bytes);
  }
  return nullptr;
}

void Courier::withdraw(Transfer* transfer, const Error& error) {
  if (transfer->stage == Stage::kPosted)
    matching_.withdraw(transfer);
  else if (transfer->stage == Stage::kOwn)
    matching_.remove_own(transfer);
  else
    withdraw_offered(transfer);
  end(transfer, error);
}

// ---- Memory of the caller ----

// Lends memory to a device. A long message is then sent from where it lies, and received where it
// belongs. The whole buffer is lent, since memory that comes back is recognized by address and
// length.
void Courier::lend(Peer& with, Transfer* transfer) {
  uint64_t moves = transfer->receives ? transfer->received.bytes : transfer->bytes;
  if (with.reads || with.from_anywhere || moves <= limits_.short_bytes) return;
  Loan loan{.data = transfer->data, .bytes = transfer->bytes, .written = transfer->receives};
  transfer->loan = channels_.lend(with.rank, loan, oldest_loan());
}

uint64_t Courier::oldest_loan() const {
  uint64_t oldest = 0;
  for (const Peer* each : open_)
    for (const Transfers* used : {&each->asked, &each->leaving, &each->awaited})
      for (const Transfer* transfer = used->front(); transfer; transfer = Transfers::next(transfer))
        if (transfer->loan > 0 && (oldest == 0 || transfer->loan < oldest)) oldest = transfer->loan;
  return oldest;
}

void Courier::pack(Filled* filled, Staging::Chunk chunk, const std::byte* data, uint64_t bytes) {
  *filled = {chunk, bytes};
  copy_bytes(chunk.data(), data, bytes);
  counts_.packed_bytes += bytes;
}

// ---- The channels ----

void Courier::want_channel(Peer& to) {
  if (to.channel || std::exchange(to.opening, true)) return;
  opening_.push_back(to.rank);
}

void Courier::adopt(Rank rank) {
  Peer& with = peer(rank);
  with.channel = &channels_[rank];
  with.host = host_link(*with.channel);
  with.reads = with.host && with.host->reads_peer();
  with.from_anywhere = channels_.sends_from_anywhere(rank);
  with.copied_bytes = std::min(channels_.copies_up_to(rank), limits_.small_bytes);
  open_.push_back(&with);
}

bool Courier::open_channels() {
  std::erase_if(opening_, [&](Rank rank) {
    try {
      return find_peer(rank)->broken || channels_.try_open(rank);
    } catch (const Error& error) {
      break_off(rank, error);
      return true;
    }
  });
  size_t before = open_.size();
  while (open_.size() < channels_.open().size()) adopt(channels_.open()[open_.size()]);
  return open_.size() != before;
}

void Courier::push(Rank rank) {
  Peer& to = peer(rank);
  if (!to.channel) open_channels();
  if (!to.channel || to.broken) return;
  try {
    send(to);
    settle(to);
  } catch (const Error& error) {
    break_off(rank, error);
  }
}

bool Courier::advance() {
  if (gave_up_) return false;
  bool moved = false;
  if (++turns_ % kThorough == 0 || !opening_.empty()) {
    moved |= channels_.progress();
    moved |= open_channels();
  }
  for (Peer* with : open_) moved |= advance(*with);
  return moved | read_on();
}

bool Courier::advance_thoroughly() {
  if (gave_up_) return false;
  bool moved = channels_.progress();
  moved |= open_channels();
  return moved | advance();
}

bool Courier::advance(Peer& with) {
  if (with.broken) return false;
  try {
    bool moved = false;
    for (int i = 0; i < kMostAtOnce && receive(with); i++) moved = true;
    moved |= send(with);
    return moved | settle(with);
  } catch (const Error& error) {
    break_off(with.rank, error);
    return true;
  }
}

// Frees the memory of messages that the channel has completed. True if there were any.
bool Courier::settle(Peer& with) {
  if (with.leaving.empty() && with.lent.empty()) return false;
  uint64_t done = with.channel->completed();
  bool moved = false;
  for (; !with.lent.empty() && with.lent.front().number <= done; moved = true) {
    staging_.give_back(with.lent.front().chunk);
    with.lent.pop_front();
  }
  for (; !with.leaving.empty() && with.leaving.front()->number <= done; moved = true)
    end_sent(with.leaving.pop());
  return moved;
}

// What a channel has queued moves only while a thread drives (Endpoint::busy).
bool Courier::owes() const {
  return owed_ > 0 || std::ranges::any_of(open_, [](const Peer* each) {
           return !each->broken && each->channel->busy();
         });
}

bool Courier::quiet() const { return !owes() && !lends(); }

bool Courier::lends() const {
  return std::ranges::any_of(peers_, [](const auto& each) {
    return each && !each->broken && !(each->leaving.empty() && each->asked.empty());
  });
}

uint64_t Courier::copying() const {
  uint64_t most = 0;
  for (const Peer* each : open_)
    for (const Transfers* sends : {&each->leaving, &each->announced, &each->helped})
      if (const Transfer* send = sends->front(); send && each->reads)
        most = std::max(most, send->bytes);
  return std::min(most, limits_.most_read_bytes);
}

void Courier::break_off(Rank rank, const Error& error) {
  Peer& with = peer(rank);
  if (with.broken) return;
  try {
    settle(with);  // a peer that has left took these before
  } catch (const Error& also) {
    log_debug("a channel for messages that breaks does not settle: {}", also.what());
  }
  if (with.channel) with.channel->revoke();
  with.broken = error;
  owed_ -= with.notes.size();
  with.notes.clear();
  broken_++;
  if (with.channel) channels_.drop(rank);
}

const Error* Courier::trouble_of(const Transfer& transfer) const {
  if (transfer.stage == Stage::kOver) return nullptr;
  for (Rank rank : {transfer.peer, transfer.received.source})
    if (rank >= 0 && find_peer(rank) && find_peer(rank)->broken) return &*find_peer(rank)->broken;
  return nullptr;
}

void Courier::give_up() {
  seal_.break_it();
  // Only if loans are in use: revoke() may lose messages that were sent from the arena.
  if (oldest_loan() > 0) channels_.revoke();
  for (Peer* each : open_)
    if (!each->broken) each->channel->revoke();
  gave_up_ = true;
  matching_.clear();
  opening_.clear();
  open_.clear();
  reading_ = {};
  owed_ = 0;
  for (auto& each : peers_) each.reset();
}

// ---- What comes in ----

Error Courier::corrupt(const Peer& from, const char* what) const {
  const Head& head = from.incoming.head;
  return Error(Code::kTransport,
               fmt::format("what rank {} says of messages is corrupt: {} (word {}, tag {}, bytes "
                           "{}, {}; {} bytes follow); do all ranks run the same ringcoll?",
                           from.rank, what, static_cast<int>(head.word), head.tag, head.bytes,
                           head.where, from.incoming.bytes),
               from.rank);
}

// True if a message was received.
bool Courier::receive(Peer& from) {
  Incoming& in = from.incoming;
  if (!in.begun) {
    Envelope envelope;
    if (!from.channel->try_peek(&envelope, &in.bytes)) return false;
    in.head = envelope.as<Head>();
    choose_place(from);
    in.begun = true;
  }
  View view;
  if (!from.channel->try_recv(in.place, in.bytes, &view)) return false;
  struct Releaser {  // also after corrupt(): a channel has no view out when it is dropped
    Endpoint* channel;
    ~Releaser() { channel->release(); }
  } releaser{from.channel};
  take(from, view);
  return true;
}

void Courier::choose_place(Peer& from) {
  Incoming& in = from.incoming;
  in.place = nullptr;
  in.receive = nullptr;
  in.kept = nullptr;
  if (in.head.word == Word::kShort) return choose_for_short(from);
  if (in.head.word == Word::kStretch) return choose_for_stretch(from);
  if (in.head.word == Word::kHelping) return check_helping(from);
  if (in.bytes != 0) throw corrupt(from, "it has bytes");
}

void Courier::choose_for_short(Peer& from) {
  Incoming& in = from.incoming;
  const Head& head = in.head;
  if (head.bytes != in.bytes || head.bytes > limits_.short_bytes || head.tag < 0)
    throw corrupt(from, "no short message");
  if (Transfer* receive = take_receive(from.rank, head.tag, head.bytes)) {
    receive->stage = Stage::kUnderWay;
    receive->received = {from.rank, head.tag, head.bytes};
    in.receive = receive;
    in.place = receive->data;
    return;
  }
  auto arrival = std::make_unique<Arrival>();
  arrival->source = from.rank;
  arrival->tag = head.tag;
  arrival->bytes = head.bytes;
  arrival->kept = std::make_unique_for_overwrite<std::byte[]>(head.bytes);
  in.place = arrival->kept.get();
  in.kept = matching_.keep(std::move(arrival));
  counts_.kept += 1;
}

void Courier::take(Peer& from, const View& view) {
  Incoming& in = from.incoming;
  in.begun = false;
  const Head head = in.head;
  if (in.bytes > 0 && in.place && in.place != view.data) {
    copy_bytes(in.place, view.data, in.bytes);
    counts_.unpacked_bytes += in.bytes;
  }
  switch (head.word) {
    case Word::kShort:
      return take_short(from);
    case Word::kStretch:
      return take_stretch(from, in.receive, in.bytes);
    case Word::kHelping:
      return take_helping(from, view);
    default:
      return take_note(from, head);
  }
}

void Courier::take_note(Peer& from, const Head& head) {
  switch (head.word) {
    case Word::kAnnounce:
      return take_announcement(from, head);
    case Word::kSeal:
      from.seal_address = head.where;
      from.seal = head.bytes;
      return;
    case Word::kWithdrawn:
      return take_withdrawn(from, head.where);
    case Word::kWant:
      return take_want(from, head.where);
    case Word::kHelp:
      if (Transfer* send = announced(from, head.where)) from.helped.push(send);
      return;
    case Word::kTaken:
      return take_taken(from, head.where);
    case Word::kReturned:
      if (head.bytes > from.keeps) throw corrupt(from, "more than it was sent");
      from.keeps -= head.bytes;
      return;
    default:
      throw corrupt(from, "an unknown word");
  }
}

void Courier::take_short(Peer& from) {
  Incoming& in = from.incoming;
  if (in.receive) {
    return_credit(from, cost_of(in.bytes));
    return end(in.receive);
  }
  in.kept->whole = true;
  if (!in.taken) return;
  ArrivalPtr arrival = std::move(in.taken);
  Transfer* receive = arrival->taker;
  fill(receive, std::move(arrival));
}

// Credit is returned in portions of a quarter of kept_bytes. A sender needs no finer portions to go
// on.
void Courier::return_credit(Peer& to, uint64_t bytes) {
  to.to_return += bytes;
  if (to.to_return < limits_.kept_bytes / 4) return;
  note(to, {.word = Word::kReturned, .bytes = std::exchange(to.to_return, 0)});
}

void Courier::note(Peer& to, const Head& head) {
  if (to.broken) return;
  to.notes.push_back(head);
  owed_++;
}

}  // namespace ringcoll
