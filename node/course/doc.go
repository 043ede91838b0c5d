// Package course decides what a replica does from its start to its end: two
// state machines, Leader for rank 0 and Replica for the others. Events go in
// (Ray is up, a replica was heard, a look at the leader failed, a signal came,
// time went on), orders come out (start Ray, start the command, stop, exit).
//
// The leader:
//
//	starting   Ray's head is up           -> gathering
//	           it gave its start up       -> it is started again
//	           it ended, or the deadline  -> leaving, 1
//	gathering  enough replicas joined     -> running, the command starts
//	           the deadline               -> leaving, 1
//	running    the command ended          -> leaving, its code
//	           Ray's head ended           -> the command is stopped, leaving, 1
//	           a signal                   -> passed on to the command; killed after the grace
//	leaving    all replicas that are here know the code, or the farewell is over
//	                                      -> Ray is stopped, gone
//
// A replica:
//
//	seeking    the leader says where Ray is     -> joining, Ray starts
//	           the leader refuses               -> leaving, 1
//	           the deadline                     -> leaving, 1
//	joining    Ray is up                        -> joined
//	           it gave its start up             -> it is started again
//	           it ended, or the deadline        -> leaving, 1
//	joined     the leader says that all is over -> leaving, with its code
//	           Ray ended                        -> leaving, 1: a lost raylet
//	           looks fail, many in a row        -> leaving, 1: the head is gone
//	leaving    Ray has ended                    -> gone
//
// In any state before leaving, a signal leads to leaving with 128 + its number.
//
// The package is pure: time is a duration since the start that it is given, and
// names, codes and addresses are taken as told.
package course
