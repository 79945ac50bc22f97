// Long messages, from their announcement to their end. Their stretches are sent in courier_send.cc.
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/copy.h"
#include "p2p/courier.h"

namespace ringcoll {
namespace {

using Stage = Transfer::Stage;

}  // namespace

void Courier::take_announcement(Peer& from, const Head& head) {
  if (head.tag < 0) throw corrupt(from, "a tag that is none");
  uint64_t number = ++from.announcements_in;
  if (Transfer* receive = take_receive(from.rank, head.tag, head.bytes)) {
    receive->received = {from.rank, head.tag, head.bytes};
    return fetch(from, receive, number, head.where);
  }
  auto arrival = std::make_unique<Arrival>();
  arrival->source = from.rank;
  arrival->tag = head.tag;
  arrival->bytes = head.bytes;
  arrival->announced = true;
  arrival->number = number;
  arrival->address = head.where;
  matching_.keep(std::move(arrival));
}

void Courier::fetch(Peer& from, Transfer* receive, uint64_t number, uint64_t address) {
  receive->stage = Stage::kUnderWay;
  receive->number = number;
  receive->helped = 0;
  receive->moved = 0;
  if (!from.reads || address == 0) return ask_for(from, receive);
  receive->remote = address;
  receive->took = {};
  if (reading_.empty()) first_since_ = Clock::now();
  receive->way = reads_.about(receive->received.bytes).next(receive->received.bytes);
  // A message that is read in one step is complete before any help arrives.
  if (receive->way == kWithHelp &&
      (!reading_.empty() || receive->received.bytes > limits_.read_bytes))
    note(from, {.word = Word::kHelp, .where = number});
  reading_.push(receive);
}

// Asks for the whole message, also if a part of it was read.
void Courier::ask_for(Peer& from, Transfer* receive) {
  receive->helped = 0;
  receive->moved = 0;
  note(from, {.word = Word::kWant, .where = receive->number});
  from.awaited.push(receive);
}

bool Courier::read_on() {
  Transfer* receive = reading_.front();
  if (!receive) return false;
  Peer& from = peer(receive->received.source);
  uint64_t turn = receive->moved / limits_.most_read_bytes;
  Piece piece = Piece::kUnknown;
  try {
    if (!from.broken) piece = read_some(from, receive);
  } catch (const Error& error) {
    break_off(from.rank, error);
    return true;
  }
  if (piece == Piece::kLast) return true;
  // A receive from a broken peer stays in the list, since its error becomes the group's. The other
  // receives have their turns.
  if (piece == Piece::kUnknown || receive->moved / limits_.most_read_bytes > turn) {
    count_time(receive);
    reading_.remove(receive);
    reading_.push(receive);
  }
  return piece != Piece::kUnknown;
}

// Counts only the time in which this receive is the first, and so is being read. In a window of
// messages most of the time is spent waiting for earlier ones. It says nothing about the way.
void Courier::count_time(Transfer* receive) {
  if (receive != reading_.front()) return;
  auto before = std::exchange(first_since_, Clock::now());
  receive->took += first_since_ - before;
}

// Returns kUnknown if the seal has changed since the peer told it. Then the peer has withdrawn this
// message or another one. Its next notes say which.
Courier::Piece Courier::read_some(Peer& from, Transfer* receive) {
  uint64_t left = receive->received.bytes - receive->helped - receive->moved;
  // Begins with short steps, since help may be on its way.
  uint64_t least = receive->way == kAlone ? limits_.most_read_bytes : limits_.read_bytes;
  uint64_t alone = std::clamp(receive->moved, least, limits_.most_read_bytes);
  uint64_t bytes = std::min(left, receive->helped > 0 ? limits_.read_bytes : alone);
  uint64_t seal = 0;
  bool there =
      from.host->read_peer(receive->remote + receive->moved, receive->data + receive->moved, bytes,
                           from.seal_address, &seal);
  if (!there && !from.host->read_peer(from.seal_address, &seal, sizeof seal)) seal = 0;
  if (seal == 0)
    throw Error(Code::kPeerLost,
                fmt::format("rank {} has failed or left the communicator: the {} bytes of its "
                            "message, tag {}, are not there any more",
                            from.rank, receive->received.bytes, receive->received.tag),
                from.rank);
  if (seal != from.seal) return Piece::kUnknown;
  if (!there) {  // a driver has mapped that memory, so only the peer can read it
    count_time(receive);
    reading_.remove(receive);
    ask_for(from, receive);
    return Piece::kLast;
  }
  receive->moved += bytes;
  return end_if_whole(from, receive) ? Piece::kLast : Piece::kSome;
}

bool Courier::end_if_whole(Peer& from, Transfer* receive) {
  if (receive->moved + receive->helped < receive->received.bytes) return false;
  count_time(receive);
  reading_.remove(receive);
  note(from, {.word = Word::kTaken, .where = receive->number});
  counts_.read += receive->moved > 0;
  counts_.helped += receive->helped > 0;
  FasterWay& reads = reads_.about(receive->received.bytes);
  if (receive->way == reads.next(receive->received.bytes))
    reads.did(receive->received.bytes, receive->took);
  end(receive);
  send(from);  // now: it may be long before a thread drives again
  return true;
}

// ---- Stretches from the sender ----

void Courier::choose_for_stretch(Peer& from) {
  Incoming& in = from.incoming;
  Transfer* receive = find(from.awaited, in.head.where);
  if (!receive) throw corrupt(from, "a stretch of what was not asked for");
  if (in.head.bytes != receive->moved || in.bytes > receive->received.bytes - receive->moved)
    throw corrupt(from, "a stretch that is not the next");
  in.receive = receive;
  in.place = receive->data + receive->moved;
}

void Courier::take_stretch(Peer& from, Transfer* receive, uint64_t bytes) {
  receive->moved += bytes;
  if (receive->moved < receive->received.bytes) return;
  from.awaited.remove(receive);
  end(receive);
}

// Chooses no place. take_helping() copies the stretch, since its receive may have ended by then.
void Courier::check_helping(Peer& from) const {
  const Head& head = from.incoming.head;
  if (!from.reads || head.where == 0 || head.where > from.announcements_in)
    throw corrupt(from, "a stretch of what was not announced");
}

// Takes the next stretch from the end of a message that is being read. Drops it if the message has
// been read.
void Courier::take_helping(Peer& from, const View& view) {
  const Head& head = from.incoming.head;
  Transfer* receive = reading_.front();
  while (receive && (receive->received.source != from.rank || receive->number != head.where))
    receive = Transfers::next(receive);
  if (!receive) return;
  uint64_t bytes = from.incoming.bytes, left = receive->received.bytes - receive->helped;
  if (bytes > left || head.bytes != left - bytes)
    throw corrupt(from, "a stretch that is not the next");
  uint64_t there = std::min(bytes, std::max(receive->moved, head.bytes) - head.bytes);
  if (there < bytes)
    copy_bytes(receive->data + head.bytes + there, view.data + there, bytes - there);
  receive->helped += bytes;
  end_if_whole(from, receive);
}

// ---- Notes from the receiver ----

void Courier::take_want(Peer& from, uint64_t number) {
  Transfer* send = no_longer_helped(from, number);
  if (!send) send = announced(from, number);
  if (!send) return;
  send->helped = 0;
  lend(from, send);
  from.asked.push(send);
}

void Courier::take_taken(Peer& from, uint64_t number) {
  Transfer* send = no_longer_helped(from, number);
  if (!send) send = announced(from, number);
  if (send) end(send);
}

// Removes the send from those that this rank helps with. Null: it is not among them.
Transfer* Courier::no_longer_helped(Peer& to, uint64_t number) {
  Transfer* send = find(to.helped, number);
  if (!send) return nullptr;
  if (send == to.helped.front())
    staging_.give_back(std::exchange(to.helped_chunk, {}).chunk);  // it has not been sent yet
  to.helped.remove(send);
  return send;
}

// Removes the send from the announced ones, since the peer takes part in it now. Null: it was
// withdrawn before the peer knew.
Transfer* Courier::announced(Peer& to, uint64_t number) {
  if (number == 0 || number > to.announcements)
    throw corrupt(to, "an answer to what was not announced");
  Transfer* send = find(to.announced, number);
  if (!send) return nullptr;
  to.announced.remove(send);
  send->stage = Stage::kUnderWay;
  return send;
}

// ---- Withdrawn announcements ----

void Courier::take_withdrawn(Peer& from, uint64_t number) {
  if (number == 0 || number > from.announcements_in)
    throw corrupt(from, "takes back what was not announced");
  matching_.remove_announced(from.rank, number);
  if (Transfer* receive = find(from.awaited, number)) {
    from.awaited.remove(receive);
    return begin_again(receive);
  }
  for (Transfer* each = reading_.front(); each; each = Transfers::next(each)) {
    if (each->received.source != from.rank || each->number != number) continue;
    count_time(each);
    reading_.remove(each);
    return begin_again(each);
  }
}

void Courier::begin_again(Transfer* receive) {
  receive->received = {};
  begin_receive(receive);
}

}  // namespace ringcoll
