// The ticket of ordered sums (kernels/primitives/ordered_sum.h): every block writes partial sums,
// and the block that counts last reads those of all. Memory is as weak as a GPU's: what a thread
// has written comes to global memory at any time, in any order, and a block's cache holds what the
// partial sums were before. One thread's count releases and acquires for its block: it holds back
// until all that the thread has seen written, by the barrier its whole block's, is in memory, and
// drops the block's cache.
//
// Proves: the threads of one block, and no others, are the last; they see all partial sums; and the
// counter is zero again for the next kernel, which runs here, too.
//
// right:
// wrong: NO_RELEASE         a partial sum comes after the count
// wrong: NO_ACQUIRE         the last block reads its old cache
// wrong: NO_BARRIER_BEFORE  the release covers what the block has not written yet
// wrong: NO_BARRIER_AFTER   a thread does not wait for the ticket
// wrong: NO_WRAP            the next kernel starts at the counter of this one

#define BLOCKS 2
#define THREADS 2
#define KERNELS 2
#define CELL(b, t) ((b) * THREADS + (t))

byte memory[4];       // of CELL: the last kernel whose partial sum is there
bool pending[4];      // written, and not in memory yet
bool stale[BLOCKS];   // the block's cache holds partial sums from before
byte counter;
byte kernel = 1;      // 1, 2: the one that runs
byte arrived[BLOCKS]; // in shared memory
byte waiting[BLOCKS], generation[BLOCKS]; // of a block's barrier
byte finished, last; // threads, and those that take themselves for the last block's

inline barrier(b, mine) {
  atomic {
    mine = generation[b];
    waiting[b]++;
    if
    :: waiting[b] == THREADS -> waiting[b] = 0; generation[b]++
    :: else
    fi
  }
  (generation[b] != mine)
}

proctype Thread(byte b; byte t) {
  byte round, mine, c;
  for (round : 1 .. KERNELS) {
    (kernel == round); // kernels of a stream run one after another
    pending[CELL(b, t)] = true;
#ifndef NO_BARRIER_BEFORE
    barrier(b, mine);
#endif
    if
    :: t == 0 ->
      atomic {
#ifndef NO_RELEASE
        (!pending[CELL(b, 0)] && !pending[CELL(b, 1)]);
#endif
#ifndef NO_ACQUIRE
        stale[b] = false;
#endif
        arrived[b] = counter;
#ifdef NO_WRAP
        counter++;
#else
        counter = (counter >= BLOCKS - 1 -> 0 : counter + 1); // increment_acq_rel
#endif
      }
    :: else
    fi;
#ifndef NO_BARRIER_AFTER
    barrier(b, mine);
#endif
    if
    :: arrived[b] == BLOCKS - 1 ->
      assert(!stale[b]);
      atomic {
        last++;
        for (c : 0 .. BLOCKS * THREADS - 1) { assert(memory[c] == round) }
      }
    :: else
    fi;
    atomic {
      finished++;
      if
      :: finished == BLOCKS * THREADS ->
        assert(last == THREADS);
        finished = 0;
        last = 0;
        for (c : 0 .. BLOCKS - 1) {
          stale[c] = true; // what the next kernel finds in the caches
          arrived[c] = 0
        }
        kernel++
      :: else
      fi
    }
  }
}

// What was written comes to memory.
active proctype Memory() {
end:
  do
  :: atomic { pending[0] -> memory[0] = kernel; pending[0] = false }
  :: atomic { pending[1] -> memory[1] = kernel; pending[1] = false }
  :: atomic { pending[2] -> memory[2] = kernel; pending[2] = false }
  :: atomic { pending[3] -> memory[3] = kernel; pending[3] = false }
  od
}

init {
  byte b, t;
  atomic {
    for (b : 0 .. BLOCKS - 1) {
      stale[b] = true;
      for (t : 0 .. THREADS - 1) { run Thread(b, t) }
    }
  }
}
