// The exchange by events (kernels/transport/event_transport.cpp): a rank's stream writes its
// statistics and records an event; the ranks meet on the host; every stream waits for the peers'
// events and reads their statistics where they lie. A rank has two events, used in turn, and two
// calls write to memory of their own (the forward and the backward pass of a layer, say). Hosts and
// streams run at any speed; a wait is for what was recorded when it was issued, as in CUDA.
//
// With JOIN a stream of its own waits for all ranks, and every rank waits for that alone. It is
// issued by one thread in the meeting, before any rank goes on, and has one event.
//
// Proves: who reads gets the statistics of this call, none are written again before all have read
// them, a wait is for the record of its own call, and everything comes to its end.
//
// right:
// right: JOIN
// right: ONE_MEMORY BARRIER    all calls in one memory, behind a barrier of all streams
// wrong: NO_WAIT               a rank reads what is not written yet
// wrong: RECORDS_FIRST         the event is recorded in front of the statistics
// wrong: NO_MEETING            a wait is issued before the record
// wrong: ONE_EVENT             a wait is for the next call's record
// wrong: ONE_MEMORY            statistics are written again while a peer reads
// wrong: JOIN JOINS_LATE       ranks go on before the join is issued
// wrong: JOIN JOINS_FIRST      the join is recorded in front of its waits

#define RANKS 3
#define NEVER 255

#ifdef ONE_MEMORY
#define CALLS 2
#define MEMORY(call) 0
#else
#define CALLS 3
#define MEMORY(call) ((call) % 2)
#endif
#ifdef ONE_EVENT
#define TURN(call) 0
#else
#define TURN(call) ((call) % 2)
#endif
#define AT(rank, i) ((rank) * 2 + (i))

byte statistics[6];    // of AT(rank, memory): the call they are of
byte recorded[6];      // of AT(rank, turn): the last recorded call
byte joined = NEVER;   // the same of the join's event
byte reached[RANKS];   // calls whose records a stream has passed
byte reached_join;
byte barrier[RANKS];   // calls whose barrier a stream has come to
byte posted[CALLS], departing[CALLS]; // ranks on the host
bool is_joined[CALLS];

mtype = { write_slot, record, wait, read, record_join, wait_join, arrive, depart };
chan queue[RANKS] = [16] of { mtype, byte, byte };
chan join = [16] of { mtype, byte, byte };

// To a stream: one without a record waits for nothing.
inline issue_wait(stream, peer, call) {
  if
  :: recorded[AT(peer, TURN(call))] == NEVER -> skip
  :: else ->
    assert(recorded[AT(peer, TURN(call))] == call);
    stream ! wait, peer, recorded[AT(peer, TURN(call))]
  fi
}

inline issue_joint_record(call) {
  joined = call;
  join ! record_join, call, 0
}

proctype Host(byte rank) {
  byte call, peer;
  for (call : 0 .. CALLS - 1) {
    atomic {
#ifdef RECORDS_FIRST
      recorded[AT(rank, TURN(call))] = call;
      queue[rank] ! record, call, 0;
      queue[rank] ! write_slot, call, 0;
#else
      queue[rank] ! write_slot, call, 0;
      recorded[AT(rank, TURN(call))] = call;
      queue[rank] ! record, call, 0;
#endif
      posted[call]++
    }
#ifndef NO_MEETING
    (posted[call] == RANKS);
#endif
#ifdef JOIN
    if
    :: rank == 0 ->
      atomic {
#ifdef JOINS_FIRST
        issue_joint_record(call);
#endif
        for (peer : 0 .. RANKS - 1) { issue_wait(join, peer, call) }
#ifndef JOINS_FIRST
        issue_joint_record(call);
#endif
        is_joined[call] = true
      }
    :: else
    fi;
#ifndef JOINS_LATE
    (is_joined[call]);
#endif
    atomic {
      if
      :: joined == NEVER -> skip
      :: else ->
        assert(joined == call);
        queue[rank] ! wait_join, joined, 0
      fi
    }
#else
#ifndef NO_WAIT
    for (peer : 0 .. RANKS - 1) {
      atomic {
        if
        :: peer != rank -> issue_wait(queue[rank], peer, call)
        :: else
        fi
      }
    }
#endif
#endif
    queue[rank] ! read, call, 0;
#ifdef BARRIER
    atomic { queue[rank] ! arrive, call, 0; departing[call]++ }
    (departing[call] == RANKS);
    queue[rank] ! depart, call, 0
#endif
  }
}

proctype Stream(byte rank) {
  byte call, peer, reads;
  do
  :: reads < CALLS ->
    if
    :: atomic { queue[rank] ? write_slot, call, _ -> statistics[AT(rank, MEMORY(call))] = call }
    :: atomic { queue[rank] ? record, call, _ -> reached[rank] = call + 1 }
    :: atomic { queue[rank] ? wait, peer, call -> (reached[peer] > call) }
    :: atomic { queue[rank] ? wait_join, call, _ -> (reached_join > call) }
    :: atomic { queue[rank] ? arrive, call, _ -> barrier[rank] = call + 1 }
    :: atomic {
         queue[rank] ? depart, call, _ ->
         (barrier[0] > call && barrier[1] > call && barrier[2] > call)
       }
    :: atomic {
         queue[rank] ? read, call, _ ->
         for (peer : 0 .. RANKS - 1) { assert(statistics[AT(peer, MEMORY(call))] == call) }
         reads++
       }
    fi
  :: else -> break
  od
}

proctype JoinStream() {
  byte call, peer;
end:
  do
  :: atomic { join ? wait, peer, call -> (reached[peer] > call) }
  :: atomic { join ? record_join, call, _ -> reached_join = call + 1 }
  od
}

init {
  byte i;
  atomic {
    for (i : 0 .. 5) {
      statistics[i] = NEVER;
      recorded[i] = NEVER
    }
    for (i : 0 .. RANKS - 1) {
      run Host(i);
      run Stream(i)
    }
#ifdef JOIN
    run JoinStream()
#endif
  }
}
