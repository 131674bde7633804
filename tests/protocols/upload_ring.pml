// The ring of pinned buffers (kernels/device/host_copies.h): the host copies a piece into a buffer,
// gives the copy to the device to a stream and records an event behind it. Pieces go to two
// streams, the replica's and that of staging, in any order.
//
// Proves: the device reads of a buffer what the host wrote for this copy, from the first byte to
// the last, and all pieces arrive.
//
// right:
// wrong: NO_WAIT        the host writes into a buffer that the device still reads
// wrong: WAITS_LATE     the host waits when it has written
// wrong: RECORDS_FIRST  the event is recorded in front of the copy

#define BUFFERS 3
#define STREAMS 2
#define PIECES 8
#define NONE 255

byte content[BUFFERS];  // the piece that a buffer holds
byte recorded[BUFFERS]; // the last record of a buffer's event, named by its piece
bool passed[PIECES];    // records that the device has reached
byte arrived;

mtype = { copy, record };
chan queue[STREAMS] = [2 * PIECES] of { mtype, byte, byte };

active proctype Host() {
  byte piece, buffer, stream;
  for (buffer : 0 .. BUFFERS - 1) { recorded[buffer] = NONE }
  for (piece : 0 .. PIECES - 1) {
    buffer = piece % BUFFERS;
    select(stream : 0 .. STREAMS - 1);
#ifdef WAITS_LATE
    content[buffer] = piece;
#endif
#ifndef NO_WAIT
    (recorded[buffer] == NONE || passed[recorded[buffer]]); // cudaEventSynchronize
#endif
    content[buffer] = piece;
#ifdef RECORDS_FIRST
    recorded[buffer] = piece;
    queue[stream] ! record, buffer, piece;
    queue[stream] ! copy, buffer, piece
#else
    queue[stream] ! copy, buffer, piece;
    recorded[buffer] = piece;
    queue[stream] ! record, buffer, piece
#endif
  }
  (arrived == PIECES)
}

active [STREAMS] proctype Stream() {
  byte buffer, piece;
end:
  do
  :: queue[_pid - 1] ? copy, buffer, piece ->
    assert(content[buffer] == piece); // the first byte
    assert(content[buffer] == piece); // the last
    arrived++
  :: queue[_pid - 1] ? record, buffer, piece -> passed[piece] = true
  od
}
