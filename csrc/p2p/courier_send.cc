// What goes out to one peer: notes first, then messages in their order, then stretches of those
// that it has asked for.
#include <algorithm>
#include <cstring>
#include <utility>

#include "p2p/courier.h"
#include "shm/own_memory.h"

namespace ringcoll {
namespace {

// Stretches of a peer that may not have left yet: more would only delay what comes between.
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
  // Before anything comes. If the peer has withdrawn the message meanwhile, nothing does.
  if (Transfer* receive = find(to.awaited, note.where)) lend(to, receive);
  return true;
}

bool Courier::send_queued(Peer& to) {
  Transfer* send = to.queue.front();
  if (!send || !to.notes.empty()) return false;  // there is no credit
  bool has_to_be_announced =
      send->bytes > limits_.short_bytes || to.keeps + cost_of(send->bytes) > limits_.kept_bytes;
  if (!has_to_be_announced && send_short(to, send, &has_to_be_announced)) return true;
  return has_to_be_announced && announce(to, send);
}

// One that is longer than the small ones ends when the peer has copied it, by either way: that is
// what is timed.
bool Courier::goes_as_it_lies(Peer& to, Transfer* send) {
  if (to.from_anywhere || send->bytes <= inline_bytes_) return true;
  // What is lent cannot be withdrawn, should it not be read before a deadline of its own.
  if (send->timeout_s > 0) return false;
  if (send->bytes <= staging_.small_bytes() || !to.reads || !to.host->takes_lent() ||
      !can_be_read(send->data, send->bytes))
    return false;
  if (send->began == Clock::time_point()) send->began = Clock::now();
  send->way = ways_.about(send->bytes).next(send->bytes);
  return send->way == kAsItLies;
}

// False without `announce`: no credit.
bool Courier::send_short(Peer& to, Transfer* send, bool* announce) {
  Head head{.word = Word::kShort, .tag = send->tag, .bytes = send->bytes};
  // Nobody then waits for the receiver. A longer message is copied once, by the receiver, where
  // that can read the sender's memory.
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
  // Over a network, what is in the arena may be lost with the communicator: who has sent much waits
  // until the peer has it.
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

// The peer takes the message itself, if need be all of it; so only if there is nothing else to
// send.
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

// 0: no credit; the chunk is kept for the next try.
uint64_t Courier::send_staged(Peer& to, const Head& head, Filled* filled) {
  uint64_t number = to.channel->try_send(Envelope::of(head), filled->chunk.data(), filled->bytes);
  if (number == 0) return 0;
  Filled sent = std::exchange(*filled, {});
  to.lent.push_back({number, sent.chunk});
  return number;
}

// The caller's memory is read until that message has left.
void Courier::sent_from(Peer& to, Transfer* send, uint64_t number) {
  if (to.channel->completed() >= number) return end_sent(send);
  send->number = number;
  send->stage = Transfer::Stage::kUnderWay;
  to.leaving.push(send);
}

// Of a way that had its turn then, and has not any more, nothing is asked.
void Courier::end_sent(Transfer* send) {
  if (send->began != Clock::time_point()) {
    FasterWay& ways = ways_.about(send->bytes);
    if (send->way == ways.next(send->bytes)) ways.did(send->bytes, Clock::now() - send->began);
  }
  end(send);
}

// ---- Sends that are given up ----

// What has been announced may be being read: only with another seal the peer notices that its
// memory is the caller's again. So it learns the seal under which it reads the others.
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
