// Package call is the life of calls as a state machine: events in, orders out.
// It numbers calls, keeps the one order per cluster, knows which legs are out,
// names the first cause of a failure, and finds waits that close a cycle.
//
// It imports only spec; it does no I/O, reads no clock and holds no lock: the
// head serialises events, carries out the orders and owns timers and bytes.
//
// A call:
//
//	state      event                         next       orders
//	-          Submit, nothing in its way    running    Send
//	-          Submit, waits for a future,
//	           behind a call that does, a
//	           worker has MaxOut legs out,
//	           or a rank is down             held       -
//	-          Submit, a rank is dead, or
//	           a wait would close a cycle    answered   Fail
//	held       futures here, first in its
//	           cluster's queue, room again,
//	           its ranks up                  running    Send
//	held       prepares, the same            held       Prepare, once; Send when it is Prepared
//	held       paired, first in its queue,
//	           the rows of a leg are there   sending    SendLeg
//	held       a future failed, Cancel,
//	           Expire                        answered   Fail
//	held       WorkerLost of a rank of its   answered   Fail, when it is first in its queue
//	sending    the rows of a leg are there   sending    SendLeg; running with the last one
//	sending    a rank of a leg is down       sending    -, the leg waits for Replace
//	sending    anything that ends a call     as running, the legs that were not sent are skipped; those
//	                                         behind it go out when it is answered
//	sending    Cancel of who made it         answered   Fail, CancelLeg for the legs that are out
//	running    Returned without its leg      sending    Again, then SendLeg with Resent
//	sending    Returned without its leg      sending    the same
//	either     Returned without its leg, a
//	           call that gave rows failed    answered   Fail
//	settled    Returned without its leg      the same   that leg counts as ended: nobody needs it; those
//	                                                    behind it go out when it is answered
//	running    Result, the last leg          answered   Answer
//	running    Result with an error          answered   Fail (the other legs run on; collective: CancelLeg)
//	running    WorkerLost                    answered   Fail, CancelLeg for the other legs
//	running    WorkersDown, not idempotent,
//	           a rank has raised, or a call
//	           that gave rows failed         answered   Fail (the other legs run on; collective: CancelLeg)
//	running    WorkersDown, idempotent       running    -, its legs there wait; where all ranks are down,
//	                                                    those that are done are taken back as well
//	running    Replace                       running    SendAgain for the legs that waited
//	running    Expire                        expiring   Stacks
//	running    Cancel                        cancelling CancelLeg for every leg that is out
//	expiring   Expired with stacks           answered   Fail; CancelLeg or KillLeg where the method says so
//	cancelling the last leg ended            answered   Fail
//	cancelling Overdue with stacks           answered   Fail; KillLeg where its caller asked for that
//	any        Wait that closes a cycle      answered   Fail; CancelLeg for the legs that are out
//	held       Refuse of a Prepare           answered   Fail
//	any        Refuse of a Send or SendLeg   answered   Fail (the legs that are out run on; collective: CancelLeg)
//	any        ClusterGone                   answered   Fail
//	held,
//	sending    CallerGone                    answered   Fail, for nobody; the legs that are out run on
//	running    CallerGone                    running    -, and what comes of it is for nobody
//	answered   the last leg ended            gone       Forget, where objects are held for it
//	answered   Acked by its caller           the same   Release, where a worker keeps many results for nobody
//
// First in its queue is a call also where all in front of it wait for futures, or behind
// such calls, and are for other ranks: each rank sees the one order, and none waits for
// what is another's.
//
// A call is paired when its arguments are futures of calls that give their rows
// part by part: each of its legs needs one leg of theirs, not all. The results of
// a call are kept while a call that is not answered yet needs them.
//
// A call that is Split is answered leg by leg: the same table holds for each leg,
// with AnswerLeg and FailLeg in place of Answer and Fail. Of one that is Apart as
// well, and not collective, a dead rank fails its own leg alone, now or when it is
// first in its queue, and no other is cancelled; it fails as a whole where all are dead.
//
// A call under a new head (Comeback), from what workers have got and its caller
// sends again:
//
//	legs at workers   sent again by caller      next       orders
//	all               yes                       running    none: results that are kept come again
//	some              yes                       sending    SendLeg for those that lack it, in order
//	none              yes, and a later one of
//	                  its caller is known       held       Send, numbered below that one
//	none              yes                       held       Send, numbered after all
//	some, and later
//	ones where not    yes                       running    the rest was given up before: skipped
//	none, and later
//	ones              yes                       answered   Fail: it was refused before
//	none              yes, its time is over     answered   Fail, before anything is sent: it does not begin
//	some              yes, its time is over     expiring   Stacks, once results that are kept are taken; the
//	                                                       legs that were not sent are skipped
//	any               yes, twice                -          the second is not taken
//	any               yes, and it was lost      -          none: the head fails it (Refused); those that
//	                  with a rank                          its caller made before keep their places
//	any               no, the caller is back    answered   none: it has its answer; the legs run on
//	any               no, the caller is gone    answered   CancelLeg
//	-                 its answer (PutAnswer)    answered   none: it is there for those that name it
//
// So a leg is sent to a worker only if that says it has neither got it nor any
// later one, and a call is answered only to who says it has no answer.
//
// A worker: alive -> dying (its connection ended: it may come back, Returned)
// -> dead (WorkerLost). A dead rank fails the calls that need it, now and later.
// In a cluster that restarts ranks: alive -> dying -> down (WorkersDown) -> replaced
// by another Worker of the same rank (Replace), or dead (WorkerLost). What a rank
// that is down still says counts for nothing. A leg that is sent again goes out in
// the calls' order, before any call that waited: each process sees the one order.
// A call that is not idempotent is never sent again, however far it had come.
package call
