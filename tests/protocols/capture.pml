// The recording of a step by the threads of all ranks (EventRecorder::record, EventTransport): CUDA
// does not promise that several threads may add to one capture at a time, so that whoever issues
// holds the turn, and gives it away while it waits for the others in an exchange or a barrier.
//
// Proves: no two ranks issue at a time, all do so between the begin and the end of the capture, the
// streams of all are part of it by then, and nobody waits for ever.
//
// right:
// wrong: NO_TURN           two ranks issue at a time
// wrong: KEEPS_TURN        who waits for the others has the turn that they wait for
// wrong: NO_FIRST_MEETING  a rank joins a capture that has not begun
// wrong: NO_LAST_MEETING   the capture ends while a rank issues
// wrong: NO_ARRIVAL        the capture ends with a stream that has not come back to the first

#define RANKS 3
#define EXCHANGES 2

bool capturing, turn;
bool in_capture[RANKS]; // the rank's stream takes part and has not come back
byte issuing;
byte begun, ended, posted[EXCHANGES];

inline take_turn() {
#ifdef NO_TURN
  skip
#else
  atomic { !turn -> turn = true }
#endif
}
inline give_turn() {
  turn = false
}
inline issue() {
  issuing++;
  assert(issuing == 1 && capturing);
  issuing--
}

proctype Rank(byte rank) {
  byte exchange, peer;
  if
  :: rank == 0 -> capturing = true
  :: else
  fi;
  begun++;
#ifndef NO_FIRST_MEETING
  (begun == RANKS);
#endif
  take_turn();
  if
  :: rank > 0 -> issue(); in_capture[rank] = true
  :: else
  fi;
  for (exchange : 0 .. EXCHANGES - 1) {
    issue(); // the statistics
    posted[exchange]++;
#ifndef KEEPS_TURN
    give_turn();
#endif
    (posted[exchange] == RANKS);
#ifndef KEEPS_TURN
    take_turn();
#endif
    issue() // the waits, and what reads
  }
#ifndef NO_ARRIVAL
  if
  :: rank > 0 -> issue(); in_capture[rank] = false
  :: else
  fi;
#endif
  give_turn();
  ended++;
#ifndef NO_LAST_MEETING
  (ended == RANKS);
#endif
  if
  :: rank == 0 ->
    for (peer : 1 .. RANKS - 1) { assert(!in_capture[peer]) }
    capturing = false
  :: else
  fi
}

init {
  byte rank;
  atomic {
    for (rank : 0 .. RANKS - 1) { run Rank(rank) }
  }
}
