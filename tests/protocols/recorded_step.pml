// Steps that are recorded once and replayed (kernels/transport/step_graph.h, EventRecorder::replay):
// every rank gives its stream an upload; the ranks but the first record that they have arrived; the
// ranks meet; the first rank's stream waits for the others and launches the graph, which does the
// work of all ranks; the ranks meet again, and the streams of the others wait for the launch. Then
// every stream copies its results away. Waits are for what was recorded when they were issued.
//
// Proves: a graph sees every rank's upload of its own step, results are those of the step and are
// copied before the next graph writes them again, and everything comes to its end.
//
// right:
// wrong: NO_WAIT_FOR_OTHERS   the graph starts before an upload
// wrong: NO_FOLLOW            results are copied before they are there
// wrong: ARRIVES_LATE         the launch waits for the arrival of the step before
// wrong: NO_FIRST_MEETING     the same
// wrong: NO_SECOND_MEETING    a rank follows the launch of the step before
// wrong: ARRIVES_FIRST        a rank arrives in front of its upload

#define RANKS 3
#define STEPS 3

byte input[RANKS], result[RANKS];        // the step they are of, from 1 on
byte arrived_record[RANKS], done_record; // the last step whose event has been recorded
byte arrived[RANKS], done;               // the last whose record a stream has passed
byte before[STEPS + 1], launched[STEPS + 1]; // ranks that have come to the meetings

mtype = { upload, record_arrival, wait_for_arrival, launch, record_done, follow, read_back };
chan queue[RANKS] = [8] of { mtype, byte, byte };

proctype Host(byte rank) {
  byte step, peer;
  for (step : 1 .. STEPS) {
#ifdef ARRIVES_FIRST
    if
    :: rank > 0 -> atomic { arrived_record[rank] = step; queue[rank] ! record_arrival, step, 0 }
    :: else
    fi;
#endif
    queue[rank] ! upload, step, 0;
#if !defined(ARRIVES_FIRST) && !defined(ARRIVES_LATE)
    if
    :: rank > 0 -> atomic { arrived_record[rank] = step; queue[rank] ! record_arrival, step, 0 }
    :: else
    fi;
#endif
    before[step]++;
#ifndef NO_FIRST_MEETING
    (before[step] == RANKS);
#endif
#ifdef ARRIVES_LATE
    if
    :: rank > 0 -> atomic { arrived_record[rank] = step; queue[rank] ! record_arrival, step, 0 }
    :: else
    fi;
#endif
    if
    :: rank == 0 ->
#ifndef NO_WAIT_FOR_OTHERS
      for (peer : 1 .. RANKS - 1) {
        atomic { queue[0] ! wait_for_arrival, arrived_record[peer], peer }
      }
#endif
      queue[0] ! launch, step, 0;
      atomic { done_record = step; queue[0] ! record_done, step, 0 }
    :: else
    fi;
    launched[step]++;
#ifndef NO_SECOND_MEETING
    (launched[step] == RANKS);
#endif
#ifndef NO_FOLLOW
    if
    :: rank > 0 -> atomic { queue[rank] ! follow, done_record, 0 }
    :: else
    fi;
#endif
    queue[rank] ! read_back, step, 0
  }
}

proctype Stream(byte rank) {
  byte step, peer, read;
  do
  :: read < STEPS ->
    if
    :: atomic { queue[rank] ? upload, step, _ -> input[rank] = step }
    :: atomic { queue[rank] ? record_arrival, step, _ -> arrived[rank] = step }
    :: atomic { queue[rank] ? wait_for_arrival, step, peer -> (arrived[peer] >= step) }
    :: atomic {
         queue[rank] ? launch, step, _ ->
         for (peer : 0 .. RANKS - 1) {
           assert(input[peer] == step);
           result[peer] = step
         }
       }
    :: atomic { queue[rank] ? record_done, step, _ -> done = step }
    :: atomic { queue[rank] ? follow, step, _ -> (done >= step) }
    :: atomic {
         queue[rank] ? read_back, step, _ ->
         assert(result[rank] == step);
         read++
       }
    fi
  :: else -> break
  od
}

init {
  byte rank;
  atomic {
    for (rank : 0 .. RANKS - 1) {
      run Host(rank);
      run Stream(rank)
    }
  }
}
