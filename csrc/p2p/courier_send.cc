// What goes out to one peer: notes first, then messages in their order, then stretches of messages
// that the peer has asked for or reads.
#include <algorithm>
#include <cstring>
#include <utility>

#include "p2p/courier.h"
#include "shm/own_memory.h"

namespace ringcoll {
namespace {

// Stretches in flight to one peer. More would only delay the messages between them.
constexpr uint64_t kStretchesAhead = 4;

}  // namespace

// True if anything was sent.
bool Courier::send(Peer& to) {
  bool moved = false;
  while (send_note(to) || send_queued(to) || send_stretch(to) || send_help(to)) moved = true;
  return moved;
}

bool Courier::send_note(Peer& to) {
  if (to.notes.empty()) return false;
  const Head note = to.notes.front();
  if (to.channel->try_send(Envelope::of(note), nullptr, 0) == 0) return false;
  to.notes.pop_front();
  owed_--;
  if (note.word != Word::kWant) return true;
  // Lends the memory before the payload can arrive. If the peer has withdrawn the message
  // meanwhile, no payload comes.
  if (Transfer* receive = find(to.awaited, note.where)) lend(to, receive);
  return true;
}

bool Courier::send_queued(Peer& to) {
  Transfer* send = to.queue.front();
  if (!send || !to.notes.empty()) return false;  // no credit
  bool has_to_be_announced =
      send->bytes > limits_.short_bytes || to.keeps + cost_of(send->bytes) > limits_.kept_bytes;
  if (!has_to_be_announced && send_short(to, send, &has_to_be_announced)) return true;
  return has_to_be_announced && announce(to, send);
}

// Whether to send from the caller's memory. A send that fits no small chunk ends when the peer has
// copied it, in either way. So the two ways are timed alike.
bool Courier::goes_as_it_lies(Peer& to, Transfer* send) {
  if (to.from_anywhere || send->bytes <= inline_bytes_) return true;
  // A send with a deadline of its own must not lend: lent memory cannot be withdrawn at the
  // deadline.
  if (send->timeout_s > 0) return false;
  if (send->bytes <= staging_.small_bytes() || !to.reads || !to.host->takes_lent() ||
      !can_be_read(send->data, send->bytes))
    return false;
  if (send->began == Clock::time_point()) send->began = Clock::now();
  send->way = ways_.about(send->bytes).next(send->bytes);
  return send->way == kAsItLies;
}

// False: there is no credit, or `announce` is set, since no chunk is free.
bool Courier::send_short(Peer& to, Transfer* send, bool* announce) {
  Head head{.word = Word::kShort, .tag = send->tag, .bytes = send->bytes};
  // A message that the channel copies ends at once. A longer one is copied only once, by the
  // receiver, where the receiver can read the sender's memory.
  if (to.host && to.copied_bytes > 0 && send->bytes <= to.copied_bytes) {
    Slice slice{send->data, send->bytes};
    if (to.host->try_copy(Envelope::of(head), {&slice, 1}, send->bytes) == 0) return false;
    to.queue.remove(send);
    to.keeps += cost_of(send->bytes);
    end(send);
    return true;
  }
  bool as_it_lies = to.short_chunk.empty() && goes_as_it_lies(to, send);
  if (!as_it_lies && to.short_chunk.empty()) {
    Staging::Chunk chunk = staging_.take(send->bytes);
    *announce = chunk.empty();
    if (*announce) return false;
    pack(&to.short_chunk, chunk, send->data, send->bytes);
  }
  uint64_t number = as_it_lies ? to.channel->try_send(Envelope::of(head), send->data, send->bytes)
                               : send_staged(to, head, &to.short_chunk);
  if (number == 0) return false;
  to.queue.remove(send);
  to.keeps += cost_of(send->bytes);
  // Over a network, what is in the arena may be lost with the communicator. So a longer send ends
  // only when the peer has the message.
  send->is_staged = !as_it_lies;
  if (as_it_lies ? send->bytes > 0 : send->bytes > staging_.small_bytes())
    sent_from(to, send, number);
  else
    end(send);
  return true;
}

Head Courier::seal() const {
  return {.word = Word::kSeal, .bytes = seal_.value(), .where = seal_.address()};
}

bool Courier::announce(Peer& to, Transfer* send) {
  if (!to.sealed) {
    if (to.channel->try_send(Envelope::of(seal()), nullptr, 0) == 0) return false;
    to.sealed = true;
  }
  Head head{.word = Word::kAnnounce,
            .tag = send->tag,
            .bytes = send->bytes,
            .where = reinterpret_cast<uint64_t>(send->data)};
  if (to.channel->try_send(Envelope::of(head), nullptr, 0) == 0) return false;
  to.queue.remove(send);
  send->number = ++to.announcements;
  to.announced.push(send);
  return true;
}

bool Courier::is_far_ahead(Peer& to) const {
  uint64_t sent = to.last_stretch;
  return sent > kStretchesAhead && to.channel->completed() + kStretchesAhead < sent;
}

uint64_t Courier::most_of_stretch(const Peer& to, const Transfer& send) const {
  if (to.from_anywhere) return limits_.stretch_bytes;
  if (send.loan > 0) return limits_.lent_bytes;
  return std::max(staging_.large_bytes(), inline_bytes_);
}

bool Courier::send_stretch(Peer& to) {
  Transfer* send = to.asked.front();
  if (!send || !to.notes.empty() || !to.queue.empty() || is_far_ahead(to)) return false;
  Head head{.word = Word::kStretch, .bytes = send->moved, .where = send->number};
  const std::byte* from = send->data + send->moved;
  uint64_t bytes = std::min(send->bytes - send->moved, most_of_stretch(to, *send));
  bool as_it_lies = to.from_anywhere || send->loan > 0 || bytes <= inline_bytes_;
  if (!as_it_lies && to.asked_chunk.empty()) {
    auto chunk = staging_.take_large();
    if (chunk.empty()) return false;
    pack(&to.asked_chunk, chunk, from, bytes);
  }
  uint64_t number = as_it_lies ? to.channel->try_send(Envelope::of(head), from, bytes)
                               : send_staged(to, head, &to.asked_chunk);
  if (number == 0) return false;
  to.last_stretch = number;
  send->moved += bytes;
  if (send->moved < send->bytes) return true;
  to.asked.remove(send);
  sent_from(to, send, number);
  return true;
}

// Sends help only if there is nothing else to send: the peer can read all of the message itself.
bool Courier::send_help(Peer& to) {
  Transfer* send = to.helped.front();
  if (!send || !to.notes.empty() || !to.queue.empty() || is_far_ahead(to)) return false;
  uint64_t left = send->bytes - send->helped;
  uint64_t bytes = std::min(left, staging_.large_bytes());
  if (to.helped_chunk.empty()) {
    auto chunk = staging_.take_large();
    if (chunk.empty()) return false;
    pack(&to.helped_chunk, chunk, send->data + left - bytes, bytes);
  }
  Head head{.word = Word::kHelping, .bytes = left - bytes, .where = send->number};
  uint64_t number = send_staged(to, head, &to.helped_chunk);
  if (number == 0) return false;
  to.last_stretch = number;
  send->helped += bytes;
  if (send->helped < send->bytes) return true;
  to.helped.remove(send);
  to.announced.push(send);
  return true;
}

// Returns 0 if there is no credit; the chunk is kept for the next try.
uint64_t Courier::send_staged(Peer& to, const Head& head, Filled* filled) {
  uint64_t number = to.channel->try_send(Envelope::of(head), filled->chunk.data(), filled->bytes);
  if (number == 0) return 0;
  Filled sent = std::exchange(*filled, {});
  to.lent.push_back({number, sent.chunk});
  return number;
}

// Ends the send once the channel has completed message `number`.
void Courier::sent_from(Peer& to, Transfer* send, uint64_t number) {
  if (to.channel->completed() >= number) return end_sent(send);
  send->number = number;
  send->stage = Transfer::Stage::kUnderWay;
  to.leaving.push(send);
}

// Discards the time if another way has its turn now than when this send began.
void Courier::end_sent(Transfer* send) {
  if (send->began != Clock::time_point()) {
    FasterWay& ways = ways_.about(send->bytes);
    if (send->way == ways.next(send->bytes)) ways.did(send->bytes, Clock::now() - send->began);
  }
  end(send);
}

// ---- Sends that are given up ----

// A peer may be reading an announced message. Only a new seal shows it that the memory is the
// caller's again. Each peer is told the new seal, under which it reads the other messages.
void Courier::withdraw_offered(Transfer* send) {
  Peer& to = peer(send->peer);
  if (send->number == 0) {  // not announced
    if (send == to.queue.front()) staging_.give_back(std::exchange(to.short_chunk, {}).chunk);
    return to.queue.remove(send);
  }
  to.announced.remove(send);
  note(to, {.word = Word::kWithdrawn, .where = send->number});
  seal_.renew();
  for (Peer* each : open_)
    if (each->sealed) note(*each, seal());
}

bool Courier::end_early(Transfer* send) {
  if (!send->is_staged || !has_taken(*send)) return false;
  peer(send->peer).leaving.remove(send);
  end(send);
  return true;
}

bool Courier::has_taken(const Transfer& transfer) const {
  if (transfer.receives || !find_peer(transfer.peer)) return false;
  const Transfer* each = find_peer(transfer.peer)->leaving.front();
  while (each && each != &transfer) each = Transfers::next(each);
  return each;
}

}  // namespace ringcoll
